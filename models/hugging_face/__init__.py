"""Hugging Face models, both ways: `transformers` directories to parameters of ours, and back.

    source = open_source("t5-v1_1-small")
    imported = recognise(source)              # which model it is
    params = nested(read_params(source, imported))       # of models.trees
    write_model("exported", imported.config, params)

Adding a family is a module with four functions (see `family.Family`), and its name below.
"""

import dataclasses
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import linen as nn

from pretrax.models import builders
from pretrax.models.builders import Model
from pretrax.models.config import Config
from pretrax.models.hugging_face import bart, bert, gpt2, llama, modernbert, t5
from pretrax.models.hugging_face.family import Family, class_names
from pretrax.models.hugging_face.files import Source, open_source, read_json, write_directory
from pretrax.models.hugging_face.links import (
    exported,
    imported,
    named_tensors,
    place,
    shape_of_theirs,
    unmatched,
)
from pretrax.models.trees import named

__all__ = [
    "FAMILIES",
    "Recognised",
    "check_names",
    "class_names",
    "family_of",
    "left_out",
    "open_source",
    "parameter_shapes",
    "read_json",
    "read_params",
    "recognise",
    "write_model",
]

FAMILIES = {
    family.model_type: family
    for family in (
        *(t5.T5, t5.MT5, t5.UMT5, bart.BART),
        *(bert.BERT, bert.ROBERTA, modernbert.MODERNBERT),
        *(gpt2.GPT2, llama.LLAMA, llama.QWEN3),
    )
}

# Fields of `Config` that say how a network is trained and computed, not what it is.
NOT_OF_THE_NETWORK = (
    *(
        "vocab_size",
        "heads",
        "num_classes",
        "num_ahead",
        "ahead",
        "init_stddev",
        "init_scaled_by_depth",
    ),
    *("dropout_rate", "dropout_shared", "dtype", "remat_policy", "scan_layers"),
)
# What a family's config.json is written with in place of what a model has not.
STAND_INS = {
    **{"max_positions": 512, "num_types": 2, "window": 64, "global_every": 3},
    **{"local_rope_theta": 10_000.0},
}
NO_WORD = "much that it has no word for"


class Recognised(NamedTuple):
    """A model of theirs, in our terms."""

    family: Family
    settings: dict  # keywords of the builder `models.LAYOUT`
    heads: tuple[str, ...]
    model: Model
    prefixed: bool  # whether names have the family's prefix, as those of models with heads do

    @property
    def config(self) -> Config:
        return self.model.config


def recognise(source: Source) -> Recognised:
    """Which model of ours a directory holds, checked tensor by tensor before any is read.

    Raises ValueError for an unknown architecture, for settings that no switch makes, and for
    tensors left over or missing, all by name.
    """
    kind = source.config.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(
            f"Got model_type={kind!r} in {source.path}/config.json, expected one of "
            f"{sorted(FAMILIES)}: another architecture needs a module of models/hugging_face."
        )
    family = FAMILIES[kind]
    prefixed = any(name.startswith(family.base) for name in source.names)

    def has(name: str) -> bool:
        named = name if prefixed else name.removeprefix(family.base)
        return named in source.names

    try:
        settings = family.settings(source.config, has)
        rows = source.config["vocab_size"]
    except KeyError as error:
        raise ValueError(
            f"{source.path}/config.json, of model_type {kind!r}, lacks {error}: download it again."
        ) from error
    heads = settings.pop("heads", ("vocabulary",))
    model = getattr(builders, family.layout)(rows, heads, **settings)
    found = Recognised(family, settings, heads, model, prefixed)
    check_names(source, found)
    return found


def check_names(source: Source, found: Recognised) -> None:
    """Raises ValueError unless every tensor has its place, and every place its tensor."""
    family, config = found.family, found.config
    expected = {name for name, _, _ in named_tensors(family.links(config), config)}
    copies = family.copies(config)
    names = {_full(found, name) for name in source.names}
    ignored = {name for name in names if name.endswith(family.ignored)} if family.ignored else set()
    missing, left = expected - names, names - expected - copies.keys() - ignored
    if missing or left:
        raise ValueError(
            f"The tensors of {source.path} are not those of a {family.model_type!r} as its "
            f"config.json describes it: {unmatched(missing, left)}."
        )
    for name in sorted(copies.keys() & names):
        of = copies[name]
        one, other = (source.read(_theirs(found, n)) for n in (name, of))
        if not np.array_equal(one, other):
            raise ValueError(
                f"{name} and {of} of {source.path} differ, expected them to be one: the family "
                f"{family.model_type!r} ties them."
            )


def read_params(source: Source, found: Recognised) -> Iterator[tuple[str, np.ndarray]]:
    """(path, float32 array) of each of our parameters, one at a time.

    Raises ValueError for a tensor whose shape is not that of config.json, before any is read.
    """
    shapes = parameter_shapes(found.model)
    links = found.family.links(found.config)
    _check_shapes(source, found, links, shapes)
    read = lambda name: source.read(_theirs(found, name))  # noqa: E731
    yield from imported(links, found.config, shapes, read)


def _check_shapes(source: Source, found: Recognised, links, ours: Mapping[str, tuple[int, ...]]):
    for name, link, layer in named_tensors(links, found.config):
        places = [place(part, layer, found.config) for part in link.parts]
        held = [ours[p.path][0 if p.index is None else 1 :] for p in places]
        expected, theirs = shape_of_theirs(link, held), _theirs(found, name)
        if source.shapes[theirs] != expected:
            raise ValueError(
                f"Got {theirs} of shape {source.shapes[theirs]} in {source.files[theirs]}, expected "
                f"{expected} by {source.path / 'config.json'}: one of the two is of another model."
            )


