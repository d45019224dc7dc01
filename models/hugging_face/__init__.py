"""Hugging Face models, converted both ways: `transformers` directories to our parameters and back.

    source = open_source("t5-v1_1-small")
    imported = recognize(source)              # its `Config` and `Model`
    params = nested(read_params(source, imported))       # models.trees.nested
    write_model("exported", imported.config, params)

Each family is a record `family.Family` that a file in this folder registers. All files in this
folder are imported. To add a family, register a record in one of them or in a new file.
"""

import dataclasses
import importlib
import pkgutil
import types
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from flax import linen as nn

from .. import builders
from ..builders import Model
from ..config import Config
from ..heads import HEADS, classifiers
from ..trees import flattened
from .family import FAMILIES, Family, Fields, check_fields, class_labels, require
from .family import class_names as class_names
from .files import Tensor, TensorFiles, write_directory
from .files import check_holds_no_model as check_holds_no_model
from .files import open_source as open_source
from .files import read_json as read_json
from .files import write_generation_config as write_generation_config
from .links import exported, imported, named_tensors, tensor_shapes, unmatched

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

# Fields of `Config` that affect training and computation, not the function of the network.
TRAINING_FIELDS = (
    *("vocab_size", "heads", "num_classes", "num_ahead", "ahead"),
    *("init_stddev", "init_scaled_by_depth", "init_locality", "init_matching"),
    *("dropout_rate", "dropout_inside", "dropout_shared"),
    *("dtype", "quantization", "remat_policy", "scan_layers", "unroll_scan"),
)
# Values for a family's config.json in place of settings that a model does not have.
PLACEHOLDERS = dict(max_positions=512, num_types=2, num_experts=8) | dict(
    window=64, global_every=3, local_rope_theta=10_000.0
)
# Endings of the names of the `transformers` classes that have `generate`.
WRITING = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
OTHER_HEADS = ("ForQuestionAnswering", "ForMultipleChoice", "DoubleHeadsModel")
NOT_EXPRESSIBLE = "settings that it cannot express"


class Recognized(NamedTuple):
    """A Hugging Face model, converted to a `Model` of this package."""

    family: Family
    settings: dict  # keyword arguments of the builder `models.LAYOUT`
    heads: tuple[str, ...]
    model: Model
    # Prefix of tensor names that models with heads have and this directory lacks, or "".
    missing_prefix: str

    @property
    def config(self) -> Config:
        assert self.model.config is not None  # `recognize` made it from one
        return self.model.config

    def tensor_name(self, name: str) -> str:
        """Returns the name of a tensor in this directory, given its name in models with heads."""
        return name.removeprefix(self.missing_prefix)


def recognize(source: TensorFiles) -> Recognized:
    """Returns the model of a directory, after checking the names of all its tensors.

        recognize(open_source("t5-v1_1-small")).config.emb_dim        # 512

    Raises:
      ValueError: The architecture is unknown, a field of config.json is unknown or cannot be
        expressed by `Config`, or a tensor is extra or missing. The message names them.
    """
    hf = Fields(source.config)
    kind = hf.get("model_type")
    texts = [family for family in FAMILIES.values() if kind and family.type_with_images == kind]
    if texts:
        raise ValueError(
            f"Got model_type={kind!r} in {source.path}/config.json, a model that also reads "
            f"images, expected {texts[0].model_type!r}, its text model: load the model with "
            "transformers and save the text model separately."
        )
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(
            f"Got model_type={kind!r} in {source.path}/config.json, expected one of "
            f"{sorted(FAMILIES)}: register a record in models/hugging_face to add an architecture."
        )
    family = FAMILIES[kind]
    prefixed = any(name.startswith(family.base) for name in source.names)
    missing_prefix = "" if prefixed else family.base
    try:
        _check_architecture(hf, family.layout)
        settings = family.settings(
            hf, lambda name: name.removeprefix(missing_prefix) in source.names
        )
        settings |= family.tensor_settings(settings, partial(_read_any, source, missing_prefix))
        rows = hf["vocab_size"]
        check_fields(hf, family.harmless)
    except KeyError as error:
        raise ValueError(
            f"{source.path}/config.json (model_type {kind!r}) lacks {error}: download it again."
        ) from error
    heads = settings.pop("heads", ("vocabulary",))
    model = getattr(builders, family.layout)(rows, heads, **settings)
    recognized = Recognized(family, settings, heads, model, missing_prefix)
    _check_names(source, recognized)
    return recognized


