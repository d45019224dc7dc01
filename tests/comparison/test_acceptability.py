"""Minimal pairs: which parts are exchanged, and models that must not score too high."""

import collections
import functools
import json

import numpy as np
import pytest

from pretrax.comparison.eval_metrics import acceptability as module
from pretrax.comparison.eval_metrics.acceptability import (
    blimp_pairs,
    log_probs_by_form,
    log_probs_by_noise,
    minimal_pairs,
    scored,
)
from pretrax.comparison.eval_metrics.parts import python_pairs as making
from pretrax.comparison.eval_metrics.parts.likelihoods import likelihood_form
from pretrax.comparison.eval_metrics.parts.noise import is_bounded_by_noise
from pretrax.comparison.eval_metrics.parts.python_pairs import KINDS, MinimalPair, python_pairs
from pretrax.corpora.python_library.python_sources import (
    LibraryText,
    library_documents,
    split_documents,
)
from tests.comparison.subjects import subject_of, subject_with_noise, with_constant_outputs
from tests.inference.runs import trained
from tests.refusals import refuses

CODE = '''
def total_of(values):
    """Return the sum of all values but the first."""
    total = sum(values[1:])
    while not total:
        total = 1
    return total
'''


@functools.cache
def library(count: int = 2) -> list[MinimalPair]:
    return python_pairs(split_documents(library_documents())["heldout"], count)


def test_minimal_pairs_exchange_two_places():
    pairs = python_pairs([LibraryText("a.py", "", lambda: CODE)], 1)
    found = {pair.kind: pair for pair in pairs}
    assert list(found) == list(KINDS)[:4] + ["words"]  # a single operator
    code = CODE.replace('    """Return the sum of all values but the first."""\n', "").lstrip()
    assert found["brackets"].good == code
    assert found["brackets"].bad in (
        code.replace("[1:])", "[1:)]"),
        code.replace("(values):", "(values]:").replace("1:]", "1:)"),
    )
    assert "values[" not in found["names"].bad and "sum(total[" in found["names"].bad
    assert found["words"].good == "Return the sum of all values but the first."
    assert found["words"].bad == "Return the sum all of values but the first."


@pytest.mark.slow
def test_library_pairs_have_the_same_characters_and_a_wrong_text():
    pairs = library()
    assert collections.Counter(pair.kind for pair in pairs) == dict.fromkeys(KINDS, 2)
    assert python_pairs(split_documents(library_documents())["heldout"], 2) == pairs
    for kind, good, bad in pairs:
        assert good != bad and sorted(good) == sorted(bad)
        if kind != "words":
            assert making.compiles(good) and making.compiles(bad) == (kind == "names")


@pytest.mark.slow
def test_constant_outputs_score_one_half():
    constant = subject_of(trained("decoder", "causal_lm"), constant=True)
    summary, *kinds = minimal_pairs(constant, pairs=2)
    assert (summary.value, summary.baseline, summary.note) == (0.5, 0.5, "12 pairs")
    assert [(k.name, k.value) for k in kinds] == [(f"minimal_pairs/{k}", 0.5) for k in KINDS]


@pytest.mark.slow
def test_unigram_model_scores_one_half(monkeypatch):
    """A unigram model of bytes, with any frequencies."""
    nats = np.random.default_rng(0).exponential(size=1000)
    monkeypatch.setattr(
        module, "log_probs", lambda one, reading, texts: [-nats[rest] for _, rest in texts]
    )
    one = trained("decoder", "causal_lm")
    assert [f.value for f in minimal_pairs(subject_of(one), pairs=2)] == [0.5] * 7


PAIR = MinimalPair("words", "the tea", "tea the")
BOTH = [PAIR, PAIR._replace(good=PAIR.bad, bad=PAIR.good)]


@pytest.mark.parametrize(
    "builder, name",
    [("encoder", "masked_lm"), ("encoder_decoder", "prefix_lm"), ("encoder", "masked_diffusion")],
)
def test_tie_scores_half_a_point_in_any_order(builder, name):
    def points(one):
        return scored(log_probs_by_form(one, likelihood_form(one), BOTH))

    one = trained(builder, name)
    assert sorted(points(one)) == [0.0, 1.0]
    assert points(with_constant_outputs(one)) == [0.5, 0.5]


@pytest.mark.slow
@pytest.mark.parametrize(
    "builder, name", [("decoder", "block_diffusion"), ("encoder", "uniform_diffusion")]
)
def test_both_texts_of_a_pair_share_their_noise(builder, name):
    subject = subject_with_noise(trained(builder, name), name)
    assert is_bounded_by_noise(subject)
    right, wrong = log_probs_by_noise(subject, BOTH[:1], 8)
    exchanged = log_probs_by_noise(subject, BOTH[1:], 8)
    assert right != wrong and exchanged == pytest.approx([wrong, right], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("texts", [("", "tea"), ("", ""), ("t", "e")])
def test_empty_and_one_token_texts_are_scored_by_noise(texts):
    """An empty text has 0 nats, and a single token needs rows of two."""
    subject = subject_with_noise(trained("decoder", "block_diffusion"), "block_diffusion")
    found = log_probs_by_noise(subject, [MinimalPair("words", *texts)], 8)
    assert [x == 0 for x in found] == [not text for text in texts]


@pytest.mark.slow
def test_pairs_have_different_noise_and_ties_score_half_a_point():
    constant = with_constant_outputs(trained("decoder", "block_diffusion"))
    subject = subject_with_noise(constant, "block_diffusion")
    found = log_probs_by_noise(subject, BOTH, 8)
    assert scored(found) == [0.5, 0.5] and found[0] != found[2]


def test_common_prefix_of_a_pair_is_given_to_a_prefix_model(monkeypatch):
    asked = []
    monkeypatch.setattr(
        module, "log_probs", lambda one, reading, texts: asked.extend(texts) or [[0.0]] * 2
    )
    one = trained("encoder_decoder", "prefix_lm")
    log_probs_by_form(one, likelihood_form(one), [MinimalPair("", "ab cd", "ab dc")])
    good, bad = ([one.decode(part) for part in text] for text in asked)
    assert (good, bad) == (["ab ", "cd"], ["ab ", "dc"])


def test_blimp_files_are_read_and_scored_by_kind(tmp_path):
    lines = [
        {"sentence_good": f"{x} is", "sentence_bad": f"{x} are", "UID": "agreement"} for x in "abc"
    ]
    (tmp_path / "agreement.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pairs = blimp_pairs(str(tmp_path), 2)
    assert pairs == [MinimalPair("agreement", f"{x} is", f"{x} are") for x in "ab"]
    trained_model = trained("decoder", "causal_lm")
    _, kind = minimal_pairs(subject_of(trained_model), blimp=str(tmp_path))
    assert kind.name == "minimal_pairs/agreement"
    (tmp_path / "wrong.jsonl").write_text('{"good": "a"}\n')
    with refuses(ValueError, "wrong.jsonl", "1", "sentence_good"):
        blimp_pairs(str(tmp_path), 2)
    with refuses(ValueError, tmp_path / "nothing"):
        blimp_pairs(str(tmp_path / "nothing"), 2)
