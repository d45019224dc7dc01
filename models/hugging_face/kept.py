"""Keeps the files next to the weights of an imported model for a later export.

For example:

    keep_files(files_to_keep("t5-v1_1-small"), "runs/t5/hugging_face")  # config, tokenizer, license
    put_back("runs/t5/hugging_face", "exported")
"""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...settings.directories import own_file
from .files import CONFIG, read_json

WEIGHTS = (".safetensors", ".bin", ".index.json", ".msgpack", ".h5", ".onnx", ".pt", ".gguf")


def files_to_keep(source: Path | str) -> list[Path]:
    """Returns all files of `source` except its weights and its folders.

    Raises ValueError for a link to a file outside `source`.
    """
    names = sorted(file.name for file in Path(source).iterdir() if not file.is_dir())
    return [own_file(source, name) for name in names if not name.endswith(WEIGHTS)]


def keep_files(files: Iterable[Path], folder: Path | str) -> None:
    """Copies files to a folder."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copyfile(file, Path(folder) / file.name)


def kept_config(folder: Path | str) -> dict[str, Any]:
    """Returns the kept config.json, or an empty dict if there is none."""
    file = Path(folder) / CONFIG
    return read_json(file) if file.exists() else {}


def put_back(folder: Path | str, target: Path | str) -> None:
    """Copies kept files to the folder of an export, except config.json, which the export has."""
    for file in sorted(Path(folder).glob("*")):
        if file.name != CONFIG:
            shutil.copyfile(file, Path(target) / file.name)