def _read_any(source: TensorFiles, missing_prefix: str, name: str) -> np.ndarray | None:
    """Returns a tensor by its name in models with heads, or None if there is none."""
    name = name.removeprefix(missing_prefix)
    return source.read(name) if name in source.names else None


def _check_architecture(hf: Fields, layout: str) -> None:
    """Raises ValueError if general fields of config.json describe an unsupported network."""
    require(hf, is_decoder=False, add_cross_attention=False, tie_encoder_decoder=False)
    encoder_only = ("EncoderModel", "ForTokenClassification")  # in T5
    for name in hf.get("architectures") or []:
        if layout == "encoder_decoder" and name.endswith(encoder_only):
            raise ValueError(
                f"Got the class {name} in config.json, which has only the encoder of an "
                "encoder-decoder, expected both stacks: an encoder with relative positions is not "
                "supported. To classify tokens, import an encoder or a decoder."
            )
        if name.endswith(OTHER_HEADS):
            raise ValueError(
                f"Got the class {name} in config.json, whose head is not supported: expected a "
                "head for language modeling, sequence classification or token classification, or "
                "no head."
            )
    require(hf, is_encoder_decoder=layout == "encoder_decoder", pruned_heads={})


def _check_names(source: TensorFiles, recognized: Recognized) -> None:
    """Raises ValueError unless the directory has exactly the tensors of the model."""
    family = recognized.family
    config = recognized.config
    expected = {name for name, _, _ in named_tensors(family.links(config), config)}
    copies = family.copies(config)
    names = {recognized.missing_prefix + name for name in source.names}
    ignored = {name for name in names if family.ignores(name)}
    missing = expected - names - family.implied(config).keys()
    unexpected = names - expected - copies.keys() - ignored
    if missing or unexpected:
        raise ValueError(
            f"The tensors in {source.path} do not match the {family.model_type!r} that its "
            f"config.json describes: {unmatched(missing, unexpected)}."
        )
    for name in sorted(copies.keys() & names):
        original = copies[name]
        copied = source.read(recognized.tensor_name(name))
        if not np.array_equal(copied, source.read(recognized.tensor_name(original))):
            raise ValueError(
                f"{name} and {original} in {source.path} differ, expected the same values: the "
                f"family {family.model_type!r} ties them."
            )


