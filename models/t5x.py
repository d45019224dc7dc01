"""Reads T5X checkpoints with unrolled layers, as T5, T5 1.1, mT5 and UL2 were published.

    source = open_t5x("t5_1_1_small/checkpoint_1000000")
    model = models.encoder_decoder(32128)              # T5 1.1 small
    params = nested(read_params(source, model))          # models.trees.nested

A checkpoint is a directory. Its file `checkpoint` is msgpack as `flax.serialization` writes it,
{"version": 3, "optimizer": {"target": parameters, "state": …}}. It contains small arrays. Larger
arrays are zarr folders in the same directory, such as
`target.encoder.layers_0.attention.query.kernel`, and the file has a TensorStore spec in their
place. A checkpoint does not describe its model, so the caller gives it. The optimizer's state is
not read.

Published checkpoints: https://t5x.readthedocs.io/en/latest/models.html. Names and layout:
`t5x/checkpoints.py` and `t5x/examples/t5/network.py` of https://github.com/google-research/t5x.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import tensorstore
from flax import serialization
from flax.traverse_util import flatten_dict

from ..settings.system_errors import in_words
from . import builders
from .builders import Model
from .config import Config
from .hugging_face import TRAINING_FIELDS, TensorFiles, parameter_shapes, resolved_settings
from .hugging_face.links import (
    IN_OUT,
    OUT_IN,
    TABLE,
    VECTOR,
    Link,
    imported,
    tensor_shapes,
    unmatched,
)

CHECKPOINT = "checkpoint"

# Fields of `Config` in which T5X's models may differ from T5 1.1.
VARIED = (
    *("num_encoder_layers", "num_decoder_layers", "emb_dim", "num_heads", "num_kv_heads"),
    *("head_dim", "mlp_dim", "mlp_activations", "logits_via_embedding"),
)
# The attention modules of a layer: our name, T5X's name, and the name of the norm in T5X.
ATTENTIONS = {
    "encoder": [("self_attention", "attention", "attention")],
    "decoder": [
        ("self_attention", "self_attention", "self_attention"),
        ("cross_attention", "encoder_decoder_attention", "cross_attention"),
    ],
}


def open_t5x(directory: str) -> TensorFiles:
    """Opens a T5X checkpoint on a local disk without reading the tensors in zarr folders.

        open_t5x("t5_1_1_small/checkpoint_1000000").shapes["encoder.relpos_bias.rel_embedding"]
        # (6, 32)

    Raises ValueError if the directory, its file `checkpoint` or a zarr folder is missing, or if
    that file is damaged or was written by TensorFlow, Orbax or another program. Reading a tensor
    raises ValueError if its zarr files are damaged or do not have the shape in the checkpoint.
    """
    path = Path(directory)
    shapes: dict[str, tuple[int, ...]] = {}
    reads: dict[str, Callable[[], np.ndarray]] = {}
    target = flatten_dict(_target(path), is_leaf=lambda at, node: at and "driver" in node)
    for keys, leaf in target.items():
        name = ".".join(map(str, keys))
        if isinstance(leaf, np.ndarray):
            shapes[name], reads[name] = leaf.shape, functools.partial(np.asarray, leaf)
        elif isinstance(leaf, Mapping):
            folder, shapes[name] = _folder_and_shape(path, name, leaf)
            reads[name] = functools.partial(_read_zarr, folder, shapes[name])
        else:
            by_orbax = str(leaf).startswith("PLACEHOLDER://")
            hint = ": Orbax wrote it, and its checkpoints are not supported" if by_orbax else ""
            raise ValueError(
                f"Got {leaf!r} for {name} in {path / CHECKPOINT}, expected an array or a "
                f"TensorStore spec{hint}."
            )

    def read(name: str) -> np.ndarray:
        array = reads[name]()
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(
                f"Got {name} of dtype {array.dtype} in {path}, expected floats, which T5X has "
                "written since version 3 (June 2021). Save it again with a newer T5X."
            )
        return array

    return TensorFiles(path, shapes, read)


def links(config: Config) -> list[Link]:
    """Returns the links between T5X's tensors and our arrays, for a model that T5X has.

    T5X's kernels are [inputs, outputs], with the heads of attention joined: query, key and value
    are [E, H * d], out is [H * d, E]. The embedding is [V, E], rel_embedding [H, 32], and scales
    [E].
    """
    result = [Link("token_embedding", "token_embedder.embedding", TABLE)]
    for stack, attentions in ATTENTIONS.items():
        path = f"{stack}/layers/{{i}}"
        tensor_name = f"{stack}.layers_{{i}}"
        for name, module, norm in attentions:
            for part, inputs in (("query", 1), ("key", 1), ("value", 1), ("out", 2)):
                kernel_name = f"{tensor_name}.{module}.{part}"
                result += [_kernel(f"{path}/{name}/{part}", kernel_name, inputs)]
            result += [_scale(f"{path}/{name}_norm", f"{tensor_name}.pre_{norm}_layer_norm")]
        gates = range(len(config.mlp_activations))
        for i in gates:
            inner = "wi" if len(gates) == 1 else f"wi_{i}"
            result += [_kernel(f"{path}/mlp/wi_{i}", f"{tensor_name}.mlp.{inner}")]
        result += [_kernel(f"{path}/mlp/wo", f"{tensor_name}.mlp.wo")]
        result += [_scale(f"{path}/mlp_norm", f"{tensor_name}.pre_mlp_layer_norm")]
        result += [_scale(f"{stack}/final_norm", f"{stack}.{stack}_norm")]
        bias = f"{stack}.relpos_bias.rel_embedding"
        result += [Link(f"{stack}/relative_bias/table", bias, TABLE)]
    if not config.logits_via_embedding:
        head = "decoder.logits_dense.kernel"  # [E, V]: our table transposed
        result += [Link("vocabulary/embedding", head, OUT_IN)]
    return result


def read_params(
    source: TensorFiles, model: Model, *, unscaled: Collection[str] = ()
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (path, float32 array) for each of our parameters, after checking all names and shapes.

    Converting bfloat16 to float32 is exact. Arrays of scanned layers are in memory as a whole.

    Args:
      model: an encoder-decoder of T5's kind. For T5 1.1, set only the sizes of
        `models.encoder_decoder`. For UL2, also set mlp_activations=("silu", "linear"). For T5 1.0,
        also set mlp_activations=("relu",), logits_via_embedding=True and scale_logits=True.
      unscaled: names of norm scales that the checkpoint lacks because its norms have no scale. They
        become ones, which is the same network. UL2 20B needs ("decoder.decoder_norm.scale",),
        according to https://github.com/google-research/t5x/issues/1226.

    Raises:
      ValueError: T5X does not have the model, its layers were scanned by T5X, or tensors are
        missing, left over or of the wrong shape; this is checked before the first read. While
        reading: a tensor is damaged.
    """
    config = check_config(model)
    shapes = parameter_shapes(model)
    expected = tensor_shapes(links(config), config, shapes)
    _check_names(source, set(expected), set(unscaled))
    _check_shapes(source, expected)

    def read(name: str) -> np.ndarray:
        if name in unscaled:
            return np.ones(config.emb_dim, np.float32)
        return source.read(name)

    return imported(links(config), config, shapes, read)


