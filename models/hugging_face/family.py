"""`Family`: how a Hugging Face model_type maps to our models, and helpers for writing a family.

The file of each family registers its records with `register_families`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..config import Config
from ..heads import classifiers
from .links import Link

# Hugging Face's names of activations -> our names. Their "gelu" is exact, and our "gelu" is the
# tanh approximation.
ACTIVATIONS = {
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
}
THEIR_ACTIVATIONS = {"gelu_exact": "gelu", "gelu": "gelu_new", "silu": "silu", "relu": "relu"}


def field_names(words: str) -> frozenset[str]:
    """Returns the names of fields in a text, which are separated by spaces."""
    return frozenset(words.split())


# Fields of any config.json that do not change hidden states or logits. They are metadata of
# transformers, special ids, names of classes, and settings of training, the loss or `generate`.
HARMLESS = field_names("""
    _name_or_path architectures model_type transformers_version torch_dtype dtype tokenizer_class
    return_dict output_hidden_states output_attentions output_past use_cache torchscript
    chunk_size_feed_forward gradient_checkpointing use_bfloat16 xla_device
    id2label label2id num_labels _num_labels problem_type finetuning_task task_specific_params
    pad_token_id bos_token_id eos_token_id cls_token_id sep_token_id mask_token_id unk_token_id
    decoder_start_token_id forced_bos_token_id forced_eos_token_id prefix
    bos_token eos_token pad_token unk_token cls_token sep_token mask_token
    initializer_range attention_dropout classifier_dropout
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores
    return_dict_in_generate remove_invalid_values exponential_decay_length_penalty suppress_tokens
    begin_suppress_tokens force_bos_token_to_be_generated
""")


class Fields(dict):
    """The fields of a config.json. It records which fields were read.

    Indexing treats a null field as missing, and raises KeyError.

    >>> hf = Fields(hidden_size=8, hidden_act="gelu")
    >>> hf["hidden_size"], hf.get("head_dim", 4), sorted(hf.read)
    (8, 4, ['head_dim', 'hidden_size'])
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        if (value := self.get(name)) is None:
            raise KeyError(name)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)


class Family(NamedTuple):
    """A family of models: a `model_type` of `config.json`."""

    model_type: str
    architecture: str  # class of an export if no class of `by_heads` fits
    layout: str  # name of the builder: "encoder_decoder", "decoder" or "encoder"
    base: str  # prefix of tensor names, which models without heads lack
    # (config.json, name -> whether the tensor exists) -> fields of Config. It reads every field
    # that changes the outputs, and rejects values that Config cannot express.
    settings: Callable[[dict, Callable[[str], bool]], dict]
    config: Callable[[Config], dict]  # Config -> config.json without ids
    links: Callable[[Config], list[Link]]  # Config -> how tensors map to parameters
    copies: Callable[[Config], dict[str, str]]  # Config -> tensors that copy others, by name
    # (settings, name -> tensor or None) -> further fields of Config, which tensors determine.
    tensor_settings: Callable[[dict, Callable[[str], Any]], dict] = lambda settings, read: {}
    # Fields that do not change any output, in addition to `HARMLESS`.
    harmless: frozenset[str] = frozenset()
    # Config -> tensors that a checkpoint may lack, since they follow from the settings, by name.
    implied: Callable[[Config], Mapping[str, np.ndarray]] = lambda c: {}
    ignored: tuple[str, ...] = ()  # parts of names of tensors that are not parameters
    # Config -> tensors that are not parameters of our models, by name. An export has them, in
    # float32: untrained parts, which `transformers` would miss with a warning, and constants.
    untrained: Callable[[Config], Mapping[str, np.ndarray]] = lambda c: {}
    # Fields of config.json for a model whose special ids are not known. Without them `transformers`
    # takes the ids of the published models, which may be outside the vocabulary.
    unknown_ids: Mapping[str, int | None] = MappingProxyType({})
    # Whether `transformers` ties the logits of every model, regardless of config.json. It warns
    # about an export with a separate projection, and loads it correctly.
    assumes_tied: bool = False
    presets: tuple[str, ...] = ()  # names of the presets in gin_configs/models of this family
    # (heads, class) pairs. An export names the first class whose heads the model has.
    by_heads: tuple[tuple[tuple[str, ...], str], ...] = ()
    # Whether a classifier's decoder starts with the last id of the text instead of
    # decoder_start_token_id.
    classifier_starts_with_last_id: bool = False
    # Mode in which `predict` uses a published model of the family. None: that of its layout.
    shown_mode: str | None = None
    # config.json -> config.json with the fields that depend on ids, which `config` does not know.
    with_ids: Callable[[dict], dict] = lambda values: values
    # (config, params by path, pad_token_id) -> the same network, with its parameters in the rows
    # that `transformers` reads with this padding id. None if they do not depend on it.
    with_pad: Callable[[Config, dict, int], tuple[Config, dict]] | None = None
    # The model_type of models that also read images, whose text model is of this family.
    type_with_images: str | None = None

    def ignores(self, tensor_name: str) -> bool:
        return any(part in tensor_name for part in self.ignored)

    @property
    def heads(self) -> frozenset[str]:
        """The heads for which `transformers` has a class."""
        return frozenset(head for heads, _ in self.by_heads for head in heads)

    def architecture_of(self, c: Config) -> str:
        """Returns the class of `transformers` for a model with these heads."""
        fitting = (name for heads, name in self.by_heads if set(heads) <= set(c.heads))
        return next(fitting, self.architecture)


