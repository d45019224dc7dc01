"""Every family agrees with `transformers`, on small random models with perturbed parameters.

These tests need `pip install -e '.[test,parity]'`.
"""

import functools
import logging
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from pretrax.models.config import Config
from pretrax.models.experts import Experts, collected, load_balance_loss, router_z_loss
from pretrax.models.hugging_face import (
    FAMILIES,
    has_untied_warning,
    open_source,
    read_params,
    recognize,
    write_model,
)
from pretrax.models.hugging_face.links import imported as links_imported
from pretrax.models.trees import flattened, nested
from tests.parity.models import MODELS, OTHER_HEADS, import_model, perturbed, tokens
from tests.refusals import refuses

ATOL = 1e-4
# lengths of the documents of a row; the second row has only the first document, and padding
LENGTHS = (11, 7)


@functools.cache
def reference(name):
    return perturbed(name)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns name -> a directory that `transformers` saved."""
    root = tmp_path_factory.mktemp("saved")

    @functools.cache
    def directory(name):
        reference(name).save_pretrained(root / name)
        return str(root / name)

    return directory


# By default, these families are compared. `pytest -m slow` compares the others.
TYPICAL = ("t5", "bert", "bart", "gpt2", "llama")


def typical(names):
    return [x if x in TYPICAL else pytest.param(x, marks=pytest.mark.slow) for x in names]


@pytest.fixture(scope="module")
def imported(saved):
    """Returns name -> (the recognized model, its parameters)."""

    return functools.cache(lambda name: import_model(saved(name)))


def row_features(stack, documents, length, causal):
    """Returns the features of one row with these documents, followed by padding."""
    tokens = np.zeros(length, int)
    segments, positions, intervals = (
        np.zeros(length, int),
        np.zeros(length, int),
        np.stack([np.arange(length), np.arange(length) + 1]),
    )
    at = 0
    for number, document in enumerate(documents, 1):
        n = len(document)
        place = slice(at, at + n)
        tokens[place], segments[place], positions[place] = document, number, np.arange(n)
        intervals[0, place] = at
        intervals[1, place] = at + 1 + np.arange(n) if causal else at + n
        at += n
    return {
        f"{stack}_input_tokens": tokens,
        f"{stack}_segment_ids": segments,
        f"{stack}_positions": positions,
        f"{stack}_key_intervals": intervals,
    }


def packed_batch(layout, sources, targets):
    """Returns two rows: both documents packed, and the first document with padding."""
    rows = []
    for count in (2, 1):
        row = {}
        for stack, documents in (("encoder", sources), ("decoder", targets)):
            if layout in (stack, "encoder_decoder"):
                causal = stack == "decoder"
                row |= row_features(stack, documents[:count], sum(LENGTHS) + 3, causal)
        if layout == "encoder_decoder":
            segments = row["encoder_segment_ids"]
            bounds = [
                (np.flatnonzero(segments == s)[[0, -1]] + [0, 1]) if s else np.array([0, 1])
                for s in row["decoder_segment_ids"]
            ]
            row["cross_key_intervals"] = np.array(bounds).T
        rows.append(row)
    return {k: jnp.asarray(np.stack([r[k] for r in rows]), jnp.int32) for k in rows[0]}


def documents(seed):
    return [tokens(1, n, seed + n)[0] for n in LENGTHS]


def their_logits(name, source, target):
    """Returns the logits of `transformers` for a single document."""
    model = reference(name)
    layout = recognized_layout(name)
    with torch.no_grad():
        if layout == "encoder_decoder":
            out = model(
                input_ids=torch.tensor(source)[None], decoder_input_ids=torch.tensor(target)[None]
            )
            return {"vocabulary": out.logits[0].numpy()}
        out = model(torch.tensor(source if layout == "encoder" else target)[None])
        if name == "bert":
            return {
                "vocabulary": out.prediction_logits[0].numpy(),
                "pair": out.seq_relationship_logits[0].numpy(),
            }
        return {"vocabulary": out.logits[0].numpy()}


def recognized_layout(name):
    return FAMILIES[reference(name).config.model_type].layout


def our_logits(model, params, batch, heads=("vocabulary",)):
    """Returns the logits of each head, computed by one program."""

    def forward(params, batch):
        outputs = model.apply(params, batch)
        return {head: outputs.head(head, outputs.hidden["top"]) for head in heads}

    return jax.device_get(jax.jit(forward)(params, batch))


def largest_difference(model, params, name):
    """Returns the largest difference of any logit, for packed and for padded documents."""
    sources, targets = documents(1), documents(2)
    batch = packed_batch(model.layout, sources, targets)
    theirs = [their_logits(name, *pair) for pair in zip(sources, targets)]
    ours = our_logits(model, params, batch, tuple(theirs[0]))
    logits, differences, at = ours["vocabulary"], [], 0
    for number, (expected, target) in enumerate(zip(theirs, targets)):
        n = len(target)
        differences.append(np.abs(logits[0, at : at + n] - expected["vocabulary"]).max())
        if number == 0:
            differences.append(np.abs(logits[1, :n] - expected["vocabulary"]).max())
        if "pair" in expected:
            differences.append(np.abs(ours["pair"][0, at] - expected["pair"]).max())
        at += n
    return max(differences)


@pytest.mark.parametrize("name", typical(MODELS))
def test_logits_match_with_padding_and_packing(name, imported):
    found, params = imported(name)
    assert largest_difference(found.model, params, name) <= ATOL


def load_without_warnings(name, folder, found, **settings):
    """Loads an export, and fails if Python or `transformers` warns."""
    logger, logged = logging.getLogger("transformers"), []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.append(record.getMessage())
    logger.addHandler(handler)
    with warnings.catch_warnings(action="error"):
        loaded = type(reference(name)).from_pretrained(folder, **settings)
    logger.removeHandler(handler)
    if has_untied_warning(found.family, found.config):
        # Any T5 1.1 or mT5, also as published: `transformers` 5 assumes tied logits.
        logged = [message for message in logged if "`tie_word_embeddings=False`" not in message]
    assert not logged
    return loaded


@pytest.mark.parametrize("name", typical(MODELS))
def test_export_has_same_tensor_names_and_bits(name, imported, saved, tmp_path):
    found, params = imported(name)
    before = open_source(saved(name))
    written = write_model(tmp_path, found.config, params, extra=before.config, family=found.family)
    assert written is found.family
    after = open_source(tmp_path)
    copies = found.family.copies(found.config).keys()
    names, written_names = (
        {x for x in source.names if not found.family.ignores(x)} for source in (before, after)
    )
    assert names - copies == written_names
    for tensor in written_names:
        np.testing.assert_array_equal(before.read(tensor), after.read(tensor), err_msg=tensor)
    exported = load_without_warnings(name, tmp_path, found).eval()
    ids = torch.tensor(tokens(1, 9, 3))
    with torch.no_grad():
        inputs = {"decoder_input_ids": ids} if found.model.layout == "encoder_decoder" else {}
        expected, got = (model(input_ids=ids, **inputs)[0] for model in (reference(name), exported))
    assert_same_weights(reference(name), exported, found.family)
    torch.testing.assert_close(expected, got, atol=NOISE, rtol=0)


NOISE = 1e-5  # PyTorch sums in another order if an array has another place in memory


def assert_same_weights(model, other_model, family):
    ours, theirs = model.state_dict(), other_model.state_dict()
    assert ours.keys() == theirs.keys()
    for name in ours:
        if family.ignores(name):  # the tensors of images
            continue
        torch.testing.assert_close(ours[name], theirs[name], atol=0, rtol=0)


def test_missing_pegasus_positions_are_sinusoids(imported, saved, tmp_path):
    found, params = imported("pegasus")
    plain = transformers.PegasusForConditionalGeneration(reference("pegasus").config)
    source = open_source(saved("pegasus"))
    names = [f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]
    bare = source._replace(shapes={x: y for x, y in source.shapes.items() if x not in names})
    ours = dict(read_params(bare, recognize(bare)))
    for stack, name in zip(("encoder", "decoder"), names):
        theirs = plain.state_dict()[name].numpy()
        np.testing.assert_allclose(ours[f"{stack}/position_embedding"], theirs, atol=1e-6)
        assert not np.allclose(theirs, params[stack]["position_embedding"], atol=1e-2)


@pytest.mark.parametrize("name", ["esm", "esm_bare"])
def test_bfloat16_export_keeps_rotary_frequencies(name, imported, tmp_path):
    found, params = imported(name)
    write_model(tmp_path, found.config, params, dtype="bfloat16")
    exported_config = recognize(open_source(str(tmp_path))).config
    assert exported_config.rope_float16 == found.config.rope_float16 == (name == "esm")
    model = type(reference(name)).from_pretrained(tmp_path)
    theirs = reference(name).esm.rotary_embeddings.inv_freq
    torch.testing.assert_close(model.esm.rotary_embeddings.inv_freq, theirs, atol=0, rtol=1e-6)


# --- other heads --------------------------------------------------------------------------------


def read_documents(name, seed=1):
    """Returns documents in the form that a model reads.

    An encoder-decoder classifies by the end of the sequence.
    """
    eos = reference(name).config.eos_token_id
    encodes = recognized_layout(name) == "encoder_decoder"
    return [np.append(document[:-1], eos) if encodes else document for document in documents(seed)]


def their_output(name, model, document):
    """Returns the head's output for one document, for one slot or for all slots."""
    with torch.no_grad():
        out = model(torch.tensor(document)[None])
    if name == "bert_base":
        return out.pooler_output[0].numpy()
    return out.logits[0].numpy()


