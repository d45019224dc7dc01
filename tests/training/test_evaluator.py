"""Held-out losses are reproducible, cover every token, and have the correct baseline."""

import functools
import itertools
import types

import jax
import numpy as np
import optax
import pytest

from pretrax import models
from pretrax.data.corpus import Codec, Corpus, Document
from pretrax.data.packing import stacked
from pretrax.objectives import (
    BatchLoss,
    Row,
    Term,
    batched,
    causal_lm,
    contrastive,
    future_summary,
    masked_diffusion,
    multi_token_prediction,
    next_latent,
    replaced_token_detection,
    sequence_classification,
)
from pretrax.training.devices.mesh import placed_on
from pretrax.training.evaluator import EVALUATION_SEED, Evaluator
from pretrax.training.heldout_evaluation import bytes_per_token
from pretrax.training.heldout_scores import Score, total_loss
from tests.training import tiny

EOS = 1
HELDOUT = 500  # number of tokens, not a multiple of a row


def heldout():
    """Returns pieces of documents. Every third piece is not the last piece of its document."""
    return [Document(d, ends_document=i % 3 != 0) for i, d in enumerate(tiny.documents(40, seed=3))]


def labeled():
    """Returns documents of class 1, with every fourth document of class 2."""
    documents = enumerate(d[:29] for d in tiny.documents(40, seed=3))
    return [Document(d, labels=np.full(d.size, 1 if i % 4 else 2, np.int32)) for i, d in documents]


@functools.cache
def run(shape=(1, 1, 1)):
    mesh = tiny.mesh_of(*shape)
    plan = tiny.plan(tiny.decoder(), tiny.span_and_prefix(), {"decoder": 32}, mesh=mesh)
    return plan, mesh, tiny.parameters(plan)


def corpus_of(pieces, training, **settings):
    return Corpus(tiny.IDS, lambda *shard: training, lambda tokens: pieces, **settings)


def with_corpus(plan, corpus):
    packing = plan.packing._replace(end_of_document=EOS)
    return plan._replace(corpus=corpus, packing=packing)


def evaluator(shape=(1, 1, 1), one=None, pieces=None, **settings):
    default, mesh, _ = run(shape)
    documents = itertools.cycle(pieces or ())
    stream = tiny.TextStream(0, 1)
    if pieces:
        stream = types.SimpleNamespace(next_document=lambda: next(documents))
    plan = with_corpus(one or default, corpus_of(pieces or heldout(), stream))
    return Evaluator(plan._replace(mesh=mesh), **{"tokens": HELDOUT} | settings)


@functools.cache
def usual():
    """Returns an evaluator that several tests share."""
    return evaluator()


@functools.cache
def scores():
    return usual()(run()[2])


def assert_close(a, b):
    for one, other in zip(a, b, strict=True):
        assert (one.member, one.targets) == (other.member, other.targets)
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.baseline == pytest.approx(other.baseline, rel=1e-5)


@pytest.mark.slow
def test_evaluation_is_reproducible():
    assert evaluator()(run()[2]) == scores()
    assert [s.member for s in scores()] == ["span", "prefix"]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [6, 64])
def test_batch_size_does_not_change_the_scores(rows):
    assert_close(evaluator(rows=rows)(run()[2]), scores())


@pytest.mark.slow
def test_corruption_is_traced_once_for_heldout_and_training_text():
    """The held-out text is one batch, and the training text is several batches."""
    one, traced = tiny.plan(tiny.decoder(), causal_lm(tiny.IDS), {"decoder": 32}), []
    objective = one.recipe.objective

    def corrupt(*arguments):
        traced.append(arguments)
        return objective.corrupt(*arguments)

    recipe = one.recipe._replace(objective=objective._replace(corrupt=corrupt))
    evaluator(one=one._replace(recipe=recipe), rows=64)
    assert len(traced) == 1