def read_params(source: TensorFiles, recognized: Recognized) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (path, float32 array) of each parameter, and reads one tensor at a time.

    Raises ValueError before the first read if a tensor's shape differs from config.json.
    """
    config = recognized.config
    shapes = parameter_shapes(recognized.model)
    links = recognized.family.links(config)
    implied = recognized.family.implied(config)
    for full_name, expected in tensor_shapes(links, config, shapes).items():
        name = recognized.tensor_name(full_name)
        if source.shapes.get(name, expected) != expected:
            raise ValueError(
                f"Got {name} of shape {source.shapes[name]} in {source.files[name]}, expected "
                f"{expected} by {source.path / 'config.json'}: one of the two files belongs to a "
                "different model."
            )

    def read(full_name: str) -> np.ndarray:
        name = recognized.tensor_name(full_name)
        return source.read(name) if name in source.names else implied[full_name]

    yield from imported(links, config, shapes, read)


def write_model(
    directory: str,
    config: Config,
    params: Mapping[str, Any],
    *,
    family: Family | None = None,
    dtype: str = "float32",
    extra: Mapping[str, Any] = {},
    **settings: Any,
) -> Family:
    """Writes a directory that `transformers` loads, and returns its family.

        write_model("exported", model.config, params, dtype="bfloat16")

    The parameters that `left_out` names are not written.

    Args:
      family: family to export as. None: the first family that can express the model.
      dtype: type of the tensors, "float32" or "bfloat16".
      extra: further fields of config.json, such as special ids. A RoBERTa without a pad_token_id
        gets the id after which its position embedding starts.
      settings: keyword arguments of `files.write_directory`.

    Raises:
      ValueError: The family, or every family, cannot express the model; the message names the
        settings that differ. Or `extra` has fields that describe a different model. Or the model
        has a classification head that `transformers` cannot express. Or the last layer of the model
        is a parallel head.
    """
    if family is None:
        family = family_of(config)
    else:
        check_family(config, family)
    arrays = {path: np.asarray(x) for path, x in flattened(params).items()}
    if family.with_pad and extra.get("pad_token_id") is not None:
        config, arrays = family.with_pad(config, arrays, extra["pad_token_id"])
    values = {**family.unknown_ids, **extra, **family.config(config)}
    values |= {
        "model_type": family.model_type,
        "architectures": [family.architecture_of(config)],
        "vocab_size": config.vocab_size,
        "dtype": dtype,
    }
    _check_heads(config, family, left_out(family, config, params))
    classifies = set(classifiers()) & set(config.heads)
    if classifies and len(values.get("id2label") or {}) != config.num_classes:
        values |= class_labels([f"LABEL_{i}" for i in range(config.num_classes)])
    _check_read_back(config, values, family)
    untrained = family.untrained(config)
    tensors = chain(
        exported(family.links(config), config, arrays),
        (Tensor(name, x.shape, partial(np.asarray, x), "float32") for name, x in untrained.items()),
    )
    write_directory(directory, family.with_ids(values), tensors, dtype, **settings)
    return family


def _check_heads(config: Config, family: Family, omitted: Collection[str]) -> None:
    """Raises ValueError if `transformers` cannot compute the model's heads without these parts."""
    for head in set(classifiers()) & (set(config.heads) - family.heads):
        raise ValueError(
            f"Got a {family.model_type!r} with the head {head!r}, expected no classification head: "
            "transformers has no class for such a model. Train a model of another family."
        )
    if "projections_classes" in omitted:
        raise ValueError(
            f"Got a {family.model_type!r} with the heads {', '.join(config.heads)}, expected only "
            "'classes': in transformers, a model has either this head or the other heads."
        )
    if "decoder/ahead" in omitted and config.ahead == "parallel":
        raise ValueError(
            "Got a model with ahead='parallel', whose last layer is one of its heads: transformers "
            "does not support such heads. Convert a model with ahead='sequential'."
        )
    for kind in HEADS.values():
        if kind.replaces_top and f"projections_{kind.name}" in omitted:
            raise ValueError(
                f"Got a model with the head {kind.name!r}, whose output predicts the next token: "
                "transformers does not have such a layer. Convert a model of another objective."
            )


def has_untied_warning(family: Family, config: Config) -> bool:
    """Returns whether `transformers` warns that an export's logits are not tied."""
    return family.assumes_tied and "vocabulary" in config.heads and not config.logits_via_embedding


def check_family(config: Config, family: Family) -> None:
    """Raises ValueError if the family cannot express the model.

    The message names the settings that differ.
    """
    if config.layout != family.layout:
        raise ValueError(
            f"Got a model of layout {config.layout!r} to be exported as {family.model_type!r}, "
            f"expected layout {family.layout!r}: name another family."
        )
    if differ := _differences(config, family):
        raise ValueError(
            f"The family {family.model_type!r} cannot express this model, which differs in "
            f"{'; '.join(differ)}. Name another family, or train a model with the family's values."
        )


def _check_read_back(config: Config, values: Mapping[str, Any], family: Family) -> None:
    """Raises ValueError if the config.json describes a model that differs from `config`."""
    if differ := _differing(config, _read_back(config, values, family)):
        raise ValueError(
            f"Got further fields for config.json that describe a different {family.model_type!r}. "
            f"It differs from the model in {'; '.join(differ)}. Leave these fields out."
        )


def left_out(family: Family, config: Config, params: Mapping[str, Any]) -> list[str]:
    """Returns the parts of the model that `write_model` omits, since `transformers` lacks them.

        left_out(BERT, config, params)      # ["projections_replaced"]

    They are heads other than the vocabulary projection, "projections_NAME", and "decoder/ahead".
    """
    tensors = named_tensors(family.links(config), config)
    written = {at.path for _, _, locations in tensors for at in locations}
    omitted = (path.split("/") for path in flattened(params).keys() - written)
    return sorted({"/".join(p[: 1 if p[0].startswith("projections_") else 2]) for p in omitted})


