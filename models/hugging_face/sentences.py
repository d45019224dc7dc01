"""Sentence models: directories of `sentence-transformers`, whose modules pool hidden states.

For example:

    open_modules("all-MiniLM-L6-v2").pooling            # "mean"
    write_modules("exported", 384, "mean")              # modules.json, 1_Pooling, 2_Normalize
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ...settings.directories import own_file
from ...settings.system_errors import in_words
from .files import WEIGHTS, read_json

MODULES = "modules.json"
POOLING = "1_Pooling"
SETTINGS = "config_sentence_transformers.json"
Pooling = Literal["first", "mean"]
POOLINGS: dict[str, Pooling] = {"cls": "first", "mean": "mean"}  # their name -> our name
KNOWN_MODULES = ("Transformer", "Pooling", "Dense", "Normalize")  # in this order
PACKAGE = "sentence_transformers.models"
TANH = "torch.nn.modules.activation.Tanh"


class Modules(NamedTuple):
    """The modules after the Transformer."""

    pooling: Pooling
    dense: Mapping[str, np.ndarray] | None = None  # layer with tanh: kernel [E, E], bias [E]


def open_modules(directory: Path | str) -> Modules | None:
    """Returns the modules of a directory, or None if it has no pooling module.

    Raises ValueError for an unsupported pooling, for modules that change embeddings in other ways,
    and for a prompt before every text.
    """
    path = Path(directory)
    if not (path / POOLING).exists():
        return None
    modules = read_json(path / MODULES, list) if (path / MODULES).exists() else []
    if not all(isinstance(module, dict) and "type" in module for module in modules):
        raise ValueError(f"{path / MODULES} is damaged: expected a list of objects with a type.")
    folders = {str(m["type"]).rpartition(".")[2]: str(m.get("path", "")) for m in modules}
    if unknown := [kind for kind in folders if kind not in KNOWN_MODULES]:
        raise ValueError(
            f"Got the module {unknown[0]!r} in {path / MODULES}, expected only "
            f"{', '.join(KNOWN_MODULES)}. To import the model without its pooling, delete "
            f"{path / POOLING}."
        )
    if len(folders) < len(modules) or list(folders) != [x for x in KNOWN_MODULES if x in folders]:
        raise ValueError(
            f"Got the modules {', '.join(folders)} in {path / MODULES}, expected each module at "
            f"most once, in the order {', '.join(KNOWN_MODULES)}."
        )
    settings = read_json(path / SETTINGS) if (path / SETTINGS).exists() else {}
    if settings.get("default_prompt_name"):
        raise ValueError(
            f"Got default_prompt_name={settings['default_prompt_name']!r} in {path / SETTINGS}, "
            "expected null: set it to null, and put the prompt before each text yourself."
        )
    dense = _dense(path, folders["Dense"]) if "Dense" in folders else None
    return Modules(_pooling(path), dense)


def _pooling(path: Path) -> Pooling:
    pooling = read_json(path / POOLING / "config.json")
    flags = (
        re.fullmatch("pooling_mode_(.*?)(_tokens?)?", name) for name, on in pooling.items() if on
    )
    names = pooling.get("pooling_mode", [flag[1] for flag in flags if flag])
    names = [names] if isinstance(names, str) else names
    if len(names) != 1 or names[0] not in POOLINGS:
        raise ValueError(
            f"Got the pooling {' and '.join(map(str, names)) or 'none'} in {path / POOLING}, "
            f"expected one of {', '.join(POOLINGS)}. To import the model without it, delete the "
            "folder."
        )
    return POOLINGS[names[0]]


def _dense(path: Path, folder: str) -> dict[str, np.ndarray]:
    """Returns the layer after pooling. Raises ValueError unless it is square and has tanh."""
    config = read_json(own_file(path, f"{folder}/config.json"))
    got = {name: config.get(name) for name in ("in_features", "out_features", "bias")}
    got["activation"] = str(config.get("activation_function", TANH)).rpartition(".")[2]
    width = got["in_features"]
    if got != {"in_features": width, "out_features": width, "bias": True, "activation": "Tanh"}:
        layer = ", ".join(f"{name}={value!r}" for name, value in got.items())
        raise ValueError(
            f"Got {layer} in {path / folder / 'config.json'}, expected equal numbers of input and "
            "output features, a bias and Tanh: other layers are not supported."
        )
    file = own_file(path, f"{folder}/{WEIGHTS}")
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{file} is missing, damaged or not a safetensors file: {in_words(error)}"
        ) from error
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != {"linear.weight": (width, width), "linear.bias": (width,)}:
        raise ValueError(
            f"Got tensors of the shapes {shapes} in {file}, expected linear.weight of shape "
            f"{(width, width)} and linear.bias of shape {(width,)}."
        )
    kernel, bias = (tensors[f"linear.{name}"].astype(np.float32) for name in ("weight", "bias"))
    return {"kernel": np.ascontiguousarray(kernel.T), "bias": bias}


def write_modules(
    directory: Path | str, emb_dim: int, pooling: str, head: Mapping[str, Any] | None = None
) -> None:
    """Writes modules that pool as in training, next to the weights of the model.

    The modules.json of an imported model is kept.

    Args:
      emb_dim: E, the width of the hidden states.
      pooling: "first" or "mean".
      head: the kernel [E, E] and bias [E] of the head "embedding", a layer with tanh after pooling.
    """
    path = Path(directory)
    mode = next(name for name, ours in POOLINGS.items() if ours == pooling)
    modes = {f"pooling_mode_{n}": n.startswith(mode) for n in ("cls_token", "mean_tokens")}
    configs: dict[str, dict] = {"Pooling": {"word_embedding_dimension": emb_dim} | modes}
    if head is not None:
        sizes = {"in_features": emb_dim, "out_features": emb_dim, "bias": True}
        configs["Dense"] = sizes | {"activation_function": TANH}
    configs["Normalize"] = {}
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{PACKAGE}.Transformer"}]
    for number, (kind, values) in enumerate(configs.items(), 1):
        folder = f"{number}_{kind}"
        module = {"idx": number, "name": str(number), "path": folder, "type": f"{PACKAGE}.{kind}"}
        modules.append(module)
        (path / folder).mkdir(exist_ok=True)
        (path / folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", "utf-8")
    if head is not None:
        kernel, bias = (np.asarray(head[name], np.float32) for name in ("kernel", "bias"))
        tensors = {"linear.weight": np.ascontiguousarray(kernel.T), "linear.bias": bias}
        save_file(tensors, path / "2_Dense" / WEIGHTS, metadata={"format": "pt"})
    if not (path / MODULES).exists():
        (path / MODULES).write_text(json.dumps(modules, indent=2) + "\n", "utf-8")
