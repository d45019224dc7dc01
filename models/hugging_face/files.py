"""Reads and writes directories of `transformers`: config.json and safetensors files."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from ...settings.directories import own_file
from ...settings.system_errors import in_words

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
GENERATION = "generation_config.json"  # defaults of `generate` in transformers
INDEX = f"{WEIGHTS}.index.json"
SHARD_BYTES = 5 * 10**9
DTYPES = {"float32": "F32", "bfloat16": "BF16"}


class TensorFiles(NamedTuple):
    """A directory whose tensors can be read one by one."""

    path: Path
    shapes: Mapping[str, tuple[int, ...]]  # shape of each tensor, by name
    read: Callable[[str], np.ndarray]  # name -> tensor; raises KeyError for an unknown name
    config: Mapping[str, Any] = MappingProxyType({})  # contents of config.json
    files: Mapping[str, Path] = MappingProxyType({})  # file of each tensor, by name

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.shapes)


def open_source(directory: str) -> TensorFiles:
    """Opens a directory of `transformers` without reading its weights.

        open_source("t5-v1_1-small").shapes["shared.weight"]        # (32128, 512)

    Raises ValueError if the directory does not hold such a model, if weights are pickled or
    missing, or if a file is damaged. The message names the file.
    """
    path = Path(directory)
    if not path.is_dir():
        raise ValueError(
            f"Got {directory!r}, expected a directory that `save_pretrained` wrote or that "
            "was downloaded: there is no such directory."
        )
    config = read_json(path / CONFIG)
    files: dict[str, Path] = {}
    original_names: dict[str, str] = {}  # current name -> name in the file
    shapes: dict[str, tuple[int, ...]] = {}
    for file in _weight_files(path):
        with _opened(file) as opened:
            for original in opened.keys():
                name = _current_name(original)
                files[name] = file
                original_names[name] = original
                shapes[name] = tuple(opened.get_slice(original).get_shape())

    def read(name: str) -> np.ndarray:
        with _opened(files[name]) as opened:
            return opened.get_tensor(original_names[name])

    return TensorFiles(path, shapes, read, config, files)


def _current_name(name: str) -> str:
    """Returns the current name of a tensor. The first BERTs use TensorFlow's names.

    >>> _current_name("bert.embeddings.LayerNorm.gamma")
    'bert.embeddings.LayerNorm.weight'
    """
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)


def _weight_files(path: Path) -> list[Path]:
    if (path / WEIGHTS).exists():  # takes precedence over an index, as in `transformers`
        return [path / WEIGHTS]
    if (path / INDEX).exists():
        named = read_json(path / INDEX).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(x, str) for x in named.values()):
            raise ValueError(
                f"{path / INDEX} is damaged: expected weight_map to be an object of file names. "
                "Download it again."
            )
        files = sorted({own_file(path, name) for name in named.values()})
        missing = [file.name for file in files if not file.exists()]
        if missing or not files:
            raise ValueError(
                f"{path / INDEX} names {missing or 'no files'}, which do not exist: download the "
                "directory again."
            )
        return files
    pickled = sorted(file.name for file in path.glob("*.bin"))
    if pickled:
        raise ValueError(
            f"{path} holds {pickled[0]}, a pickle, and no {WEIGHTS}: reading a pickle can run any "
            "code, so it is not read. If you trust it, load it once with `transformers` and write "
            "safetensors with `model.save_pretrained(DIR)`."
        )
    raise ValueError(
        f"{path} holds neither {WEIGHTS} nor {INDEX}: download it again, or convert it to "
        "safetensors."
    )


def read_json(file: Path, kind: type = dict) -> Any:
    """Returns the value of a JSON file, an object or a list.

    Raises ValueError, naming the file, if it is missing, damaged or of a different kind.
    """
    if not file.exists():
        raise ValueError(
            f"{file.parent} holds no {file.name}: expected a directory of transformers."
        )
    try:
        value = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if not isinstance(value, kind):
        expected = "a JSON object, {…}" if kind is dict else "a list"
        raise ValueError(
            f"{file} is damaged: got {type(value).__name__}, expected {expected}. "
            "Download it again."
        )
    return value


def _opened(file: Path):
    try:
        return safe_open(file, "numpy")
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{file} is damaged, or is not a safetensors file: {in_words(error)}"
        ) from error


def check_holds_no_model(directory: str) -> None:
    """Raises ValueError if a directory holds a model, since some of its files would remain."""
    path = Path(directory)
    models = [path / CONFIG, *path.glob("*.safetensors*")]
    if existing := sorted(file.name for file in models if file.exists()):
        raise ValueError(
            f"{path} already holds a model ({existing[0]}): export to a new directory, or delete "
            "it."
        )


# Special ids that `generate` reads.
_GENERATE_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


def write_generation_config(
    directory: str, ids: Mapping[str, int | None], max_new_tokens: int
) -> None:
    """Writes settings of greedy decoding for `generate`, unless the directory has settings already.

    The special ids have their names in config.json.
    """
    path = Path(directory) / GENERATION
    if not path.exists():
        settings: dict[str, Any] = {
            name: ids[name] for name in _GENERATE_IDS if ids.get(name) is not None
        }
        settings |= {"do_sample": False, "max_new_tokens": max_new_tokens}
        path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", "utf-8")


class Tensor(NamedTuple):
    """A tensor to write; its values are computed when it is written."""

    name: str
    shape: tuple[int, ...]
    values: Callable[[], np.ndarray]
    dtype: str | None = None  # None: the dtype of the directory


def write_directory(
    directory: str,
    config: dict,
    tensors: Iterable[Tensor],
    dtype: str,
    shard_bytes: int = SHARD_BYTES,
) -> list[Path]:
    """Writes the config and the tensors, and returns the weight files.

    Only one tensor is in memory at a time. Files have the names that `transformers` gives them. The
    index of several weight files is written last.

    Raises ValueError if the directory already holds a model.
    """
    check_holds_no_model(directory)
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    shards: list[list[Tensor]] = [[]]
    for tensor in tensors:
        if shards[-1] and _bytes([*shards[-1], tensor], dtype) > shard_bytes:
            shards.append([])
        shards[-1].append(tensor)
    names = [f"model-{n + 1:05d}-of-{len(shards):05d}.safetensors" for n in range(len(shards))]
    files = [path / name for name in (names if len(shards) > 1 else [WEIGHTS])]
    for file, shard in zip(files, shards, strict=True):
        _write_tensors(file, shard, dtype)
    (path / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")
    if len(files) > 1:
        total = sum(_bytes(shard, dtype) for shard in shards)
        file_of = {t.name: file.name for file, shard in zip(files, shards) for t in shard}
        index = {"metadata": {"total_size": total}, "weight_map": file_of}
        (path / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")
    return files


def _bytes(tensors: Iterable[Tensor], dtype: str) -> int:
    return sum(math.prod(t.shape) * jnp.dtype(t.dtype or dtype).itemsize for t in tensors)


def _write_tensors(file: Path, tensors: Iterable[Tensor], dtype: str) -> None:
    """Writes a safetensors file tensor by tensor.

    The library's function copies the tensors and needs all of them in memory at once. The format is
    described in https://github.com/huggingface/safetensors#format.
    """
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start = end
        end = end + _bytes([tensor], dtype)
        header[tensor.name] = {
            "dtype": DTYPES[tensor.dtype or dtype],
            "shape": tensor.shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            values = np.ascontiguousarray(tensor.values(), jnp.dtype(tensor.dtype or dtype))
            opened.write(values.view(np.uint8).data)