def family_of(config: Config) -> Family:
    """Returns the first family that can express the model.

    Raises ValueError if there is no such family. The message names the settings in which the
    nearest family differs, and the families' presets of the same layout.
    """
    families = [family for family in FAMILIES.values() if family.layout == config.layout]
    candidates = [(_differences(config, family), family) for family in families]

    def distance(candidate):
        differ, family = candidate
        inexpressible = any(x.startswith(NOT_EXPRESSIBLE) for x in differ)
        return inexpressible, len(differ), len(set(config.heads) - family.heads)

    differ, family = min(candidates, key=distance)
    if differ:
        presets = [name for family in families for name in family.presets]
        raise ValueError(
            f"No Hugging Face family can express this model. The nearest, {family.model_type!r}, "
            f"differs in {'; '.join(differ)}. Train a model with the values of a family, such as "
            f"these presets have: {', '.join(f'models/{name}.gin' for name in presets)}."
        )
    return family


def _differences(config: Config, family: Family) -> list[str]:
    """Returns the settings that a round trip through the family's config.json changes."""
    fields = dataclasses.asdict(config)
    absent = {name: value for name, value in PLACEHOLDERS.items() if not fields[name]}
    derived = {name: getattr(config, name) for name in ("num_layers", "num_key_heads")}
    filled: Any = types.SimpleNamespace(**fields | absent | derived)
    for written in (config, filled):  # a config.json may need values that this model does not have
        try:
            values = family.config(written) | {"model_type": family.model_type}
            return _differing(config, _read_back(config, values, family))
        except _INEXPRESSIBLE as error:
            reason = str(error).removesuffix(".")
    return [f"{NOT_EXPRESSIBLE} ({reason})"]


def _differing(config: Config, exported: Config) -> list[str]:
    """Returns the settings that affect the network's function and differ in two models."""
    before = resolved_settings(config)
    after = resolved_settings(exported)
    unused = set(TRAINING_FIELDS)
    if "replaced" in config.heads and "vocabulary" not in config.heads:  # a discriminator
        unused |= {"logits_via_embedding", "vocabulary_layer", "vocabulary_bias"}
    if "vocabulary" not in config.heads:
        unused.add("vocabulary_activation")
    if not set(classifiers()) & set(config.heads):
        unused.add("classifier_layer")
    return [
        f"{name}={before[name]!r} instead of {after[name]!r}"
        for name in before
        if name not in unused and before[name] != after[name]
    ]


# Errors that a family raises for settings that it cannot write or could not read back.
_INEXPRESSIBLE = (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError)


def _read_back(config: Config, values: Mapping[str, Any], family: Family) -> Config:
    """Returns the `Config` that the fields of a config.json describe.

    The model has the same tensors as a model of `config`.
    """
    tied = config.logits_via_embedding
    tensors = {"lm_head.weight": not tied, "final_logits_bias": config.vocabulary_bias}
    settings = family.settings(dict(values), lambda name: tensors.get(name, False))
    settings |= family.tensor_settings(settings, family.untrained(config).get)
    settings.pop("heads", None)
    return getattr(builders, family.layout)(config.vocab_size, **settings).config


def resolved_settings(config: Config) -> dict:
    """Returns the settings, with each None replaced by the value that it stands for.

    Every attention mechanism that computes softmax attention is named "plain".
    """
    defaults: dict[str, Any] = {
        "attention": "plain" if config.mechanism.is_softmax else config.attention,
        "num_kv_heads": config.num_key_heads,
        "attention_scale": config.score_scale,
    }
    if config.global_every is not None:
        defaults["local_rope_theta"] = config.local_rope_theta or config.rope_theta
    if config.vocabulary_layer:
        defaults["vocabulary_activation"] = (
            config.vocabulary_activation or config.mlp_activations[0]
        )
    return dataclasses.asdict(config) | defaults


@lru_cache(maxsize=16)
def parameter_shapes(model: Model) -> Mapping[str, tuple[int, ...]]:
    """Returns the shape of each parameter by its path, without allocating parameters.

    A conversion needs the shapes several times, and tracing a model takes long.
    """
    params = flattened(nn.unbox(builders.abstract_params(model)))
    return types.MappingProxyType({path: tuple(x.shape) for path, x in params.items()})