FAMILIES: dict[str, Family] = {}  # by model_type


def register_families(*families: Family) -> None:
    """Registers families for `recognize` and `write_model`; replaces families of the same type."""
    FAMILIES.update({family.model_type: family for family in families})


def with_heads(hf: dict, heads: Sequence[str]) -> dict[str, Any]:
    """Returns the settings `heads` and `num_classes` of a model with these heads."""
    classes = 0
    if set(classifiers()) & set(heads):  # `transformers` omits the number if it is two
        classes = len(hf.get("id2label") or {}) or hf.get("num_labels", 2)
    return {"heads": tuple(heads), "num_classes": classes}


# Head -> suffix of the name of its class in `transformers`.
CLASSES = {
    "classes": "ForSequenceClassification",
    "token_classes": "ForTokenClassification",
    "vocabulary": "ForMaskedLM",
}


def classes_of(name: str, *heads: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Returns `Family.by_heads` of a family that has a class for each of these heads.

    >>> classes_of("GPT2", "classes")
    ((('classes',), 'GPT2ForSequenceClassification'),)
    """
    return tuple(((head,), name + CLASSES[head]) for head in heads)


def class_names(hf: Mapping[str, Any]) -> list[str]:
    """Returns the names of the classes in a config.json, in order; [] if they have only numbers."""
    names_by_number = {int(number): name for number, name in (hf.get("id2label") or {}).items()}
    names = [names_by_number[number] for number in sorted(names_by_number)]
    plain = [f"LABEL_{number}" for number in range(len(names))]
    return names if names != plain and len(set(names)) == len(names) else []


def class_labels(names: Sequence[str]) -> dict:
    """Returns the fields of a config.json for names of classes; {} if there are no names.

    >>> class_labels(["no", "yes"])
    {'id2label': {'0': 'no', '1': 'yes'}, 'label2id': {'no': 0, 'yes': 1}}
    """
    if not names:
        return {}
    numbered = {str(number): name for number, name in enumerate(names)}
    return {"id2label": numbered, "label2id": {name: int(i) for i, name in numbered.items()}}


# Defaults of settings that a config.json may lack.
DEFAULTS: dict[str, Any] = {"init_stddev": 0.02, "dropout_rate": 0.0}
DEFAULTS |= {"normalize_expert_weights": False, "sparse_every": 1}


def settings_of(hf: dict, names: Mapping[str, str], gated: bool = False) -> dict[str, Any]:
    """Returns our settings from the fields of a config.json.

    >>> settings_of({"d_model": 8, "n_head": 2}, {"d_model": "emb_dim", "n_head": "num_heads"})
    {'emb_dim': 8, 'num_heads': 2, 'head_dim': 4}

    `names` maps fields of the config.json to our settings. If `gated`, the MLP has a second, linear
    projection.
    """
    settings: dict[str, Any] = {}
    for key, name in names.items():
        if name == "mlp_activations":
            settings[name] = (known(hf, key, ACTIVATIONS), *["linear"] * gated)
        else:
            settings[name] = hf.get(key, DEFAULTS[name]) if name in DEFAULTS else hf[key]
    if "head_dim" not in settings:
        settings["head_dim"] = settings["emb_dim"] // settings["num_heads"]
    return settings


def config_of(c: Config, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of a config.json: the inverse of `settings_of`."""

    def value(name: str) -> Any:
        if name == "mlp_activations":
            return their_activation(c)
        return getattr(c, name) or DEFAULTS[name] if name in DEFAULTS else getattr(c, name)

    return {key: value(name) for key, name in names.items()}


def their_activation(c: Config) -> str:
    """Returns Hugging Face's name of the MLP's activation; raises ValueError if it has no name."""
    if (name := c.mlp_activations[0]) not in THEIR_ACTIVATIONS:
        raise ValueError(
            f"Got mlp_activations={c.mlp_activations}, expected the first one to be one of "
            f"{', '.join(THEIR_ACTIVATIONS)}."
        )
    return THEIR_ACTIVATIONS[name]


def known(hf: dict, key: str, values: dict):
    """Returns our value for `hf[key]`; raises ValueError for an unknown value."""
    if hf.get(key) not in values:
        raise ValueError(
            f"Got {key}={hf.get(key)!r} in config.json, expected one of {list(values)}."
        )
    return values[hf[key]]


def require(hf: dict, **expected) -> None:
    """Raises ValueError unless config.json lacks these fields or has these values.

    `Config` cannot express other values. Null counts as false.
    """
    for key, value in expected.items():
        got = hf.get(key, value)
        if got != value and not (got is None and value is False):
            raise ValueError(
                f"Got {key}={got!r} in config.json, expected {value!r}: no other value is "
                "supported."
            )


def positive(hf: dict, key: str) -> int:
    """Returns `hf[key]`; raises ValueError for a number below 1."""
    if hf[key] < 1:
        raise ValueError(f"Got {key}={hf[key]!r} in config.json, expected a number of 1 or more.")
    return hf[key]


def check_fields(hf: Fields, harmless: Collection[str]) -> None:
    """Raises ValueError for a field that was not read and is not known to be harmless.

    Such a field may change the outputs. Fields that are null, false, 0 or empty are accepted, since
    they turn nothing on.
    """
    for name in sorted(hf.keys() - hf.read - HARMLESS - set(harmless)):
        if value := hf.get(name):
            raise ValueError(
                f"Got {name}={value!r} in config.json, expected no such field: it is not "
                "supported, and may change the model's outputs. If you know that it does not "
                "change them, delete it from config.json."
            )


LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def rotary(rope: dict, theta: float | None) -> tuple[float, tuple | None]:
    """Returns `rope_theta` and `rope_scaling` of Config from rotary parameters in a config.json.

    >>> rotary({"rope_type": "linear", "factor": 2.0}, theta=10_000.0)
    (10000.0, (2.0,))

    `theta` is the base of the wavelengths if the parameters lack it.

    Raises ValueError for a kind other than default, linear and LLaMA 3's, for unknown parameters,
    and for null parameters.
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    known_of = {"default": (), "linear": LLAMA3[:1], "llama3": LLAMA3}
    if kind not in known_of:
        raise ValueError(
            f"Got rope_type={kind!r} in config.json, expected one of {', '.join(known_of)}."
        )
    read = ("rope_type", "type", "rope_theta", LLAMA3[-1], *known_of[kind])
    for name in rope.keys() - set(read):
        if rope[name] is not None:
            raise ValueError(
                f"Got {name}={rope[name]!r} with rope_type={kind!r} in config.json, expected no "
                "such parameter: it is not supported."
            )
    numbers: dict[str, Any] = {"rope_theta": rope.get("rope_theta", theta)}
    numbers |= {name: rope[name] for name in known_of[kind]}
    for name, number in numbers.items():
        if number is None:
            raise ValueError(
                f"Got {name}=None for rotary positions in config.json, expected a number: set the "
                "number that the model was trained with."
            )
    base, *scaling = map(float, numbers.values())
    return base, tuple(scaling) or None


def rotary_parameters(theta: float, scaling: tuple | None) -> dict:
    """Returns the rotary parameters of a config.json: the inverse of `rotary`."""
    if scaling is None:
        return {"rope_type": "default", "rope_theta": theta}
    kind = "linear" if len(scaling) == 1 else "llama3"
    numbers = dict(zip(LLAMA3, scaling, strict=False))
    if kind == "llama3":
        numbers[LLAMA3[-1]] = int(numbers[LLAMA3[-1]])  # a number of positions
    return {"rope_type": kind, "rope_theta": theta} | numbers


LOCAL = "sliding_attention"
GLOBAL = "full_attention"


def rotary_of_layers(rope: dict, theta: float, local_theta: float) -> dict[str, Any]:
    """Returns the rotary settings of Config from parameters of global and of local layers.

    >>> rotary_of_layers({}, 1e6, 1e4)
    {'rope_theta': 1000000.0, 'rope_scaling': None, 'local_rope_theta': 10000.0}

    Args:
      rope: kind of layer -> its rotary parameters.
      theta, local_theta: bases of global and local layers if the parameters lack them.

    Raises ValueError if `rotary` does, and for scaled wavelengths of local layers.
    """
    theta, scaling = rotary(rope.get(GLOBAL) or {}, theta)
    local_theta, local_scaling = rotary(rope.get(LOCAL) or {}, local_theta)
    if local_scaling is not None:
        raise ValueError(
            f"Got {rope[LOCAL]} for the {LOCAL} layers in config.json, expected "
            f"rope_type='default': only the wavelengths of {GLOBAL} layers can be scaled."
        )
    return {"rope_theta": theta, "rope_scaling": scaling, "local_rope_theta": local_theta}


def rotary_parameters_of_layers(c: Config) -> dict[str, dict]:
    """Returns the rotary parameters of both kinds of layers: the inverse of `rotary_of_layers`."""
    # `rotary_of_layers` rejects a local scaling, so such a model cannot be exported.
    local_scaling = c.rope_scaling if c.local_rope_theta is None else None
    return {
        GLOBAL: rotary_parameters(c.rope_theta, c.rope_scaling),
        LOCAL: rotary_parameters(c.local_rope_theta or c.rope_theta, local_scaling),
    }


def layer_types(layers: int, every: int, first: int) -> list[str]:
    """Returns the kind of each layer of a stack: local layers, and every few layers a global one.

    >>> layer_types(3, every=2, first=1)
    ['sliding_attention', 'full_attention', 'sliding_attention']
    """
    return [GLOBAL if i % every == first else LOCAL for i in range(layers)]


def check_kinds(kinds: Sequence[str], *required: str) -> None:
    """Raises ValueError if a model lacks a kind of layer that has rotary parameters."""
    for kind in required:
        if kind not in kinds:
            raise ValueError(
                f"Got layer_types={list(kinds)} in config.json, expected at least one {kind!r}: "
                "models of this family without such layers are not supported."
            )


def layer_kinds(layers: int, settings: Mapping[str, Any]) -> list[str]:
    """Returns the kind of each layer of a stack, from the settings of `Config`.

    >>> layer_kinds(2, {"window": 4, "global_every": 2, "first_global": 1})
    ['sliding_attention', 'full_attention']
    """
    if settings.get("window") is None:
        return [GLOBAL] * layers
    if settings.get("global_every") is None:
        return [LOCAL] * layers
    return layer_types(layers, settings["global_every"], settings.get("first_global", 0))


def local_layers(c: Config, owner: str) -> list[str]:
    """Returns the kind of each layer of a model. Raises ValueError if no layers are local."""
    if c.window is None or c.global_every is None:
        raise ValueError(
            f"Got window={c.window} and global_every={c.global_every}, expected both: {owner} has "
            "local layers."
        )
    return layer_types(c.num_layers, c.global_every, c.first_global)


def pattern_of(kinds: Sequence[str]) -> dict[str, int]:
    """Returns `global_every` and `first_global` of Config for layers of these kinds.

    >>> pattern_of(["sliding_attention", "full_attention", "sliding_attention"])
    {'global_every': 3, 'first_global': 1}

    At least one layer must be local. The result is empty if no layer is global. Raises ValueError
    if the pattern has no period.
    """
    layers = len(kinds)
    global_layers = [i for i, kind in enumerate(kinds) if kind == GLOBAL]
    first = global_layers[0] if global_layers else layers
    period = global_layers[1] - first if len(global_layers) > 1 else layers
    if list(kinds) != layer_types(layers, period, first):
        raise ValueError(
            f"Got layer_types={list(kinds)} in config.json, expected {GLOBAL!r} every few layers "
            f"and {LOCAL!r} between them: other patterns are not supported."
        )
    return {"global_every": period, "first_global": first} if global_layers else {}