def write_model(
    directory: str,
    config: Config,
    params: Mapping[str, Any],
    *,
    family: Family | None = None,
    dtype: str = "float32",
    extra: Mapping[str, Any] = {},
    **settings,
) -> Family:
    """Writes a directory that `transformers` loads; returns the family it is of.

    Args:
      params: our parameters, a tree of arrays.
      family: which; None: the first whose models this one is among.
      dtype: "float32" or "bfloat16", of the tensors.
      extra: what config.json has beside what the network tells: ids, and whatever is to be kept.
        A RoBERTa without a pad_token_id gets the one that its table of positions begins after.

    What `left_out` names is not written.

    Raises ValueError where no family has such a model, saying by which switches it differs, where
    its classes have no place there, and where its last layer is kept apart.
    """
    family = family or family_of(config)
    arrays = {path: np.asarray(x) for path, x in named(params).items()}
    if family is bert.ROBERTA and extra.get("pad_token_id") is not None:
        config, arrays = bert.counted_from_pad(config, arrays, extra["pad_token_id"])
    values = dict(extra) | family.config(config)
    values |= {
        "model_type": family.model_type,
        "architectures": [family.architecture_of(config)],
        "vocab_size": config.vocab_size,
        "dtype": dtype,
    }
    if "classes" in config.heads and len(values.get("id2label") or {}) != config.num_classes:
        names = {str(i): f"LABEL_{i}" for i in range(config.num_classes)}
        values |= {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}
    left = left_out(family, config, params)
    if "projections_classes" in left:
        raise ValueError(
            f"Got a {family.model_type!r} with the head 'classes', expected one without, or a BERT "
            "or RoBERTa without the head 'pair': in transformers its classes have another network, "
            "or the pair's pooler has their place."
        )
    if "decoder/ahead" in left and config.ahead == "parallel":
        raise ValueError(
            "Got a model that predicts ahead in parallel (ahead='parallel'), whose last layer is one "
            "of its heads: transformers has none such. Convert one with ahead='sequential'."
        )
    tensors = exported(family.links(config), config, arrays)
    write_directory(directory, values, tensors, dtype, **settings)
    return family


def left_out(family: Family, config: Config, params: Mapping[str, Any]) -> list[str]:
    """The parts of the model that `write_model` leaves out, for `transformers` has none such.

        left_out(BERT, config, params)      # ["projections_replaced"]

    They are heads beside the vocabulary's, "projections_NAME", and "decoder/ahead".
    """
    placed = {
        place(part, layer, config).path
        for _, link, layer in named_tensors(family.links(config), config)
        for part in link.parts
    }
    left = (path.split("/") for path in named(params).keys() - placed)
    return sorted({"/".join(p[: 1 if p[0].startswith("projections_") else 2]) for p in left})


def family_of(config: Config) -> Family:
    """The family of a network.

    Raises ValueError, naming the switches in which the nearest family differs.
    """
    layout = "decoder" if not config.num_encoder_layers else "encoder_decoder"
    layout = "encoder" if not config.num_decoder_layers else layout
    found = [
        (_differences(config, family), family)
        for family in FAMILIES.values()
        if family.layout == layout
    ]
    differ, family = min(found, key=lambda one: (NO_WORD in one[0], len(one[0])))
    if differ:
        raise ValueError(
            f"No family of Hugging Face has this model. The nearest, {family.model_type!r}, differs "
            f"in {'; '.join(differ)}. Train one with these as they are there."
        )
    return family


def _differences(config: Config, family: Family) -> list[str]:
    """The switches that do not survive a round trip through the family's config.json."""
    there = _round_trip(config, config, family)
    if there is None:  # its config.json needs values that this model has not
        fields = dataclasses.asdict(config)
        absent = {name: value for name, value in STAND_INS.items() if not fields[name]}
        keys = {"num_key_heads": config.num_key_heads}
        there = _round_trip(config, types.SimpleNamespace(**fields | absent | keys), family)
    if there is None:
        return [NO_WORD]
    ours, theirs = _meaning(config), _meaning(there)
    return [
        f"{name}: {ours[name]!r}, there {theirs[name]!r}"
        for name in ours
        if name not in NOT_OF_THE_NETWORK and ours[name] != theirs[name]
    ]


def _round_trip(config: Config, written: Any, family: Family) -> Config | None:
    """What is read of the config.json that `written` becomes; None where it becomes none."""
    try:
        values = family.config(written) | {"model_type": family.model_type}
        tied = config.logits_via_embedding
        there = {"lm_head.weight": not tied, "final_logits_bias": config.vocabulary_bias}
        settings = family.settings(values, lambda name: there.get(name, False))
        settings.pop("heads", None)
        return getattr(builders, family.layout)(config.vocab_size, **settings).config
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None


def _meaning(config: Config) -> dict:
    """The switches, with what those mean that are left to others."""
    defaults = {"num_kv_heads": config.num_key_heads, "attention_scale": config.score_scale}
    return dataclasses.asdict(config) | defaults


def parameter_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter, by path; nothing is allocated."""
    params = named(nn.unbox(builders.abstract_params(model)))
    return {path: tuple(x.shape) for path, x in params.items()}


def _full(found: Recognised, name: str) -> str:
    """A name as models with heads have it."""
    return name if found.prefixed else found.family.base + name


def _theirs(found: Recognised, name: str) -> str:
    return name if found.prefixed else name.removeprefix(found.family.base)