@pytest.mark.slow
def test_mesh_does_not_change_the_scores():
    shape = (2, 2, 2)
    assert_close(evaluator(shape)(run(shape)[2]), scores())


@pytest.mark.slow
def test_every_heldout_token_counts_including_the_last_row():
    """Causal LM predicts every token once, and end-of-sequence after each row."""
    plan = tiny.plan(tiny.decoder(), causal_lm(tiny.IDS), {"decoder": 33})
    (raw,) = plan.recipe.groups[0].raw_lengths
    rows = -(-HELDOUT // raw)
    assert HELDOUT % raw
    targets_of_a_row = causal_lm(tiny.IDS).lengths(raw)["targets"]
    (score,) = evaluator(one=plan)(run()[2])
    assert score.targets == HELDOUT + rows * (targets_of_a_row - raw)


@pytest.mark.slow
def test_scores_equal_an_independent_numpy_computation():
    one, mesh, params = run()
    recipe, (group,) = one.recipe, one.recipe.groups
    text = np.concatenate([np.append(d, [EOS] * ends) for d, ends, *_ in heldout()]).astype(int)
    text = text[:HELDOUT]
    training = tiny.text_of(tiny.TextStream(0, 1), 8 * HELDOUT, EOS)

    def rows(member, tokens):
        raw = group.raw_lengths[member]
        pieces = [tokens[i : i + raw] for i in range(0, len(tokens), raw)]
        pieces += [tokens[:0]] * (len(pieces) % 2)
        keys = jax.random.split(jax.random.key(EVALUATION_SEED), len(pieces))
        packed = [Row(piece, np.ones(piece.size, np.int32), member) for piece in pieces]
        return keys, stacked(packed, group.row_length)

    corrupt = jax.jit(batched(recipe.objective, group.features, group.max_documents))
    for member, score in enumerate(scores()):
        counts = []
        for tokens in (training, text):
            features = corrupt(*rows(member, tokens))
            counted = np.asarray(features["targets"])[np.asarray(features["targets_weights"]) > 0]
            counts.append(np.bincount(counted, minlength=tiny.IDS.size))
        share = (counts[0] + 1) / (counts[0] + 1).sum()
        expected = -(counts[1] * np.log(share)).sum() / counts[1].sum()
        assert score.targets == counts[1].sum()
        assert score.baseline == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_loss_of_equal_logits_is_the_log_of_the_vocabulary():
    """A model with equal logits for all ids has the logarithm of the vocabulary as its loss."""
    one, mesh, params = run()
    with placed_on(mesh):
        nothing = jax.tree.map(lambda x: 0 * x, params)
    for score, other in zip(usual()(nothing), scores(), strict=True):
        assert score.loss == pytest.approx(np.log(128), rel=1e-5)
        assert score.baseline == other.baseline and score.targets == other.targets


@pytest.mark.slow
def test_term_with_small_weights_is_a_weighted_mean():
    plan = tiny.plan(tiny.decoder(), causal_lm(tiny.IDS), {"decoder": 32})

    def loss(batch):
        usual = plan.recipe.objective.loss(batch)
        return BatchLoss(
            {"mine": Term(1e-4 * usual.terms["tokens"].weights)},
            lambda outputs: {"mine": 1e-4 * usual.sums(outputs)["tokens"].losses},
        )

    recipe = plan.recipe._replace(objective=plan.recipe.objective._replace(loss=loss))
    nothing = jax.tree.map(lambda x: 0 * x, run()[2])
    (score,) = evaluator(one=plan._replace(recipe=recipe))(nothing)
    assert score.loss == score.baseline == pytest.approx(np.log(128), rel=1e-5)


@pytest.mark.slow
def test_terms_have_their_trained_or_final_scale():
    """The example is DeepSeek-V3's lambda of two terms ahead, which falls to 0.1 in 10 steps."""
    falling = optax.linear_schedule(0.3, 0.1, 10)
    objective = multi_token_prediction(tiny.IDS, tokens=3, ahead_scale=falling)
    model = models.decoder(128, objective.facts.heads, **tiny.SIZES, num_layers=2)
    plan = tiny.plan(model, objective, {"decoder": 32})
    found = evaluator(one=plan)(tiny.parameters(plan))
    scales = {score.term: score.scale for score in found}
    assert scales == pytest.approx({"tokens": 1.0, "ahead_2": 0.05, "ahead_3": 0.05})
    loss = {score.term: score.loss for score in found}
    expected = loss["tokens"] + 0.05 * (loss["ahead_2"] + loss["ahead_3"])
    assert total_loss(found) == pytest.approx(expected)


def test_total_loss_sums_trained_terms_and_averages_members():
    """ELECTRA's second term has a weight of fifty."""
    tokens = Score("electra", "tokens", 5.0, 6.0, 9)
    replaced = Score("electra", "replaced", 0.3, 0.4, 60, scale=50.0)
    share = Score("electra", "replaced_share", 0.2, None, 60, metric=True, scale=0.0)
    assert total_loss([tokens, replaced, share]) == pytest.approx(20.0)
    assert total_loss([tokens, replaced, share, Score("causal", "tokens", 4.0, 6.0, 9)]) == 12.0


IDS = tiny.IDS._replace(sentinels=(), cls=110, mask=111, sep=112)
OTHERS = {
    "views": (models.encoder, contrastive(IDS, "deletion")),
    "generated": (models.electra, replaced_token_detection(IDS, rate=0.4)),
    "masked": (models.encoder, masked_diffusion(IDS)),
    "causal": (models.decoder, causal_lm(IDS)),
    "classes": (models.encoder, sequence_classification(IDS, 3)),
    "summary": (models.decoder, future_summary(IDS)),
    "latent": (models.decoder, next_latent(IDS)),
}


@functools.cache
def figures_of(kind):
    """Returns (scores by term, held-out batches, outputs for each batch) of an objective."""
    build, objective = OTHERS[kind]
    model = build(128, objective.facts.heads, **tiny.SIZES, num_layers=1)
    plan = tiny.plan(model, objective, {model.layout: 32})
    params = tiny.parameters(plan)
    made = evaluator(one=plan, pieces=labeled() if kind == "classes" else None)
    (batches,) = (member.batches for member in made._members.values())
    hidden = [jax.jit(lambda p, b: model.apply(p, b).hidden)(params, batch) for batch in batches]
    return {score.term: score for score in made(params)}, batches, hidden


@pytest.mark.slow
def test_contrastive_baseline_is_the_log_of_the_batch():
    scores, batches, _ = figures_of("views")
    texts = [int((np.asarray(batch["pools_weights"]) > 0).sum()) // 2 for batch in batches]
    expected = np.average(np.log(texts), weights=texts)
    assert scores["contrastive"].baseline == pytest.approx(expected, rel=1e-5)
    assert scores["contrastive"].targets == sum(texts) and not scores["contrastive"].has_perplexity


@pytest.mark.slow
def test_replaced_token_baseline_is_the_entropy_of_its_share():
    scores, batches, hidden = figures_of("generated")
    assert {name: score.metric for name, score in scores.items()} == {
        "tokens": False,
        "replaced": False,
        "replaced_share": True,
    }
    live = [np.asarray(batch["encoder_segment_ids"]) > 0 for batch in batches]
    count = sum(x.sum() for x in live)
    share = sum(np.asarray(h["replaced"])[x].sum() for h, x in zip(hidden, live)) / count
    assert 0.1 < share < 0.5 and scores["replaced"].targets == count
    scales = {name: score.scale for name, score in scores.items()}
    assert scales == {"tokens": 1.0, "replaced": 50.0, "replaced_share": 0.0}
    assert scores["replaced_share"].loss == pytest.approx(share, rel=1e-5)
    entropy = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    assert scores["replaced"].baseline == pytest.approx(entropy, rel=1e-5)
    assert scores["tokens"].has_perplexity and not scores["replaced"].has_perplexity


@pytest.mark.slow
def test_accuracy_baseline_is_the_majority_class():
    scores, batches, _ = figures_of("classes")
    labels = np.concatenate([b["pools_labels"][b["pools_weights"] > 0] for b in batches])
    assert scores["classes_accuracy"].metric and set(labels) == {1, 2}
    share = np.mean(labels == 1)
    assert share > 0.5 and scores["classes_accuracy"].baseline == pytest.approx(share)


@pytest.mark.slow
def test_only_causal_losses_are_text_likelihoods():
    found = {
        kind: [s.term for s in figures_of(kind)[0].values() if s.is_likelihood] for kind in OTHERS
    }
    causal = ("causal", "latent", "summary")
    assert found == dict.fromkeys(OTHERS, []) | dict.fromkeys(causal, ["tokens"])


@pytest.mark.slow
def test_target_weights_count_in_the_baseline():
    """In masked diffusion, a masked token has the weight 1 / rate of its document."""
    (score,) = figures_of("masked")[0].values()
    assert score.baseline == pytest.approx(4.5, rel=0.2)  # about the logarithm of a hundred ids


def test_gain_is_the_relative_improvement_over_the_baseline():
    score = Score("a", "tokens", loss=3.0, baseline=4.0, targets=10)
    assert score.gain == 0.25 and score.name == "a/tokens"
    assert Score("a", "state", loss=1.0, baseline=None, targets=9).gain is None


@pytest.mark.slow
def test_bag_of_words_baseline_is_the_entropy_of_a_random_window():
    scores, batches, _ = figures_of("summary")
    summary = scores["summary"]
    assert not summary.has_perplexity and 0 < summary.baseline < summary.loss
    # A window of 11 tokens has about ten of 98 ids that are about equally frequent.
    p = 9.5 / 98
    entropy = -98 * (p * np.log(p) + (1 - p) * np.log1p(-p))
    assert summary.baseline == pytest.approx(entropy, rel=0.25)


@pytest.mark.slow
def test_states_that_predict_states_have_no_baseline():
    scores, *_ = figures_of("latent")
    assert scores["next_latent"].baseline is scores["next_latent"].gain is None
    assert scores["next_latent"].loss > 0 and scores["tokens"].baseline > 1


def test_bytes_per_token_use_the_text_of_each_member():
    def corpus(size, **settings):
        codec = Codec(encode=lambda text: [], decode=lambda tokens: "x" * size * len(tokens))
        return Corpus(tiny.IDS, tiny.TextStream, lambda n: heldout(), codec=codec, **settings)

    sources = (corpus(2), corpus(3))
    recipe, settings = run()[0].recipe, types.SimpleNamespace(heldout_tokens=HELDOUT)
    for given, expected in [
        (corpus(5), {"span": 5.0, "prefix": 5.0}),
        (corpus(5, sources=sources, member_sources=(1, 0)), {"span": 3.0, "prefix": 2.0}),
    ]:
        plan = types.SimpleNamespace(corpus=given, recipe=recipe, run=settings)
        assert bytes_per_token(plan) == expected


@pytest.mark.slow
def test_each_member_is_scored_on_its_own_text():
    one, _, params = run()

    def scored(numbers, member_sources):
        first, *_ = texts = [corpus_of(heldout()[i:], tiny.TextStream(i, 2)) for i in numbers]
        corpus = first._replace(sources=tuple(texts), member_sources=member_sources)
        found = Evaluator(with_corpus(one, corpus), HELDOUT)
        return {score.member: score for score in found(params)}

    alone = [scored([i], ()) for i in range(2)]
    mixed = scored([0, 1], [1, 0])
    assert mixed == {"span": alone[1]["span"], "prefix": alone[0]["prefix"]}
    assert alone[0]["span"].loss != alone[1]["span"].loss