def check_config(model: Model) -> Config:
    """Returns the model's `Config`.

    Raises ValueError if T5X does not have such a network. The message names the settings to change.
    """
    config = model.config
    if config is None or model.layout != "encoder_decoder":
        raise ValueError(
            f"Got a model of layout {model.layout!r}, expected `models.encoder_decoder`: other T5X "
            "checkpoints are not supported."
        )
    fixed = {name: getattr(config, name) for name in (*VARIED, *TRAINING_FIELDS)}
    for name in ("vocab_size", "heads", "num_ahead", "ahead"):
        del fixed[name]
    fixed["scale_logits"] = config.logits_via_embedding
    t5 = builders.encoder_decoder(config.vocab_size, **fixed).config
    assert t5 is not None  # a model of a builder has a config
    ours = resolved_settings(config)
    theirs = resolved_settings(t5)
    differ = [
        f"{name}={getattr(config, name)!r}, expected {getattr(t5, name)!r}"
        for name in ours
        if ours[name] != theirs[name]
    ]
    if differ:
        raise ValueError(f"T5X does not have this model: got {'; '.join(differ)}. Change these.")
    return config


def vocabulary_rows(source: TensorFiles) -> int:
    """Returns the number of rows of the checkpoint's token embedding.

    Raises ValueError if the checkpoint has no token embedding.
    """
    name = "token_embedder.embedding"
    if name not in source.shapes:
        raise ValueError(
            f"{source.path} does not hold {name}, expected the parameters of T5X's "
            "`network.Transformer`: other checkpoints are not supported."
        )
    return source.shapes[name][0]


def _target(path: Path) -> Mapping[str, Any]:
    """Returns the tree of parameters in the file `checkpoint`."""
    file = path / CHECKPOINT
    if not file.is_file():
        raise ValueError(
            f"{path} does not hold a file {CHECKPOINT!r}, expected a directory that T5X wrote, on "
            f"a local disk{_nearby(path)}."
        )
    data = file.read_bytes()
    if data.startswith(b"model_checkpoint_path"):
        raise ValueError(
            f"{file} was written by TensorFlow, expected T5X: use the checkpoint of the same model "
            "in gs://t5-data/pretrained_models/t5x."
        )
    try:
        contents = serialization.msgpack_restore(data)
    except Exception as error:  # msgpack and flax raise many kinds of errors
        raise ValueError(
            f"{file} is damaged or not msgpack ({error or type(error).__name__}): download it "
            "again."
        ) from error
    tree = contents.get("optimizer", contents) if isinstance(contents, Mapping) else None
    target = tree.get("target") if isinstance(tree, Mapping) else None
    if not isinstance(target, Mapping) or not target:
        raise ValueError(
            f"{file} has no parameters in ['optimizer']['target'] or ['target']: use a checkpoint "
            "of a T5X run that was saved with its parameters."
        )
    return target


