"""Import reads or rejects every field of a config.json that changes a model's outputs."""

import functools
import json

import jax
import numpy as np
import pytest
import torch

from pretrax.inference.decoding.batching import padded_rows
from pretrax.inference.decoding.decoding import decoder_prompts, encoder_decoder_prompts
from pretrax.models.hugging_face import open_source, read_params, recognize
from pretrax.models.trees import nested
from tests.parity.models import MODELS, OTHER_HEADS, perturbed, tokens
from tests.refusals import refuses

ROTARY = "mistral qwen2 qwen3 qwen3_moe olmo2 olmoe gemma2 gemma3 eurobert modernbert".split()
IDS = torch.tensor(tokens(2, 20, 1))
LOCAL, GLOBAL = "sliding_attention", "full_attention"


@functools.cache
def reference(name):
    return perturbed(name)


@pytest.fixture
def saved(tmp_path):
    """Returns name -> a directory that `transformers` saved."""

    def save(name):
        reference(name).save_pretrained(tmp_path)
        return open_source(str(tmp_path))

    return save


def with_fields(source, changes):
    """Returns a directory whose config.json has other values. A field of `...` is left out."""
    stacks = {x: source.config[x] | changes[x] for x in ("encoder", "decoder") if x in changes}
    config = source.config | changes | stacks
    return source._replace(config={x: y for x, y in config.items() if y is not ...})


def alternatives(value) -> list:
    """Returns values that a field might have instead of `value`."""
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
    return [value | {name: other} for name, old in value.items() for other in alternatives(old)]


def output(model) -> torch.Tensor:
    inputs = {"decoder_input_ids": IDS.flip(1)} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        found = model(input_ids=IDS, **inputs)
    return found.logits if "logits" in found else found[0]


def changed(model, **values):
    """Returns the output with the same weights and other fields.

    Returns None if `transformers` does not accept the fields.
    """
    try:
        config = type(model.config)(**(model.config.to_dict() | values))
        made = type(model)(config).eval()
        made.load_state_dict(model.state_dict())
        return output(made)
    except Exception:  # transformers raises many kinds of errors
        return None


# Classifiers of tokens read the same fields as classifiers of texts.
HEADS = [name for name, (_, head) in OTHER_HEADS.items() if head != "token_classes"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, *HEADS])
def test_accepted_fields_without_effect_on_settings_keep_outputs(name, saved):
    """The outputs of `transformers` are the same whenever our settings are the same."""
    model, source = reference(name), saved(name)
    ours, theirs = recognize(source), changed(model)
    fields = type(model.config)().to_dict() | json.loads(model.config.to_json_string(False))
    rejected = 0
    for field, value in fields.items():
        for other in alternatives(value):
            try:
                found = recognize(with_fields(source, {field: other}))
            except ValueError:
                rejected += 1
                continue
            # The pooling of a classifier is a prompt form; see tests/parity/test_sentences.py.
            if found.config != ours.config or field in ("dtype", "classifier_pooling"):
                continue
            got = changed(model, **{field: other})
            unchanged = got is None or torch.allclose(got, theirs, atol=1e-5)
            assert unchanged, f"{field}={other} is neither rejected nor read"
    assert rejected > 5


def layers(encoder, decoder):
    """Returns fields with these kinds of layers in both stacks of T5Gemma."""
    return {"encoder": {"layer_types": encoder}, "decoder": {"layer_types": decoder}}


