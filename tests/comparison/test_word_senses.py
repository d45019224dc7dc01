"""Uses of words in two meanings, and planted states that do or do not distinguish them."""

import types

import numpy as np
import pytest

from pretrax.comparison.eval_metrics import word_senses
from pretrax.comparison.eval_metrics.word_senses import (
    CODE,
    PROSE,
    WordUse,
    frequent_uses,
    library_uses,
    placed_uses,
    separation,
    word_in_context,
)
from tests.comparison.subjects import subject_of
from tests.inference.runs import trained
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("few_library_files")

SMALL = dict(words=4, uses=4, context=8)
MODELS = {
    "encoder": "masked_lm",
    "decoder": "causal_lm",
    "encoder_decoder": "span_corruption",
    "electra": "replaced_token_detection",
}


@pytest.fixture(scope="module")
def uses():
    return list(library_uses())


def measured(builder, found, monkeypatch, **settings):
    monkeypatch.setattr(word_senses, "library_uses", lambda: found)
    subject = subject_of(trained(builder, MODELS[builder]))
    return {figure.name: figure for figure in word_in_context(subject, **SMALL | settings)}


def test_words_with_most_uses_in_both_meanings_come_first():
    counts = {"set": (3, 5), "list": (9, 4), "rare": (1, 9)}
    uses_of_words = [
        WordUse(word, meaning, f"{k}", "")
        for word, numbers in counts.items()
        for meaning, number in zip((PROSE, CODE), numbers)
        for k in range(number)
    ]
    found = frequent_uses(uses_of_words, 2)
    assert [of_word[0].word for of_word in found] == ["list", "set"]
    assert frequent_uses(uses_of_words[::-1], 2) == found  # in any order


def test_uses_of_a_word_have_the_same_tokens_at_the_same_position(uses):
    trained_model = trained("encoder", "masked_lm")
    placed = placed_uses(trained_model, frequent_uses(uses, 4)[0], uses=4, context=8)
    assert [use.meaning for use in placed] == [PROSE, CODE] * 4
    (word,) = {use.word for use in placed}
    for use in placed:
        assert (
            trained_model.decode(use.tokens[8:-8]).strip() == word
            and use.end == len(use.tokens) - 9
        )
    assert len({(use.word_tokens, use.end, len(use.tokens)) for use in placed}) == 1


def test_separation_matches_hand_computed_values():
    """The separation follows from the angles between the states."""
    angles = np.deg2rad([0, 10, 100, 40])
    states = np.stack([np.cos(angles), np.sin(angles)], 1)
    # States of one meaning are 10 and 60 degrees apart; those of different meanings are 100, 40, 90
    # and 30 degrees apart.
    assert separation("aaaa", [0, 0, 1, 1], states) == (4 + 2) / 8
    assert separation("aaaa", [0, 0, 1, 1], 5 * np.ones_like(states)) == 0.5
    both = separation("aaaabbbb", [0, 0, 1, 1] * 2, np.concatenate([states, np.ones((4, 2))]))
    assert both == (0.75 + 0.5) / 2


@pytest.mark.sampled
@pytest.mark.parametrize("builder", MODELS)
def test_embeddings_alone_score_chance(builder, uses, monkeypatch):
    found = measured(builder, uses, monkeypatch)
    assert found["word_in_context/layer_0"].value == 0.5
    assert {"word_in_context", "word_in_context/layer_1", "word_in_context/neighbors"} < set(found)
    assert found["word_in_context"].note.startswith("layer ")


def test_planted_states_are_separated_at_the_chosen_layer(uses, monkeypatch):
    """Layer 1 distinguishes the meanings. Constant states of any size score chance."""
    meaning_of = {}
    place = word_senses.placed_use

    def placed(*arguments):
        found = place(*arguments)
        if found:
            meaning_of[tuple(found.tokens)] = found.meaning
        return found

    def states(one, tokens, layers):
        for i, row in enumerate(tokens):
            planted = np.zeros((len(layers), len(row), 2))
            planted[..., 0] = 1 + i
            planted[[layer == 1 for layer in layers], :, meaning_of[tuple(row)]] += 1000
            yield i, types.SimpleNamespace(layers=planted, text=slice(0, len(row)))

    monkeypatch.setattr(word_senses, "placed_use", placed)
    monkeypatch.setattr(word_senses, "states", states)
    found = measured("encoder", uses, monkeypatch)
    assert found["word_in_context"].value == 1.0 and "layer 1" in found["word_in_context"].note
    assert found["word_in_context/layer_0"].value == found["word_in_context/neighbors"].value == 0.5


def test_invalid_word_sense_settings_are_rejected(uses, monkeypatch):
    with refuses(ValueError, "4000"):
        measured("encoder", uses, monkeypatch, uses=4000)
    with refuses(ValueError, "uses", "4", "3"):
        measured("encoder", uses, monkeypatch, uses=3)
    with refuses(ValueError, "layer", 7):
        measured("encoder", uses, monkeypatch, layers=[7])
