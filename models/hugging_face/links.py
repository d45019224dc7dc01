"""Links between the tensors of a checkpoint and our arrays, which convert in both directions.

A family of models has a list of links. Each link has the path of our array and the name of its
tensor:

    Link("decoder/layers/{i}/self_attention/query", "model.layers.{i}.self_attn.q_proj.weight")

`{i}` is the number of the layer. If layers are scanned, our arrays are stacked along a first axis.
`{e}` is the number of the expert. Our arrays stack the experts of a layer.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ..config import Config
from ..transformer import REPEATED
from .files import Tensor

# Layouts of the checkpoint's tensors.
OUT_IN = "out_in"  # torch.nn.Linear: [outputs, inputs]
IN_OUT = "in_out"  # GPT-2's Conv1D: [inputs, outputs]
TABLE = "table"  # the same axes as ours: embeddings
VECTOR = "vector"  # one axis: norms and biases
ROW = "row"  # a vector with a leading axis of size 1

Shape = tuple[int, ...]


class Link(NamedTuple):
    """A tensor of a checkpoint, and our array or arrays, which it concatenates along outputs."""

    path: str | tuple[str, ...]  # path of our array, or of each array
    tensor_name: str
    form: str = OUT_IN
    inputs: int = 1  # number of our axes that are inputs: 2 for attention's output [H, d, E]

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.path,) if isinstance(self.path, str) else self.path


def linear(
    path: str, tensor_name: str, biases: bool, inputs: int = 1, form: str = OUT_IN
) -> list[Link]:
    """Returns the links of a torch.nn.Linear: its weight, and its bias if `biases`."""
    links = [Link(path, f"{tensor_name}.weight", form, inputs)]
    return links + ([Link(f"{path}_bias", f"{tensor_name}.bias", VECTOR)] if biases else [])


def norm(path: str, tensor_name: str, bias: bool) -> list[Link]:
    """Returns the links of a norm: its scale, and its bias if it has one."""
    links = [Link(f"{path}/scale", f"{tensor_name}.weight", VECTOR)]
    return links + ([Link(f"{path}/bias", f"{tensor_name}.bias", VECTOR)] if bias else [])


def table(path: str, tensor_name: str) -> Link:
    return Link(path, f"{tensor_name}.weight", TABLE)


def attention(
    path: str, tensor_name: str, names: Sequence[str], biases: bool, qkv_biases: bool = False
) -> list[Link]:
    """Returns the links of query, key, value and output: four linear layers with these names."""
    *inner, out = (f"{tensor_name}.{name}" for name in names)
    result: list[Link] = []
    for part, name in zip(("query", "key", "value"), inner, strict=True):
        result += linear(f"{path}/{part}", name, biases or qkv_biases)
    return result + linear(f"{path}/out", out, biases, inputs=2)


def dense(path: str, tensor_name: str) -> list[Link]:
    """Returns the links of a layer of `models.heads`: a kernel and a bias."""
    return [
        Link(f"{path}/kernel", f"{tensor_name}.weight", OUT_IN),
        Link(f"{path}/bias", f"{tensor_name}.bias", VECTOR),
    ]


def head_links(c: Config, classifier: str) -> list[Link]:
    """Returns the links of a decoder's head. `classifier` is the name of a classifier of tokens."""
    if "classes" in c.heads:
        return linear("projections_classes/classifier/kernel", "score", False)
    if "token_classes" in c.heads:
        return dense("projections_token_classes/classifier", classifier)
    if "vocabulary" in c.heads and not c.logits_via_embedding:
        return [table("vocabulary/embedding", "lm_head")]
    return []


class Location(NamedTuple):
    """The location of one layer's or one expert's array in a tree of parameters."""

    path: str  # "decoder/layers/mlp/wo"
    numbers: tuple[int, ...]  # indices along the first axes, which stack layers and experts

    def shape(self, shapes: Mapping[str, Shape]) -> Shape:
        """Returns the array's shape, given the shapes of all parameters by path."""
        return shapes[self.path][len(self.numbers) :]


def named_tensors(
    links: Iterable[Link], config: Config
) -> Iterator[tuple[str, Link, list[Location]]]:
    """Yields (name, link, locations of the link's parts) for every tensor of a checkpoint."""
    for link in links:
        for numbers in _numbers(link, config):
            name = link.tensor_name.format(**dict(zip("ie", numbers)))
            yield name, link, [_location(part, numbers, config) for part in link.parts]


def _numbers(link: Link, config: Config) -> Iterator[tuple[int, ...]]:
    """Yields the layer of each tensor of a link, and the expert if the layer has experts."""
    if "{i}" not in link.tensor_name:
        yield ()
        return
    encodes = link.parts[0].startswith("encoder/")
    layers = config.num_encoder_layers if encodes else config.num_decoder_layers
    # ModernBERT's first layer lacks a norm.
    lacks = not config.first_norm and "/self_attention_norm/" in link.parts[0]
    for i in range(int(lacks), layers):
        if ("/mlp/" if config.is_sparse(i) else "/experts/") in link.parts[0]:
            continue  # the link is for the other kind of layer
        if "{e}" in link.tensor_name:
            yield from ((i, e) for e in range(config.num_experts))
        else:
            yield (i,)


def tensor_shapes(
    links: Iterable[Link], config: Config, shapes: Mapping[str, Shape]
) -> dict[str, Shape]:
    """Returns the shape of every tensor of a checkpoint, given the shapes of our arrays by path."""
    return {
        name: _tensor_shape(link, [at.shape(shapes) for at in locations])
        for name, link, locations in named_tensors(links, config)
    }


NAMED = 5  # number of tensors that `unmatched` names