@pytest.mark.parametrize(
    "name, changes, values",
    [
        (
            "modernbert",
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            ["rope_scaling=", None],
        ),
        ("gemma3", {"model_type": "gemma3"}, ["model_type='gemma3'", "'gemma3_text'"]),
        ("gemma3", {"use_bidirectional_attention": True}, ["use_bidirectional_attention=True"]),
        ("llama", {"partial_rotary_factor": 0.5}, ["partial_rotary_factor=0.5"]),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "mscale": 1.0}},
            ["mscale=1.0", "rope_type='linear'"],
        ),
        ("bert", {"quantization_config": {"bits": 4}}, ["quantization_config={'bits': 4}"]),
        ("esm", {"rope_theta": 500.0}, ["rope_theta=500.0", "inv_freq"]),
        ("esm", {"head_dim": 4}, ["head_dim=4"]),
        ("esm", {"is_folding_model": True}, ["is_folding_model=True"]),
        (
            "esm",
            {"position_embedding_type": "relative_key"},
            ["position_embedding_type='relative_key'"],
        ),
        # Fields are not guessed: `transformers` assumes 16 heads if config.json has no number.
        ("bart", {"decoder_attention_heads": ...}, ["'decoder_attention_heads'"]),
        ("llama", {"hidden_size": None}, ["'hidden_size'"]),
        ("roberta", {"pad_token_id": None}, ["'pad_token_id'"]),
        ("modernbert", {"local_attention": None}, ["'local_attention'"]),
        ("gemma3", {"sliding_window": None}, ["'sliding_window'"]),
        ("llama", {"rope_parameters": {"rope_theta": None}}, ["rope_theta=None"]),
        # Windows and kinds of layers that a `Config` cannot express.
        ("mistral", {"sliding_window": 0}, ["sliding_window=0", 1]),
        ("modernbert_decoder", {"sliding_window": 0}, ["sliding_window=0"]),
        ("modernbert", {"layer_types": 4 * [LOCAL]}, ["layer_types=", f"'{GLOBAL}'"]),
        ("gemma3", {"layer_types": 4 * [LOCAL]}, ["layer_types=", f"'{GLOBAL}'"]),
        ("gemma3", {"layer_types": 4 * [GLOBAL]}, ["layer_types=", f"'{LOCAL}'"]),
        ("t5gemma", layers(2 * [LOCAL], 2 * [LOCAL, GLOBAL]), ["layer_types", GLOBAL]),
        ("t5gemma", layers([LOCAL, GLOBAL], 4 * [LOCAL]), ["layer_types", GLOBAL]),
        ("t5gemma", layers(2 * [GLOBAL], 2 * [LOCAL, GLOBAL]), ["layer_types", GLOBAL]),
        ("t5gemma", layers(2 * [LOCAL], 4 * [GLOBAL]), ["layer_types", GLOBAL]),
        ("t5gemma", {"decoder": {"hidden_size": 64}}, ["emb_dim", "32", "64"]),
    ],
)
def test_unsupported_or_missing_fields_raise(name, changes, values, saved):
    source = with_fields(saved(name), changes)
    with refuses(ValueError, *values):
        recognize(source)


def test_unknown_fields_with_neutral_values_are_accepted(saved):
    ignored = {"adapters": {}, "is_folded": False, "some_rate": 0.0, "summary": None}
    assert recognize(with_fields(saved("bert"), ignored)).config.emb_dim == 32


@pytest.mark.parametrize(
    "name", ["llama", "mixtral", *(pytest.param(x, marks=pytest.mark.slow) for x in ROTARY)]
)
def test_default_rope_theta_matches_transformers(name, saved):
    source = with_fields(saved(name), {"rope_parameters": ...})
    theirs = type(reference(name).config)(**source.config).rope_parameters
    ours = recognize(source).config
    bases = theirs.get("full_attention", theirs), theirs.get("sliding_attention", {})
    assert ours.rope_theta == bases[0]["rope_theta"]
    assert ours.local_rope_theta == bases[1].get("rope_theta")


@pytest.mark.sampled
@pytest.mark.parametrize(
    "name, values",
    [
        ("modernbert", {"sliding_window": 0}),
        ("modernbert", {"sliding_window": 3}),
        ("modernbert", {"local_attention": 1}),
        ("modernbert", {"layer_types": 4 * [GLOBAL]}),
        ("modernbert_decoder", {"sliding_window": 1}),
        ("mistral", {"sliding_window": 1}),
        ("gemma3", {"sliding_window": 1}),
        ("t5gemma", layers([LOCAL, LOCAL], [LOCAL, LOCAL, GLOBAL, LOCAL])),
        ("t5gemma", layers([GLOBAL, GLOBAL], 4 * [GLOBAL])),
        ("t5gemma", layers([LOCAL, GLOBAL], [LOCAL, GLOBAL, LOCAL, LOCAL])),
    ],
)
def test_windows_and_layer_types_match_transformers(name, values, saved):
    model, source = reference(name), with_fields(saved(name), values)
    theirs = changed(model, **{x: source.config[x] for x in values})
    assert not torch.allclose(theirs, output(model), atol=1e-3)
    torch.testing.assert_close(torch.tensor(our_logits(source)), theirs, atol=1e-4, rtol=0)


def our_logits(source) -> np.ndarray:
    """Returns the logits of our model with the source's settings, for the ids of `output`."""
    found = recognize(source)
    params = nested(read_params(source, found))
    rows = IDS.tolist()
    layout = found.model.layout
    if layout == "encoder":
        batch = padded_rows("encoder", rows)[0]
    elif layout == "decoder":
        batch = decoder_prompts(rows).batch
    else:
        batch = encoder_decoder_prompts(rows, IDS.flip(1).tolist()).batch

    def forward(params, batch):
        outputs = found.model.apply(params, batch)
        return outputs.head("vocabulary", outputs.hidden["top"])

    return np.array(jax.jit(forward)(params, batch))
