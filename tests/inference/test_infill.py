"""Filling in: predictions do not see the true tokens, and each token is the most likely one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from pretrax import models
from pretrax.data.corpus import Document, in_parts
from pretrax.inference import Trained, infill, show_passages
from pretrax.inference.answering.infill import Infilled, greedy_targets
from pretrax.inference.reporting.passages import print_example
from pretrax.objectives import (
    Row,
    batched,
    causal_lm,
    masked_lm,
    mixture,
    row_groups,
    span_corruption,
    text_to_text,
    token_classification,
)
from pretrax.objectives.layouts import LAYOUTS
from pretrax.training.state import new_state
from pretrax.training.step_program import abstract_state_of
from tests.models.families import logits_of
from tests.models.small_models import init
from tests.training import tiny

MODELS = {"encoder_decoder": tiny.encoder_decoder, "decoder": tiny.decoder}
LENGTH, ROWS, EOS = 24, 4, tiny.IDS.eos


def decode(tokens):
    return "".join(f"·{t}" for t in tokens)


def trained(model, params, ids=tiny.IDS) -> Trained:
    return Trained(model, params, ids, encode=str.split, decode=decode)


@functools.cache
def case(layout):
    """Returns (objective, model, parameters, row group, keys, rows)."""
    objective, model = span_corruption(tiny.IDS, noise_density=0.3), MODELS[layout]()
    needs = LAYOUTS[layout].lengths(objective.lengths(LENGTH))
    shape = {stack: needs[stack] for stack in ("encoder", "decoder") if stack in needs}
    (group,) = row_groups(objective, LAYOUTS[layout], tiny.IDS, [shape])
    plan = tiny.plan(model, objective, shape)
    mesh = tiny.mesh_of(1)
    params = new_state(abstract_state_of(plan), 0, mesh).params
    # Logits of an untrained model hardly depend on the tokens, so the weights are scaled up.
    params = jax.tree.map(lambda x: 3 * x, params)
    tokens = np.random.default_rng(0).integers(2, 100, (ROWS, LENGTH), dtype=np.int32)
    rows = Row(tokens, np.ones_like(tokens), np.zeros(ROWS, np.int32))
    return objective, model, params, group, jax.random.split(jax.random.key(1), ROWS), rows


@functools.cache
def corrupted(layout):
    """Returns the features of the rows after the objective's corruption."""
    objective, _, _, group, keys, rows = case(layout)
    return jax.jit(batched(objective, group.features))(keys, rows)


@functools.cache
def filled(layout):
    return filled_in(layout, case(layout)[-1])


def filled_in(layout, rows):
    objective, model, params, group, keys, _ = case(layout)
    return infill(objective, trained(model, params), group, keys, rows)


@pytest.mark.slow
@pytest.mark.parametrize("layout", MODELS)
def test_given_and_truth_are_inputs_and_targets_of_the_objective(layout):
    features = corrupted(layout)
    for example, inputs, targets in zip(
        filled(layout), *map(np.asarray, (features["inputs"], features["targets"]))
    ):
        assert example.given == inputs.tolist()[: inputs.tolist().index(EOS)]
        assert example.truth == targets.tolist()[: targets.tolist().index(EOS)]
        assert example.predicted != example.truth


@pytest.mark.slow
@pytest.mark.parametrize("layout", MODELS)
def test_predictions_do_not_depend_on_hidden_tokens(layout):
    _, _, _, _, _, rows = case(layout)
    before = filled(layout)
    hidden = np.array([[t not in e.given for t in row] for e, row in zip(before, rows.tokens)])
    assert hidden.any(axis=1).all()
    changed = np.where(hidden, 2 + (rows.tokens + 31) % 98, rows.tokens).astype(np.int32)
    after = filled_in(layout, rows._replace(tokens=changed))
    for a, b in zip(before, after):
        assert a.given == b.given and a.truth != b.truth
        assert a.predicted == b.predicted