def unmatched(missing: Collection[str], unexpected: Collection[str]) -> str:
    """Returns a text that names the first few missing tensors and the first few left over.

    >>> unmatched({"a"}, set())
    '1 missing: a'
    """
    parts = []
    for names, what in ((missing, "missing"), (unexpected, "left over")):
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            parts.append(f"{len(names)} {what}: {', '.join(sorted(names)[:NAMED])}{more}")
    return "; ".join(parts)


def _location(name: str, numbers: tuple[int, ...], config: Config) -> Location:
    """Returns the location of the array `name`, a path with "{i}" for the layer."""
    if not numbers:
        return Location(name, ())
    layer, *expert = numbers
    first = 0 if config.first_norm else 1
    if layer < first or not config.scan_layers:
        layer_name = "first_layer" if layer < first else f"layers_{layer}"
        return Location(name.replace("layers/{i}", layer_name), tuple(expert))
    number, position = divmod(layer - first, config.repeated_layers)
    layers = "layers" if config.repeated_layers == 1 else f"layers/{REPEATED}{position}"
    return Location(name.replace("layers/{i}", layers), (number, *expert))


def to_tensor(link: Link, arrays: list[np.ndarray]) -> np.ndarray:
    """Returns a tensor of a checkpoint, given our arrays for one layer.

    >>> to_tensor(Link("query", "q"), [np.zeros((4, 2, 3))]).shape
    (6, 4)
    """
    if link.form == TABLE:
        return arrays[0]
    if link.form == VECTOR:
        return np.concatenate([x.reshape(-1) for x in arrays])
    if link.form == ROW:
        return arrays[0].reshape(1, -1)
    matrices = [x.reshape(math.prod(x.shape[: link.inputs]), -1) for x in arrays]
    joined = matrices[0] if len(matrices) == 1 else np.concatenate(matrices, axis=1)
    return np.ascontiguousarray(joined.T) if link.form == OUT_IN else joined


def to_array(link: Link, part: int, tensor: np.ndarray, shapes: list[Shape]) -> np.ndarray:
    """Returns our array number `part` from a tensor of a checkpoint.

    `shapes` are the shapes of all arrays of the link.
    """
    outputs_last = tensor.T if link.form == OUT_IN else tensor
    ends = np.cumsum([_outputs(link, shape) for shape in shapes])[:-1]
    return np.split(outputs_last, ends, axis=-1)[part].reshape(shapes[part])


def _tensor_shape(link: Link, shapes: list[Shape]) -> Shape:
    """Returns the shape of a tensor of a checkpoint, given the shapes of our arrays."""
    if link.form == TABLE:
        return shapes[0]
    if link.form == ROW:
        return (1, *shapes[0])
    outputs = sum(_outputs(link, shape) for shape in shapes)
    if link.form == VECTOR:
        return (outputs,)
    inputs = math.prod(shapes[0][: link.inputs])
    return (outputs, inputs) if link.form == OUT_IN else (inputs, outputs)


def _outputs(link: Link, shape: Shape) -> int:
    return math.prod(shape if link.form == VECTOR else shape[link.inputs :])


def imported(
    links: Iterable[Link],
    config: Config,
    shapes: Mapping[str, Shape],
    read: Callable[[str], np.ndarray],
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (path, float32 array) for each of our arrays, and reads one tensor at a time.

    The caller has checked the names and shapes of the tensors.

    Args:
      shapes: shapes of all our arrays, by path: {"decoder/layers/mlp/wo": (12, 2048, 768)}.
      read: name of a tensor of a checkpoint -> the tensor.

    Raises ValueError for weights that are not finite floats.
    """
    sources: dict[str, list[tuple[tuple[int, ...], str, Callable[[np.ndarray], np.ndarray]]]] = {}
    for name, link, locations in named_tensors(links, config):
        part_shapes = [at.shape(shapes) for at in locations]
        for part, at in enumerate(locations):
            from_tensor = partial(to_array, link, part, shapes=part_shapes)
            sources.setdefault(at.path, []).append((at.numbers, name, from_tensor))
    for path, parts in sources.items():
        # The array is filled layer by layer. Stacking a list of layers would take twice the memory.
        array = _empty(shapes[path])
        for index, name, convert in parts:
            array[index] = convert(_weights(name, read(name)))
        yield path, array


def _weights(name: str, tensor: np.ndarray) -> np.ndarray:
    """Returns a tensor of a checkpoint. Raises ValueError unless it holds finite floats."""
    if not jnp.issubdtype(tensor.dtype, jnp.floating):
        raise ValueError(
            f"Got {name} of dtype {tensor.dtype}, expected floats: quantized weights are not "
            "supported. Use the model before quantization."
        )
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(np.sum(tensor, dtype=np.float64))  # makes no copy
    if not finite:
        raise ValueError(
            f"Got {name} with values that are not finite (nan or inf): the file is damaged, or the "
            "training diverged. Download it again, or use an earlier checkpoint."
        )
    return tensor


def _empty(shape: tuple[int, ...]) -> np.ndarray:
    """Returns an uninitialized float32 array aligned to 64 bytes, which JAX uses without a copy."""
    size = math.prod(shape) * 4
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(np.float32).reshape(shape)


def exported(
    links: Iterable[Link], config: Config, arrays: Mapping[str, np.ndarray]
) -> Iterator[Tensor]:
    """Yields each tensor of a checkpoint, given our arrays by path."""
    for name, link, locations in named_tensors(links, config):
        parts = [arrays[at.path][at.numbers] for at in locations]
        shape = _tensor_shape(link, [x.shape for x in parts])
        yield Tensor(name, shape, partial(to_tensor, link, parts))
