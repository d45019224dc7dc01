"""A directory of `transformers`: config.json and safetensors, in one file or several."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

CONFIG, WEIGHTS = "config.json", "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
SHARD_BYTES = 5 * 10**9  # as `transformers` has it


class Source(NamedTuple):
    """A directory that is read tensor by tensor."""

    path: Path
    config: dict
    names: frozenset[str]
    read: Callable[[str], np.ndarray]  # KeyError for a name that there is not


def open_source(directory: str) -> Source:
    """What `directory` holds; nothing of the weights is read yet.

    Raises ValueError where it is no directory of `transformers`, where weights are pickled or
    missing, or where a file is damaged, naming it.
    """
    path = Path(directory)
    if not path.is_dir():
        raise ValueError(
            f"Got {directory!r}, expected a directory that `save_pretrained` wrote, or a downloaded "
            "one: there is none here."
        )
    config = read_json(path / CONFIG)
    files = _weight_files(path)
    where: dict[str, Path] = {}
    for file in files:
        with _opened(file) as opened:
            where |= dict.fromkeys(opened.keys(), file)

    def read(name: str) -> np.ndarray:
        with _opened(where[name]) as opened:
            return opened.get_tensor(name)

    return Source(path, config, frozenset(where), read)


def _weight_files(path: Path) -> list[Path]:
    if (path / INDEX).exists():
        index = read_json(path / INDEX)
        files = sorted({path / name for name in index.get("weight_map", {}).values()})
        missing = [file.name for file in files if not file.exists()]
        if missing or not files:
            raise ValueError(
                f"{path / INDEX} names {missing or 'no files'}, which are not there: download the "
                "directory again."
            )
        return files
    if (path / WEIGHTS).exists():
        return [path / WEIGHTS]
    pickled = sorted(file.name for file in path.glob("*.bin"))
    if pickled:
        raise ValueError(
            f"{path} holds {pickled[0]}, a pickle, and no {WEIGHTS}: reading a pickle can run any "
            "code, so it is not read. Load it once with `transformers` where you trust it, and "
            "`model.save_pretrained(DIR)`, which writes safetensors."
        )
    raise ValueError(f"{path} holds no {WEIGHTS}, nor an index of several: nothing to read.")


def read_json(file: Path) -> dict:
    """Raises ValueError, naming the file, where it is missing or damaged."""
    if not file.exists():
        raise ValueError(
            f"{file.parent} holds no {file.name}: expected a directory of transformers."
        )
    try:
        return json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from error


def _opened(file: Path):
    try:
        return safe_open(file, "numpy")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is damaged, or no safetensors file: {error}") from error


def write_directory(
    directory: str,
    config: dict,
    tensors: Iterable[tuple[str, np.ndarray]],
    shard_bytes: int = SHARD_BYTES,
) -> list[Path]:
    """Writes config and tensors, a file at a time; returns the files of weights.

    No more than a file's worth of tensors is held. Files are named as `transformers` names them,
    and the index is written last.
    """
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    written: list[tuple[Path, list[str]]] = []
    total = 0

    def write(tensors: dict[str, np.ndarray]):
        file = path / f"model-{len(written) + 1:05d}.safetensors"
        save_file(tensors, file, metadata={"format": "pt"})
        written.append((file, list(tensors)))

    held: dict[str, np.ndarray] = {}
    for name, tensor in tensors:
        if held and sum(x.nbytes for x in held.values()) + tensor.nbytes > shard_bytes:
            write(held)
            held = {}
        held[name] = np.ascontiguousarray(tensor)
        total += tensor.nbytes
    write(held)

    (path / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")
    if len(written) == 1:
        return [written[0][0].replace(path / WEIGHTS)]
    names, files = {}, []
    for number, (file, held_names) in enumerate(written, 1):
        final = f"model-{number:05d}-of-{len(written):05d}.safetensors"
        files.append(file.replace(path / final))
        names |= dict.fromkeys(held_names, final)
    index = {"metadata": {"total_size": total}, "weight_map": names}
    (path / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")
    return files