@pytest.mark.slow
@pytest.mark.parametrize("layout", MODELS)
def test_predictions_depend_on_given_tokens(layout):
    _, _, _, _, _, rows = case(layout)
    other = filled_in(layout, rows._replace(tokens=rows.tokens[::-1].copy()))
    assert any(a.predicted != b.predicted for a, b in zip(filled(layout), other))


@pytest.mark.slow
@pytest.mark.parametrize("layout", MODELS)
def test_greedy_infilling_equals_stepwise_argmax(layout):
    """The targets are built by hand, with one run of the model for each prefix."""
    _, model, params, group, _, _ = case(layout)
    features = corrupted(layout)
    arrange = LAYOUTS[layout].arrange
    T = group.features["targets"]
    tokens = np.zeros((ROWS, T), np.int32)

    @jax.jit
    def logits(targets, segments):
        batch = jax.vmap(lambda row: arrange(row, group.stacks, tiny.IDS.bos, 1))(
            features
            | {"targets": targets, "targets_segments": segments, "targets_weights": segments}
        )
        outputs = model.apply(params, batch)
        hidden = outputs.hidden["top"]
        if "decoder_target_slots" in batch:
            hidden = jnp.take_along_axis(hidden, batch["decoder_target_slots"][..., None], 1)
        return outputs.head("vocabulary", hidden)

    for t in range(T):
        segments = np.broadcast_to((np.arange(T) <= t).astype(np.int32)[None], (ROWS, T))
        tokens[:, t] = np.asarray(logits(tokens, segments))[:, t].argmax(-1)
    room = np.ones((ROWS, T), np.int32)
    blank = features | {"targets": 0 * room, "targets_segments": room, "targets_weights": room}
    batch = jax.jit(jax.vmap(lambda row: arrange(row, group.stacks, tiny.IDS.bos, 1)))(blank)
    np.testing.assert_array_equal(
        jax.jit(lambda b: greedy_targets(model, params, b))(batch), tokens
    )
    assert len(np.unique(tokens)) > 4


def printed(show) -> str:
    console = Console(width=200, record=True, quiet=False, file=open("/dev/null", "w"))
    show(console)
    return console.export_text()


def test_shown_example_has_prediction_and_truth_of_each_blank():
    first, second = tiny.IDS.sentinels[:2]
    example = Infilled(
        given=[5, first, 6, second],
        predicted=[first, 7, 8, second, 9],
        truth=[first, 7, 8, second, 10],
    )
    text = printed(lambda console: print_example(console, example, tiny.IDS.sentinels, decode))
    assert "·5⟨0⟩·6⟨1⟩" in text
    assert "⟨0⟩ predicted '·7·8'  truth '·7·8'" in text
    assert "⟨1⟩ predicted '·9'  truth '·10'" in text


@pytest.mark.slow
def test_only_text_sentinels_and_the_end_are_predicted():
    """This holds for any token that the model finds most likely."""
    objective, model, params, group, keys, rows = case("encoder_decoder")
    text, written = [*range(*tiny.IDS.text)], set()
    for best in (tiny.IDS.pad, tiny.IDS.sentinels[0], text[0], text[-1] + 1, 127):
        forced = ForcedModel(model, best)
        for example in infill(objective, trained(forced, params), group, keys, rows):
            written |= set(example.predicted)
    assert written <= {*text, *tiny.IDS.sentinels}
    assert {text[0], tiny.IDS.sentinels[0]} <= written


class ForcedModel:
    """A model whose most likely token is always the same."""

    def __init__(self, model, best: int):
        self.model, self.best = model, best

    def __getattr__(self, name):
        return getattr(self.model, name)

    def apply(self, params, batch):
        outputs = self.model.apply(params, batch)

        def head(name, hidden):
            return outputs.head(name, hidden).at[..., self.best].add(1e4)

        return outputs._replace(head=head)