@pytest.mark.sampled
@pytest.mark.parametrize("name", OTHER_HEADS)
def test_heads_match_with_padding_and_packing(name, imported):
    found, params = imported(name)
    head = OTHER_HEADS[name][1]
    assert found.heads == (head,)
    sources, layout = read_documents(name), found.model.layout
    targets = sources
    if layout == "encoder_decoder":  # its decoder reads the same text again
        start = reference(name).config.decoder_start_token_id
        # mBART's decoder begins with the end of the text.
        targets = [np.append(x[-1] if start is None else start, x[:-1]) for x in sources]
    ours = our_logits(found.model, params, packed_batch(layout, sources, targets), (head,))[head]
    for row, at, source in ((0, 0, sources[0]), (0, LENGTHS[0], sources[1]), (1, 0, sources[0])):
        theirs = their_output(name, reference(name), source)
        per_slot = head in ("vocabulary", "token_classes", "replaced")
        slot = at if layout == "encoder" else at + len(source) - 1
        got = ours[row, at : at + len(source)] if per_slot else ours[row, slot]
        got = got[..., 0] if head == "replaced" else got
        assert got.shape == theirs.shape
        np.testing.assert_allclose(got, theirs, atol=ATOL, rtol=0)


@pytest.mark.sampled
@pytest.mark.parametrize("name", OTHER_HEADS)
def test_export_names_class_with_same_heads(name, imported, saved, tmp_path):
    found, params = imported(name)
    before = open_source(saved(name))
    write_model(tmp_path, found.config, params, extra=before.config)
    after = open_source(tmp_path)
    made = reference(name)
    assert after.config["architectures"] == [type(made).__name__]
    exported, report = load_without_warnings(name, tmp_path, found, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert exported.config.id2label == made.config.id2label
    assert exported.config.problem_type == made.config.problem_type
    source = read_documents(name)[0]
    assert_same_weights(made, exported, found.family)
    np.testing.assert_allclose(
        their_output(name, exported.eval(), source), their_output(name, made, source), atol=NOISE
    )
    # Without the source's config.json, the number of labels is the same and their names differ.
    write_model(tmp_path / "bare", found.config, params, extra={"pad_token_id": 0})
    bare = load_without_warnings(name, tmp_path / "bare", found).config
    assert bare.num_labels == made.config.num_labels


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_export_without_known_ids_loads_without_warnings(name, imported, tmp_path):
    found, params = imported(name)
    write_model(tmp_path, found.config, params, family=found.family)
    load_without_warnings(name, tmp_path, found)


@pytest.mark.slow
def test_set_of_families_with_untied_warning(imported, saved):
    families = {name: imported(name)[0] for name in MODELS}
    warned = {
        x
        for x, imported_model in families.items()
        if has_untied_warning(imported_model.family, imported_model.config)
    }
    assert warned == {"t5_1_1", "ul2", "mt5", "umt5_untied"}


@pytest.mark.parametrize(
    "name, changed, expected_words",
    [
        ("t5", {"architectures": ["T5ForTokenClassification"]}, "T5ForTokenClassification"),
        (
            "t5",
            {"architectures": ["T5EncoderModel"], "is_encoder_decoder": False},
            "T5EncoderModel",
        ),
        ("bert", {"architectures": ["BertForQuestionAnswering"]}, "BertForQuestionAnswering"),
        ("gpt2", {"architectures": ["GPT2DoubleHeadsModel"]}, "GPT2DoubleHeadsModel"),
        ("llama", {"token_classification_bias": False}, "token_classification_bias=False"),
    ],
)
def test_unsupported_classes_raise(name, changed, expected_words, saved):
    source = open_source(saved(name))
    with refuses(ValueError, expected_words):
        recognize(source._replace(config=source.config | changed))


@pytest.mark.parametrize("kind", FAMILIES)
def test_all_exported_classes_exist_in_transformers(kind):
    family = FAMILIES[kind]
    for name in (family.architecture, *(name for _, name in family.by_heads)):
        assert hasattr(transformers, name), name


def test_headless_decoder_is_imported_without_heads(tmp_path):
    """AutoModel saves such untied weights without lm_head.weight."""
    reference("llama").model.save_pretrained(tmp_path / "in")
    source = open_source(str(tmp_path / "in"))
    found = recognize(source)
    assert found.heads == () and not found.config.logits_via_embedding
    params = nested(read_params(source, found))
    assert "vocabulary" not in params
    (document,) = tokens(1, 9, 3)
    features = row_features("decoder", [document], 9, causal=True)
    batch = {k: jnp.asarray(x, jnp.int32)[None] for k, x in features.items()}
    ours = found.model.apply(params, batch).hidden["top"]
    with torch.no_grad():
        theirs = reference("llama").model(torch.tensor(document)[None]).last_hidden_state
    np.testing.assert_allclose(ours, theirs, atol=ATOL, rtol=0)
    write_model(tmp_path / "out", found.config, params)
    exported = open_source(str(tmp_path / "out"))
    assert exported.config["architectures"] == ["LlamaModel"]
    assert recognize(exported).heads == ()


def test_tied_config_with_different_lm_head_raises(tmp_path):
    """config.json decides, as in `transformers`, and an lm_head that differs is rejected."""
    reference("llama").save_pretrained(tmp_path)
    source = open_source(str(tmp_path))
    tied = source._replace(config=source.config | {"tie_word_embeddings": True})
    with refuses(ValueError, "lm_head.weight", "model.embed_tokens.weight"):
        recognize(tied)


# --- positions that are offset by the padding id -------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize("pad", [0, 1, 5])
def test_roberta_export_with_any_pad_id_matches_and_reimports(pad, tmp_path):
    """The padding id of the run's vocabulary is `pad`, which does not occur in its texts."""
    theirs = reference("roberta").config
    source = tmp_path / "source"
    reference("roberta").save_pretrained(source)
    found, params = import_model(source)
    write_model(
        tmp_path / "out", found.config, params, extra=theirs.to_dict() | {"pad_token_id": pad}
    )
    model = transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "out").eval()
    assert model.config.pad_token_id == pad
    text = np.where(documents(1)[0] == pad, 9, documents(1)[0])
    text[2] = 1 if pad != 1 else 9  # an ordinary id of text
    ids = torch.tensor([[*text, pad, pad]])
    with torch.no_grad():
        logits = model(ids, attention_mask=(ids != pad).int()).logits[0, : len(text)].numpy()
    batch = packed_batch("encoder", [text, text[:7]], [text, text[:7]])
    expected = our_logits(found.model, params, batch)["vocabulary"][0, : len(text)]
    np.testing.assert_allclose(logits, expected, atol=ATOL, rtol=0)
    reimported, back = import_model(tmp_path / "out")
    assert reimported.config.position_offset == pad + 1
    assert reimported.config.max_positions == found.config.max_positions
    got = our_logits(reimported.model, back, batch)["vocabulary"][0, : len(text)]
    np.testing.assert_allclose(got, expected, atol=ATOL, rtol=0)


