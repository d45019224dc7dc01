"""Sentence models: directories of `sentence-transformers`, whose modules pool hidden states.

pooling_of("all-MiniLM-L6-v2")                      # "mean"
write_modules("exported", 384, "mean")              # modules.json, 1_Pooling, 2_Normalize
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from pretrax.models.hugging_face.files import read_json

MODULES, POOLING, SETTINGS = "modules.json", "1_Pooling", "config_sentence_transformers.json"
POOLINGS = {"cls": "first", "mean": "mean"}  # their name -> ours
KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")
PACKAGE = "sentence_transformers.models"


def pooling_of(directory: Path | str) -> str | None:
    """Returns "first" or "mean", as the directory's modules pool; None: it is no sentence model.

    Raises ValueError for another pooling, modules that change embeddings in another way, and a prompt
    before every text.
    """
    path = Path(directory)
    if not (path / POOLING).exists():
        return None
    modules = json.loads((path / MODULES).read_text("utf-8")) if (path / MODULES).exists() else []
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    if unknown := [kind for kind in kinds if kind not in KNOWN_MODULES]:
        raise ValueError(
            f"Got the module {unknown[0]!r} in {path / MODULES}, expected {', '.join(KNOWN_MODULES)} "
            f"alone. To import the model without its pooling, delete {path / POOLING}."
        )
    settings = read_json(path / SETTINGS) if (path / SETTINGS).exists() else {}
    if settings.get("default_prompt_name"):
        raise ValueError(
            f"Got default_prompt_name={settings['default_prompt_name']!r} in {path / SETTINGS}, "
            "expected null: set null there, and write the prompt before each text yourself."
        )
    pooling = read_json(path / POOLING / "config.json")
    older = [
        name.removeprefix("pooling_mode_").removesuffix("_token").removesuffix("_tokens")
        for name, on in pooling.items()
        if name.startswith("pooling_mode_") and on
    ]
    given = pooling.get("pooling_mode", older)
    names = [given] if isinstance(given, str) else given
    if len(names) != 1 or names[0] not in POOLINGS:
        raise ValueError(
            f"Got the pooling {' and '.join(map(str, names)) or 'none'} in {path / POOLING}, expected "
            f"one of {', '.join(POOLINGS)}. To import the model without it, delete the folder."
        )
    return POOLINGS[names[0]]


def write_modules(
    directory: Path | str,
    emb_dim: int,
    pooling: str,
    head: Mapping[str, Any] | None = None,
) -> None:
    """Writes the modules that pool as the model was trained to, beside its weights.

    A modules.json that is there, of an imported model, stays.

    Args:
      pooling: "first" or "mean".
      head: the kernel [E, E] and bias [E] of the head "embedding", a layer with tanh after pooling.
    """
    path = Path(directory)
    theirs = next(name for name, ours in POOLINGS.items() if ours == pooling)
    modes = {f"pooling_mode_{n}": n.startswith(theirs) for n in ("cls_token", "mean_tokens")}
    configs: dict[str, dict] = {"Pooling": {"word_embedding_dimension": emb_dim} | modes}
    if head is not None:
        sizes = {"in_features": emb_dim, "out_features": emb_dim, "bias": True}
        configs["Dense"] = sizes | {"activation_function": "torch.nn.modules.activation.Tanh"}
    configs["Normalize"] = {}
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{PACKAGE}.Transformer"}]
    for number, (kind, values) in enumerate(configs.items(), 1):
        folder = f"{number}_{kind}"
        name = {"idx": number, "name": str(number), "path": folder, "type": f"{PACKAGE}.{kind}"}
        modules.append(name)
        (path / folder).mkdir(exist_ok=True)
        (path / folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", "utf-8")
    if head is not None:
        kernel, bias = (np.asarray(head[name], np.float32) for name in ("kernel", "bias"))
        tensors = {"linear.weight": np.ascontiguousarray(kernel.T), "linear.bias": bias}
        save_file(tensors, path / "2_Dense" / "model.safetensors", metadata={"format": "pt"})
    if not (path / MODULES).exists():
        (path / MODULES).write_text(json.dumps(modules, indent=2) + "\n", "utf-8")
