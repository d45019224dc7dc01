"""Reads the settings for `generate` of `transformers` from the files of an imported model.

For example:

    generation_rules("runs/bart/hugging_face")      # GenerationRules(forced_first=0, …)
    search_options("runs/bart/hugging_face", "encoder_decoder")         # ["--beams=4", …]
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...inference import Decoding
from ...inference.decoding.generation_rules import GenerationRules
from ...models import Model
from ...models.hugging_face import read_json
from ...models.hugging_face.files import CONFIG, GENERATION

# Settings that change the output of `generate` and that `predict` does not have. A value that is
# false, such as 0, has no effect, and neither has 1 for some settings.
_OFF_IF_FALSE = """
    forced_decoder_ids force_words_ids constraints sequence_bias watermarking_config stop_strings
    exponential_decay_length_penalty penalty_alpha dola_layers epsilon_cutoff eta_cutoff
    diversity_penalty encoder_no_repeat_ngram_size top_h token_healing renormalize_logits
""".split()
_OFF_IF_ONE = "encoder_repetition_penalty typical_p num_beam_groups guidance_scale".split()
# Settings of `generate` that are options of `predict`, with their names there and defaults.
OPTIONS = {
    "num_beams": ("beams", 1),
    "length_penalty": ("length_penalty", 1.0),
    "repetition_penalty": ("repetition_penalty", 1.0),
}
SAMPLING = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None}  # defaults


def writes_text(model: Model) -> bool:
    """Returns whether a model predicts the tokens of a text from left to right."""
    return model.layout != "encoder" and "vocabulary" in model.heads


def generation_fields(folder: Path | str) -> dict[str, Any]:
    """Returns the settings of generation_config.json, or of config.json if that file is missing."""
    for name in (GENERATION, CONFIG):
        if (file := Path(folder) / name).exists():
            return read_json(file)
    return {}


def generation_rules(folder: Path | str) -> GenerationRules:
    """Returns the rules for generated tokens in the files of an imported model.

    Raises ValueError for a setting that `predict` cannot follow or that has a wrong type.
    """
    fields = generation_fields(folder)
    for name in (*_OFF_IF_FALSE, *_OFF_IF_ONE):
        value = fields.get(name)
        if value and not (value == 1 and name in _OFF_IF_ONE):
            raise _unsupported(folder, name, value)
    if (early := fields.get("early_stopping")) not in (None, False, True):
        raise _unsupported(folder, "early_stopping", early)
    words = fields.get("bad_words_ids") or []
    if any(len(word) != 1 for word in words):
        raise _unsupported(folder, "bad_words_ids", words)

    def ids(name: str) -> tuple[int, ...]:
        value = fields.get(name)
        several = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(x, int) and x >= 0 for x in several):
            raise ValueError(f"Got {name}={value!r} in {folder}, expected ids, which are numbers.")
        return tuple(several)

    def number(name: str) -> int:
        value = fields.get(name) or 0
        if not isinstance(value, int):
            raise ValueError(f"Got {name}={value!r} in {folder}, expected a whole number.")
        return value

    stops = ids("eos_token_id")
    first = ids("forced_bos_token_id")
    if len(first) > 1:
        raise _unsupported(folder, "forced_bos_token_id", fields["forced_bos_token_id"])
    if not first and fields.get("force_bos_token_to_be_generated"):  # an older name
        first = ids("bos_token_id")
    # In transformers min_new_tokens replaces min_length, even if it is 0.
    is_length_replaced = fields.get("min_new_tokens") is not None
    return GenerationRules(
        stop_ids=stops,
        no_repeat_ngram=number("no_repeat_ngram_size"),
        banned=tuple(word[0] for word in words if word[0] not in stops),
        min_slots=0 if is_length_replaced else number("min_length"),
        min_new=number("min_new_tokens"),
        forced_first=first[0] if first else None,
        forced_last=ids("forced_eos_token_id"),
        suppressed=ids("suppress_tokens"),
        suppressed_first=ids("begin_suppress_tokens"),
        early_stopping=bool(early),
    )


def _unsupported(folder: Path | str, name: str, value: Any) -> ValueError:
    file = GENERATION if (Path(folder) / GENERATION).exists() else CONFIG
    return ValueError(
        f"Got {name}={value!r} in {Path(folder) / file}, expected no such setting: `pretrax "
        f"predict` cannot follow it. Delete {name} from that file to generate without it."
    )


def start_of_decoder(folder: Path | str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entry of config.json for the id that a decoder starts with.

    Raises ValueError if generation_config.json and config.json have different ids.
    """
    name = "decoder_start_token_id"
    trained = config.get(name)
    written = generation_fields(folder).get(name)
    if trained is not None and written not in (None, trained):
        raise ValueError(
            f"Got {name}={trained!r} in {Path(folder) / CONFIG} and {written!r} in {GENERATION}, "
            "expected the same id: give both files the id that the model was trained with."
        )
    return {name: written if trained is None else trained}


def search_options(folder: Path | str, layout: str) -> list[str]:
    """Returns options that make `predict` search and sample as `generate` does with these files.

    Returns no options if `predict` does not support the combination, such as beams with sampling.
    """
    fields = generation_fields(folder)
    chosen = {
        option: fields[name]
        for name, (option, default) in OPTIONS.items()
        if fields.get(name) not in (None, default)
    }
    if fields.get("do_sample"):
        given = {name: fields[name] for name in SAMPLING if fields.get(name) is not None}
        chosen |= {
            name: x
            for name, x in (SAMPLING | given).items()
            if x is not None and (name, x) not in (("top_p", 1.0), ("top_k", 0))
        }
    if (longest := fields.get("max_new_tokens")) is not None:
        chosen |= {"max_new": longest} if longest != Decoding().max_new else {}
    elif layout == "encoder_decoder" and fields.get("max_length") not in (None, 20):
        chosen["max_new"] = fields["max_length"] - 1  # max_length counts the start token
    try:
        Decoding(**chosen)
    except ValueError:
        return []
    return [f"--{name}={value}" for name, value in chosen.items()]