# --- losses and gradients -----------------------------------------------------------------------


def by_saved_name(arrays):
    """Yields arrays by the names under which they are saved. In memory, experts are one array."""
    mixtral = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    for name, array in arrays.items():
        layer, _, expert_tensor = name.partition(".mlp.experts.")
        if expert_tensor not in ("gate_up_proj", "down_proj"):
            yield name, array
            yield name.replace(".mlp.gate.weight", ".block_sparse_moe.gate.weight"), array
            continue
        names = ("gate_proj", "up_proj") if expert_tensor == "gate_up_proj" else ("down_proj",)
        for which, part in zip(names, np.split(array, len(names), axis=1)):
            for number, matrix in enumerate(part):
                yield f"{layer}.mlp.experts.{number}.{which}.weight", matrix
                saved = f"{layer}.block_sparse_moe.experts.{number}.{mixtral[which]}.weight"
                yield saved, matrix


def routing_of(logits, segments, experts_per_token):
    """Returns the statistics of a router with these logits, its inputs, as NumPy arrays."""
    count = logits.shape[-1]
    sizes = dict(num_heads=1, head_dim=2, mlp_dim=2, num_experts=count)
    config = Config(8, 0, 1, (), emb_dim=count, experts_per_token=experts_per_token, **sizes)
    zeros = dict.fromkeys(("wi_0", "wi_1"), np.zeros((count, count, 2), np.float32))
    params = zeros | {
        "router": np.eye(count, dtype=np.float32),
        "wo": np.zeros((count, 2, count), np.float32),
    }

    @jax.jit
    def routing(params, logits, segments):
        found = Experts(config).apply({"params": params}, logits, segments, mutable=["routing"])[1]
        return collected(found)

    return jax.device_get(routing(params, logits, segments))


