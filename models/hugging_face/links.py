"""Which tensor of a Hugging Face checkpoint is which of our arrays, and how they are turned.

A family of models is a list of links, each a name of ours and a name of theirs:

    Link("decoder/layers/{i}/self_attention/query", "model.layers.{i}.self_attn.q_proj.weight")

from which both directions follow. `{i}` is the number of the layer; ours are stacked along a first
axis where layers are scanned.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from pretrax.models.config import Config
from pretrax.models.hugging_face.files import Tensor

# How a tensor of theirs is laid out.
OUT_IN = "out_in"  # torch.nn.Linear: [outputs, inputs]
IN_OUT = "in_out"  # GPT-2's Conv1D: [inputs, outputs]
TABLE = "table"  # the same axes as ours: embeddings
VECTOR = "vector"  # one axis: norms and biases
ROW = "row"  # a vector with an axis of 1 before it


class Link(NamedTuple):
    """One tensor of theirs, and the array or arrays of ours that it holds, joined along outputs."""

    ours: str | tuple[str, ...]
    theirs: str
    form: str = OUT_IN
    inputs: int = 1  # of our axes, how many are inputs: 2 for attention's output [H, d, E]

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours


class Place(NamedTuple):
    """Where an array of one layer is kept in a tree of parameters."""

    path: str  # "decoder/layers/mlp/wo"
    index: int | None  # along its first axis, where layers are stacked


def named_tensors(links: Iterable[Link], config: Config) -> Iterator[tuple[str, Link, int | None]]:
    """(name, link, layer) of every tensor of theirs."""
    for link in links:
        if "{i}" not in link.theirs:
            yield link.theirs, link, None
            continue
        layers = config.num_decoder_layers
        if link.parts[0].startswith("encoder/"):
            layers = config.num_encoder_layers
        # ModernBERT's first layer lacks a norm.
        lacks = not config.first_norm and "/self_attention_norm/" in link.parts[0]
        for i in range(int(lacks), layers):
            yield link.theirs.format(i=i), link, i


def unmatched(missing: set[str], left: set[str], most: int = 5) -> str:
    """In words, which tensors are missing and which are left over; of each the first few.

    >>> unmatched({"a"}, set())
    '1 missing: a'
    """
    parts = []
    for names, what in ((missing, "missing"), (left, "left over")):
        if names:
            more = f" and {len(names) - most} more" if len(names) > most else ""
            parts.append(f"{len(names)} {what}: {', '.join(sorted(names)[:most])}{more}")
    return "; ".join(parts)


def place(name: str, layer: int | None, config: Config) -> Place:
    """Where `name`, an array's path with "{i}" for the layer, is kept."""
    if layer is None:
        return Place(name, None)
    first = 0 if config.first_norm else 1
    if layer < first:
        return Place(name.replace("layers/{i}", "first_layer"), None)
    if config.scan_layers:
        return Place(name.replace("layers/{i}", "layers"), layer - first)
    return Place(name.replace("layers/{i}", f"layers_{layer}"), None)


def theirs(link: Link, arrays: list[np.ndarray]) -> np.ndarray:
    """A tensor of theirs from the arrays that it holds, those of one layer.

    >>> theirs(Link("query", "q"), [np.zeros((4, 2, 3))]).shape
    (6, 4)
    """
    if link.form == TABLE:
        return arrays[0]
    if link.form == VECTOR:
        return np.concatenate([x.reshape(-1) for x in arrays])
    if link.form == ROW:
        return arrays[0].reshape(1, -1)
    matrices = [x.reshape(int(np.prod(x.shape[: link.inputs])), -1) for x in arrays]
    joined = matrices[0] if len(matrices) == 1 else np.concatenate(matrices, axis=1)
    return np.ascontiguousarray(joined.T) if link.form == OUT_IN else joined


def ours(link: Link, part: int, tensor: np.ndarray, shapes: list[tuple[int, ...]]) -> np.ndarray:
    """The part-th array of ours from a tensor of theirs; `shapes`: of all that it holds.

    Raises ValueError where the tensor's shape cannot hold them.
    """
    expected = shape_of_theirs(link, shapes)
    if tensor.shape != expected:
        raise ValueError(
            f"Got {link.theirs} of shape {tensor.shape}, expected {expected} for {link.parts}: its "
            "config.json is of another model."
        )
    if len(shapes) > 1:
        sizes = [_outputs(link, shape) for shape in shapes]
        start = sum(sizes[:part])
        axis = 1 if link.form == IN_OUT else 0
        tensor = np.take(tensor, range(start, start + sizes[part]), axis)
    if link.form == OUT_IN:
        tensor = tensor.T
    return tensor.reshape(shapes[part])


def shape_of_theirs(link: Link, shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    if link.form == TABLE:
        return tuple(shapes[0])
    if link.form == VECTOR:
        return (sum(_outputs(link, shape) for shape in shapes),)
    if link.form == ROW:
        return (1, *shapes[0])
    inputs = int(np.prod(shapes[0][: link.inputs]))
    outputs = sum(_outputs(link, shape) for shape in shapes)
    return (outputs, inputs) if link.form == OUT_IN else (inputs, outputs)


def _outputs(link: Link, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape if link.form == VECTOR else shape[link.inputs :]))


Read = Callable[[str], np.ndarray]


def imported(
    links: Iterable[Link],
    config: Config,
    shapes: Mapping[str, tuple[int, ...]],
    read: Read,
) -> Iterator[tuple[str, np.ndarray]]:
    """(path, float32 array) of each of our arrays, read one at a time.

    Args:
      shapes: of all our arrays, by path: {"decoder/layers/mlp/wo": (12, 2048, 768)}.
      read: name of a tensor of theirs -> the tensor.

    Raises ValueError for shapes that do not fit, and KeyError, with the name, for what is missing.
    """
    sources: dict[str, list[tuple[int | None, Link, int, str, list]]] = {}
    for name, link, layer in named_tensors(links, config):
        places = [place(part, layer, config) for part in link.parts]
        held = [shapes[p.path][0 if p.index is None else 1 :] for p in places]
        for part, where in enumerate(places):
            sources.setdefault(where.path, []).append((where.index, link, part, name, held))
    for path, parts in sources.items():
        # Filled layer by layer: a list of layers and their stack would be twice as much.
        array = _empty(shapes[path])
        for index, link, part, name, held in parts:
            array[... if index is None else index] = ours(link, part, read(name), held)
        yield path, array


def _empty(shape: tuple[int, ...]) -> np.ndarray:
    """A float32 array that begins where JAX can take it as it is: at a multiple of 64 bytes."""
    size = math.prod(shape) * 4
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(np.float32).reshape(shape)


def exported(
    links: Iterable[Link], config: Config, arrays: Mapping[str, np.ndarray]
) -> Iterator[Tensor]:
    """Each tensor of theirs; `arrays`: ours by path, those of layers stacked as they are kept."""
    for name, link, layer in named_tensors(links, config):
        places = [place(part, layer, config) for part in link.parts]
        held = [arrays[p.path] if p.index is None else arrays[p.path][p.index] for p in places]
        shape = shape_of_theirs(link, [x.shape for x in held])
        yield Tensor(name, shape, partial(theirs, link, held))
