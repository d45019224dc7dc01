"""Files beside the weights of an imported model, kept so that an export has them again.

keep_files("t5-v1_1-small", "runs/t5/hugging_face")      # config, tokenizer, licence
put_back("runs/t5/hugging_face", "exported")
"""

import shutil
from pathlib import Path
from typing import Any

from pretrax.models.hugging_face.files import read_json

CONFIG = "config.json"
WEIGHTS = (".safetensors", ".bin", ".index.json", ".msgpack", ".h5", ".onnx", ".pt", ".gguf")


def keep_files(source: Path | str, folder: Path | str) -> None:
    """Copies all files of `source` but its weights; folders within it are left out."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for file in sorted(Path(source).iterdir()):
        if file.is_file() and not file.name.endswith(WEIGHTS):
            shutil.copyfile(file, Path(folder) / file.name)


def kept_config(folder: Path | str) -> dict[str, Any]:
    """The kept config.json; empty where none is."""
    file = Path(folder) / CONFIG
    return read_json(file) if file.exists() else {}


def put_back(folder: Path | str, target: Path | str) -> None:
    """Copies kept files beside an export, whose own config.json stays."""
    for file in sorted(Path(folder).glob("*")):
        if file.name != CONFIG:
            shutil.copyfile(file, Path(target) / file.name)
