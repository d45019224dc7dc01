"""Import reads or refuses every field of a config.json that changes a model's outputs."""

import functools
import json

import pytest

pytest.importorskip(
    "torch", reason="the extra `parity` is not installed: pip install -e '.[parity]'"
)
pytest.importorskip("transformers", reason="the extra `parity` is not installed")

import torch

from pretrax.models.hugging_face import open_source, recognise
from tests.parity.models import MODELS, OTHER_HEADS, perturbed, tokens

QUICK = ["t5_1_1", "bert", "roberta", "modernbert", "bart", "gpt2", "llama", "qwen3", "bert_named"]
QUICK += ["distilbert", "electra_small", "mistral", "gemma2", "olmo2", "modernbert_classes"]
NAMES = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in (*MODELS, *OTHER_HEADS)
]
ROTARY = "mistral qwen2 qwen3 qwen3_moe olmo2 olmoe gemma2 gemma3 eurobert modernbert".split()
IDS = torch.tensor(tokens(2, 20, 1))


@functools.cache
def reference(name):
    return perturbed(name)


def others(value) -> list:
    """Values that a field might have instead of `value`."""
    if isinstance(value, bool) or value is None:
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value]
    if isinstance(value, float):
        return [0.0, value + 0.3, 3 * value]
    if isinstance(value, str):
        return [x for x in ("relu", "gelu", "mean", "multi_label_classification") if x != value]
    if isinstance(value, list):
        return [value[::-1]]
    if "rope_type" in value:
        scaled = {"factor": 4.0, "rope_theta": value["rope_theta"]}
        return [value | scaled | {"rope_type": kind} for kind in ("linear", "dynamic", "default")]
    return [value | {name: other} for name, old in value.items() for other in others(old)]


def output(model) -> torch.Tensor:
    inputs = {"decoder_input_ids": IDS.flip(1)} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        found = model(input_ids=IDS, **inputs)
    return found.logits if "logits" in found else found[0]


def changed(model, **values):
    """The same weights with other fields; None where `transformers` does not take them."""
    try:
        config = type(model.config)(**(model.config.to_dict() | values))
        made = type(model)(config).eval()
        made.load_state_dict(model.state_dict())
        return output(made)
    except Exception:  # of many kinds
        return None


@pytest.mark.parametrize("name", NAMES)
def test_a_field_that_is_not_refused_and_changes_no_setting_changes_no_output(name, tmp_path):
    """Their outputs are the same wherever our settings are."""
    model = reference(name)
    model.save_pretrained(tmp_path)
    source = open_source(str(tmp_path))
    ours, theirs = recognise(source), changed(model)
    fields = type(model.config)().to_dict() | json.loads(model.config.to_json_string(False))
    refused = 0
    for field, value in fields.items():
        for other in others(value):
            try:
                found = recognise(source._replace(config=source.config | {field: other}))
            except ValueError:
                refused += 1
                continue
            # What a classifier pools is a prompt form: tests/parity/test_sentences.py.
            if found.config != ours.config or field in ("dtype", "classifier_pooling"):
                continue
            got = changed(model, **{field: other})
            same = got is None or torch.allclose(got, theirs, atol=1e-5)
            assert same, f"{field}={other} is neither refused nor read"
    assert refused > 5


@pytest.mark.parametrize(
    "name, values, said",
    [
        (
            "modernbert",
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "Got rope_scaling=.*expected None",
        ),
        (
            "gemma3",
            {"model_type": "gemma3"},
            "a model that reads images too, expected 'gemma3_text'",
        ),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5.*no such field"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "mscale": 1.0}},
            "mscale=1.0 beside rope_type='linear'",
        ),
        ("bert", {"quantization_config": {"bits": 4}}, "quantization_config=.*delete it"),
    ],
)
def test_a_field_that_changes_outputs_is_refused_by_name(name, values, said, tmp_path):
    reference(name).save_pretrained(tmp_path)
    source = open_source(str(tmp_path))
    with pytest.raises(ValueError, match=said):
        recognise(source._replace(config=source.config | values))


@pytest.mark.parametrize(
    "name", ["llama", "mixtral", *(pytest.param(x, marks=pytest.mark.slow) for x in ROTARY)]
)
def test_the_base_of_rotary_wavelengths_is_theirs_where_none_is_named(name, tmp_path):
    model = reference(name)
    model.save_pretrained(tmp_path)
    source = open_source(str(tmp_path))
    values = {x: source.config[x] for x in source.config.keys() - {"rope_parameters"}}
    theirs = type(model.config)(**values).rope_parameters
    ours = recognise(source._replace(config=values)).config
    bases = theirs.get("full_attention", theirs), theirs.get("sliding_attention", {})
    assert ours.rope_theta == bases[0]["rope_theta"]
    assert ours.local_rope_theta == bases[1].get("rope_theta")


@pytest.mark.parametrize(
    "name, field, value, said",
    [
        ("bart", "decoder_attention_heads", ..., "lacks 'decoder_attention_heads'"),
        ("llama", "hidden_size", None, "lacks 'hidden_size'"),
        ("gemma3", "sliding_window", None, "lacks 'sliding_window'"),
        ("llama", "rope_parameters", {"rope_theta": None}, "rope_theta=None.*expected a number"),
    ],
)
def test_a_field_that_is_missing_or_null_is_named(name, field, value, said, tmp_path):
    """In place of a guess: `transformers` has 16 heads where config.json has no number."""
    reference(name).save_pretrained(tmp_path)
    source = open_source(str(tmp_path))
    values = {x: y for x, y in source.config.items() if x != field}
    values |= {} if value is ... else {field: value}
    with pytest.raises(ValueError, match=said):
        recognise(source._replace(config=values))


def test_stacks_of_two_sizes_are_refused(tmp_path):
    reference("t5gemma").save_pretrained(tmp_path)
    source = open_source(str(tmp_path))
    decoder = source.config["decoder"] | {"hidden_size": 64}
    with pytest.raises(ValueError, match="differ in emb_dim: 32 and 64.*unbalanced stacks"):
        recognise(source._replace(config=source.config | {"decoder": decoder}))


def test_fields_that_turn_nothing_on_are_no_hindrance(tmp_path):
    reference("bert").save_pretrained(tmp_path)
    source = open_source(str(tmp_path))
    more = {"adapters": {}, "is_folded": False, "some_rate": 0.0, "summary": None}
    assert recognise(source._replace(config=source.config | more)).config.emb_dim == 32
