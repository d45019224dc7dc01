"""`Family`: how a kind of Hugging Face model maps to ours, and helpers to write one."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pretrax.models.config import Config
from pretrax.models.hugging_face.links import OUT_IN, TABLE, VECTOR, Link

# Hugging Face's names of activations -> ours. Their "gelu" is exact, ours the tanh approximation.
ACTIVATIONS = {
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
}
THEIR_ACTIVATIONS = {"gelu_exact": "gelu", "gelu": "gelu_new", "silu": "silu", "relu": "relu"}


class Family(NamedTuple):
    """One `model_type` of `config.json`."""

    model_type: str
    architecture: str  # the class that an export names if none of `by_heads` fits
    layout: str  # the builder: "encoder_decoder", "decoder" or "encoder"
    base: str  # the prefix of tensor names, which models without heads lack
    # (config.json, name -> whether the tensor exists) -> fields of Config
    settings: Callable[[dict, Callable[[str], bool]], dict]
    config: Callable[[Config], dict]  # -> config.json, without ids
    links: Callable[[Config], list[Link]]
    copies: Callable[[Config], dict[str, str]]  # tensors that repeat others: name -> name
    ignored: tuple[str, ...] = ()  # suffixes of tensor names that are no parameters
    # (heads, class): an export names the first class whose heads the model has
    by_heads: tuple[tuple[tuple[str, ...], str], ...] = ()

    def architecture_of(self, c: Config) -> str:
        """Returns the class of `transformers` for a model with these heads."""
        found = [name for heads, name in self.by_heads if set(heads) <= set(c.heads)]
        return found[0] if found else self.architecture


def labels(hf: dict) -> int:
    """Returns the number of classes in a config.json; `transformers` omits it when there are two."""
    return len(hf.get("id2label") or {}) or hf.get("num_labels", 2)


def class_names(hf: dict) -> list[str]:
    """Returns the names of classes in a config.json, in order; none where they are only numbered."""
    named = {int(number): name for number, name in (hf.get("id2label") or {}).items()}
    names = [named[number] for number in sorted(named)]
    plain = [f"LABEL_{number}" for number in range(len(names))]
    return names if names != plain and len(set(names)) == len(names) else []


def class_labels(names: Sequence[str]) -> dict:
    """The entries of a config.json for names of classes; none where there are no names.

    >>> class_labels(["no", "yes"])
    {'id2label': {'0': 'no', '1': 'yes'}, 'label2id': {'no': 0, 'yes': 1}}
    """
    if not names:
        return {}
    numbered = {str(number): name for number, name in enumerate(names)}
    return {"id2label": numbered, "label2id": {name: int(i) for i, name in numbered.items()}}


def activation(hf: dict, key: str) -> str:
    """Returns our name of the activation `hf[key]`."""
    return known(hf, key, ACTIVATIONS)


def known(hf: dict, key: str, values: dict):
    """Returns our value for `hf[key]`; raises ValueError for an unknown one."""
    if hf.get(key) not in values:
        raise ValueError(
            f"Got {key}={hf.get(key)!r} in config.json, expected one of {list(values)}."
        )
    return values[hf[key]]


def refuse(hf: dict, **expected) -> None:
    """Raises ValueError where config.json has another value, which `Config` cannot express."""
    for key, value in expected.items():
        got = hf.get(key, value)
        if got != value:
            raise ValueError(
                f"Got {key}={got!r} in config.json, expected {value!r}: nothing else is supported."
            )


def linear(ours: str, theirs: str, biases: bool, inputs: int = 1) -> list[Link]:
    """Returns the links of a torch.nn.Linear: its weight, and its bias if `biases`."""
    links = [Link(ours, f"{theirs}.weight", OUT_IN, inputs)]
    return links + ([Link(f"{ours}_bias", f"{theirs}.bias", VECTOR)] if biases else [])


def norm(ours: str, theirs: str, bias: bool) -> list[Link]:
    links = [Link(f"{ours}/scale", f"{theirs}.weight", VECTOR)]
    return links + ([Link(f"{ours}/bias", f"{theirs}.bias", VECTOR)] if bias else [])


def table(ours: str, theirs: str) -> Link:
    return Link(ours, f"{theirs}.weight", TABLE)


def attention(ours: str, theirs: str, names: tuple[str, str, str, str], biases: bool) -> list[Link]:
    """Returns the links of query, key, value and output as four linear layers of these names."""
    query, key, value, out = (f"{theirs}.{name}" for name in names)
    return [
        *linear(f"{ours}/query", query, biases),
        *linear(f"{ours}/key", key, biases),
        *linear(f"{ours}/value", value, biases),
        *linear(f"{ours}/out", out, biases, inputs=2),
    ]


def dense(ours: str, theirs: str) -> list[Link]:
    """Returns the links of a layer of `models.heads`: a kernel and a bias."""
    return [
        Link(f"{ours}/kernel", f"{theirs}.weight", OUT_IN),
        Link(f"{ours}/bias", f"{theirs}.bias", VECTOR),
    ]