def test_router_losses_match_transformers():
    """Mixtral's loss counts a token K times. Switch Transformers' loss has no padding mask."""
    mixtral = transformers.models.mixtral.modeling_mixtral
    switch = transformers.models.switch_transformers.modeling_switch_transformers
    logits = np.random.default_rng(0).normal(size=(2, 11, 5)).astype(np.float32)
    mask = np.arange(11)[None] < np.array([[11], [7]])
    theirs = mixtral.load_balancing_loss_func(
        (torch.tensor(logits.reshape(-1, 5)),), 5, 2, torch.tensor(mask)
    )
    assert 2 * load_balance_loss(routing_of(logits, mask, 2)) == pytest.approx(float(theirs), 1e-5)
    probabilities = torch.softmax(torch.tensor(logits), -1)
    theirs = switch.load_balancing_loss_func(probabilities, probabilities.argmax(-1))
    routing = routing_of(logits, mask | True, 1)
    # Their Switch loss takes each row separately.
    rows = [jax.tree.map(lambda x, i=i: x[:, i : i + 1], routing) for i in range(2)]
    ours = np.mean([load_balance_loss(row) for row in rows])
    assert ours == pytest.approx(float(theirs), 1e-5)
    theirs = switch.router_z_loss_func(torch.tensor(logits))
    assert router_z_loss(routing) == pytest.approx(float(theirs), 1e-5)