@pytest.mark.slow
@pytest.mark.parametrize("layout", MODELS)
def test_passages_are_shown_only_for_objectives_with_inputs(layout):
    _, model, params, _, _, _ = case(layout)
    documents = [Document(tokens) for tokens in tiny.documents(10)]

    def show(objective, documents=documents, **settings):
        return printed(
            lambda console: show_passages(
                console, objective, trained(model, params), lambda member: documents, 2, **settings
            )
        )

    assert show(tiny.span_and_prefix()).count("truth") >= 2
    assert show(causal_lm(tiny.IDS)) == ""
    assert show(tiny.span_and_prefix(), documents[:1]) == ""


@pytest.mark.slow
def test_passages_come_from_the_source_of_the_shown_member():
    _, model, params, _, _, _ = case("encoder_decoder")
    spans = functools.partial(span_corruption, mean_span_length=2)
    objective = mixture(tiny.IDS, {"causal": (causal_lm, 1), "spans": (spans, 1)})
    texts = {1: [Document(np.full(400, 77, np.int32))]}
    shown = printed(
        lambda console: show_passages(
            console, objective, trained(model, params), texts.__getitem__, 2
        )
    )
    assert "·77" in shown


@pytest.mark.slow
def test_whole_documents_are_shown_as_examples():
    """A document is a question and its answer, without tokens of other documents."""
    _, model, params, _, _, _ = case("encoder_decoder")
    ids = tiny.IDS._replace(sep=101)
    pairs = [in_parts([2 + i] * (5 + i), [50 + i] * 2) for i in range(4)]
    text = printed(
        lambda console: show_passages(
            console,
            text_to_text(ids, longest_answer=4),
            trained(model, params, ids),
            lambda member: pairs,
        )
    )
    for i in range(4):
        assert f"{'─' * 40}\n{f'·{2 + i}' * (5 + i)}\n" in text
        assert f"truth '·{50 + i}·{50 + i}'" in text


def test_token_classes_are_not_shown_as_blanks():
    ids = tiny.IDS._replace(cls=102, sep=101)
    objective = token_classification(ids, num_classes=3)
    model = models.encoder(
        128,
        ("token_classes",),
        emb_dim=16,
        num_heads=2,
        head_dim=8,
        mlp_dim=32,
        num_layers=1,
        num_classes=3,
    )
    documents = [Document(tokens, labels=0 * tokens) for tokens in tiny.documents(10)]
    shown = printed(
        lambda console: show_passages(
            console, objective, trained(model, {}, ids), lambda member: documents
        )
    )
    assert shown == ""


@pytest.mark.slow
def test_masks_are_filled_in_place_in_text_order():
    ids = tiny.IDS._replace(mask=103)
    objective = masked_lm(ids, rate=0.3, mask_share=0.8, framed=False)
    model = models.encoder(128, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=32, num_layers=1)
    (group,) = row_groups(objective, LAYOUTS["encoder"], ids, [{"encoder": LENGTH}])
    *_, keys, rows = case("decoder")
    features = jax.tree.map(np.asarray, jax.jit(batched(objective, group.features))(keys, rows))
    arrange = LAYOUTS["encoder"].arrange
    batch = jax.jit(jax.vmap(lambda row: arrange(row, group.stacks, ids.bos, 1)))(features)
    params = init(model, batch)
    first, end = ids.text
    best = first + np.argmax(logits_of(model)(params, batch)[..., first:end], -1)
    filled = infill(objective, trained(model, params, ids), group, keys, rows)
    assert len(filled) == ROWS
    for example, inputs, tokens, guess in zip(filled, features["inputs"], rows.tokens, best):
        masks = np.flatnonzero(inputs == ids.mask)
        assert 0 < masks.size < 7  # some of the seven labels belong to random or kept tokens
        given = inputs.tolist()
        for place, sentinel in zip(masks, ids.sentinels):
            given[place] = sentinel
        assert example.given == given
        numbered = zip(ids.sentinels, tokens[masks].tolist(), guess[masks].tolist())
        truth, predicted = zip(*(((s, t), (s, g)) for s, t, g in numbered))
        assert example.truth == [x for pair in truth for x in pair]
        assert example.predicted == [x for pair in predicted for x in pair]