def _nearby(path: Path) -> str:
    """Returns a hint for a message: the checkpoints in the directory, if any."""
    if not path.is_dir():
        return ": the directory does not exist"
    steps = sorted(file.parent.name for file in path.glob(f"*/{CHECKPOINT}"))
    return f": open one of {', '.join(steps)} in it" if steps else ""


def _folder_and_shape(path: Path, name: str, spec: Mapping) -> tuple[Path, tuple[int, ...]]:
    """Returns the folder and the shape of the tensor of a TensorStore spec.

    T5X may have written the spec on a local disk or in a bucket.
    """
    try:
        # TensorStore before 0.1.14, and T5X for buckets, store the path outside `kvstore`.
        stored = (spec["kvstore"].get("path") or spec["path"]).strip("/")
        shape = tuple(int(n) for n in spec["metadata"]["shape"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"The TensorStore spec of {name} in {path / CHECKPOINT} is damaged: {dict(spec)}."
        ) from error
    if spec["driver"] != "zarr" or stored in ("", ".", "..") or "/" in stored:
        raise ValueError(
            f"Got driver {spec['driver']!r} and path {stored!r} for {name} in {path / CHECKPOINT}, "
            "expected 'zarr' and the name of a folder next to it, as T5X writes them."
        )
    folder = path / stored
    if not (folder / ".zarray").is_file():
        raise ValueError(
            f"{folder / '.zarray'} is missing, expected the array {name} that {path / CHECKPOINT} "
            "lists: download it again."
        )
    return folder, shape


def _read_zarr(folder: Path, shape: tuple[int, ...]) -> np.ndarray:
    # By default, missing chunks would be read as zeros.
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": str(folder)},
        "fill_missing_data_reads": False,
    }
    try:
        stored = tensorstore.open(spec, open=True, read=True).result()
        if stored.shape == shape:
            return stored.read().result()
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{folder} is damaged or incomplete: {in_words(error)} Download it again."
        ) from error
    raise ValueError(
        f"Got {folder} of shape {stored.shape}, expected {shape} as in the file {CHECKPOINT}: they "
        "are from different checkpoints. Download both again."
    )


def _check_names(source: TensorFiles, expected: set[str], unscaled: set[str]):
    for scanned in ("encoder.encoder.", "decoder.decoder."):
        if any(name.startswith(scanned) for name in source.names):
            raise ValueError(
                f"Got tensors {scanned}… in {source.path}, expected "
                f"{scanned.partition('.')[0]}.layers_0.… and so on: T5X scanned its layers "
                "(scan_layers = True), and such checkpoints are not supported. Save it again from "
                "T5X with scan_layers = False, or import the model from Hugging Face "
                "(models.hugging_face)."
            )
    for name in sorted(unscaled):
        if name not in expected or not name.endswith(".scale") or name in source.names:
            raise ValueError(
                f"Got {name!r} in unscaled, expected norm scales of this model that {source.path} "
                "lacks: leave it out."
            )
    missing = expected - unscaled - source.names
    unexpected = source.names - expected
    if missing or unexpected:
        message = (
            f"The tensors in {source.path} do not match the model: "
            f"{unmatched(missing, unexpected)}. Use the settings that the checkpoint was trained "
            "with: the numbers of layers, mlp_activations and logits_via_embedding."
        )
        if missing and not unexpected and all(name.endswith(".scale") for name in missing):
            message += (
                " If its norms have no scale, set "
                f"--unscaled={','.join(sorted(missing | unscaled))} (`unscaled` of read_params)."
            )
        raise ValueError(message)


def _check_shapes(source: TensorFiles, shapes: Mapping[str, tuple[int, ...]]):
    wrong = [name for name, shape in shapes.items() if source.shapes.get(name, shape) != shape]
    if wrong:
        # Names with the fewest parts come first, such as the embedding before the layers.
        name = min(wrong, key=lambda name: (name.count("."), name))
        more = f", and {len(wrong) - 1} more that do not fit" if len(wrong) > 1 else ""
        raise ValueError(
            f"Got {name} of shape {source.shapes[name]}, expected {shapes[name]}{more}: the model "
            f"in {source.path} has different sizes. Set vocab_size, emb_dim, num_heads, head_dim "
            "and mlp_dim to the values that it was trained with."
        )


def _kernel(path: str, tensor_name: str, inputs: int = 1) -> Link:
    return Link(path, f"{tensor_name}.kernel", IN_OUT, inputs)


def _scale(path: str, tensor_name: str) -> Link:
    return Link(f"{path}/scale", f"{tensor_name}.scale", VECTOR)