# These families are left out, since their layers occur in others in a different arrangement.
REARRANGED = ("mixtral_window", "switch_every")


@pytest.mark.parametrize("name", typical(name for name in MODELS if name not in REARRANGED))
def test_losses_and_gradients_match_transformers(name, imported):
    found, params = imported(name)
    config, layout, model = found.config, found.model.layout, reference(name)
    source_tokens, target_tokens = tokens(2, 9, 5)
    batch = {}
    for stack, document in (("encoder", source_tokens), ("decoder", target_tokens)):
        if layout in (stack, "encoder_decoder"):
            features = row_features(stack, [document], 9, causal=stack == "decoder")
            batch |= {k: jnp.asarray(x, jnp.int32)[None] for k, x in features.items()}
    source, target = torch.tensor(source_tokens)[None], torch.tensor(target_tokens)[None]
    if layout == "encoder_decoder":
        batch["cross_key_intervals"] = jnp.asarray([[[0] * 9, [9] * 9]], jnp.int32)
        given, labels = dict(input_ids=source, decoder_input_ids=target), target.flip(1)
        expected = labels[0].numpy()
    elif layout == "decoder":  # these models shift labels themselves
        given, labels, expected = dict(input_ids=target), target, np.r_[target_tokens[1:], -100]
    else:
        labels = torch.where(source % 3 == 0, source, -100)
        given, expected = dict(input_ids=source), labels[0].numpy()

    def our_loss(params):
        outputs = found.model.apply(params, batch)
        logits = outputs.head("vocabulary", outputs.hidden["top"])[0]
        log_p = jax.nn.log_softmax(logits)
        counts = expected >= 0
        picked = log_p[np.arange(9), np.maximum(expected, 0)]
        return -jnp.sum(jnp.where(counts, picked, 0)) / counts.sum()

    model.zero_grad()
    if name == "bert":  # the model's loss needs the label of a pair too
        logits = model(**given).prediction_logits
        theirs = torch.nn.functional.cross_entropy(logits[0], labels[0])
    else:
        theirs = model(**given, labels=labels).loss
    theirs.backward()
    value, gradients = jax.jit(jax.value_and_grad(our_loss))(params)
    assert abs(float(value) - theirs.item()) <= ATOL

    their_gradients = {
        # Saved without "text_model.", as in T5Gemma 2's encoder.
        key.replace("text_model.", ""): np.zeros(p.shape) if p.grad is None else p.grad.numpy()
        for key, p in model.named_parameters(remove_duplicate=False)
    }
    their_gradients = dict(by_saved_name(their_gradients))
    fixed = {key for key, p in model.named_parameters() if not p.requires_grad}  # sinusoids
    fixed.add("final_logits_bias")  # a buffer of `transformers`, which has no gradient
    flat = flattened(gradients)
    links = [x for x in found.family.links(config) if x.tensor_name not in fixed]
    shapes = {path: x.shape for path, x in flat.items()}
    compared = 0
    for path, array in links_imported(links, config, shapes, their_gradients.__getitem__):
        scale = max(np.abs(array).max(), 1.0)
        np.testing.assert_allclose(flat[path], array, atol=ATOL * scale, err_msg=path)
        compared += 1
    assert compared >= len(flat) - len(fixed)
