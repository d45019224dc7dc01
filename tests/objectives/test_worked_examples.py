"""Objectives that hide tokens can hide exactly the chosen tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.objectives import (
    Row,
    blank_infilling,
    causal_lm,
    causal_masking,
    contrastive,
    hide,
    iid_denoising,
    masked_lm,
    span_corruption,
    text_infilling,
)
from pretrax.objectives.worked_examples import check_hides, hidden_features
from tests.objectives.inverse import corrupted_documents
from tests.objectives.registry import CASES, IDS, features_of
from tests.refusals import assert_named, refuses

TOKENS = np.arange(11, 22, dtype=np.int32)  # All tokens are different.
SEGMENTS = np.repeat([1, 2], [6, 5]).astype(np.int32)
# A run across the border of two documents counts as two runs. The end of each document is hidden.
HIDDEN = np.array([1, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1], bool)
ENDS = np.array([0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1], bool)
ONE_RUN = np.array([0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0], bool)
MIDDLES = np.array([0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0], bool)

HIDING = {  # one case of each type
    **dict.fromkeys(["span_anywhere", "iid", "causal_masking", "blanks"], HIDDEN),
    **dict.fromkeys(
        ["masked_lm", "masked_lm_adaptive", "masked_next", "masked_permuted", "replaced"], HIDDEN
    ),
    **dict.fromkeys(["diffusion", "diffusion_informed", "diffusion_shifted"], HIDDEN),
    **dict.fromkeys(["block_diffusion", "permutation", "edits"], HIDDEN),
    **dict.fromkeys(["insertions_and_masks"], HIDDEN),
    **dict.fromkeys(["insertions", "token_deletion", "text_infilling", "bart"], HIDDEN),
    **{
        "prefix": ENDS,
        "middle": MIDDLES,
        "mass": ONE_RUN,
        "retromae": HIDDEN,
    },
}
INFILLING = ("text_infilling", "bart")  # Their inverses count the hidden tokens.


def hidden_documents(name, hidden):
    """Returns ({document: its features}, inverse) of two documents in a row, and all features."""
    case = CASES[name]
    columns = (TOKENS, SEGMENTS, np.int32(0))
    rows = Row(*(np.stack([x, x]) for x in columns), hidden=np.stack([hidden, hidden]))
    keys = jnp.stack([jax.random.key(3)] * 2)
    features = hidden_features(case.objective, keys, rows, [(6, 5)])
    return corrupted_documents(features_of(features, 0)), case.inverses[0]


@pytest.mark.sampled
@pytest.mark.parametrize("name", HIDING)
def test_exactly_the_selected_tokens_are_hidden(name):
    hidden = HIDING[name]
    found, undo = hidden_documents(name, hidden)
    for number in (1, 2):
        in_document = number == SEGMENTS
        document, corrupted = TOKENS[in_document].tolist(), found[number]
        chosen = TOKENS[in_document & hidden].tolist()
        if name in INFILLING:
            assert corrupted.targets == [*document, IDS.eos]
            assert corrupted.inputs.count(IDS.mask) == 2  # Each run has one mask.
        else:
            assert undo(corrupted) == document
        if corrupted.labeled:
            assert sorted(token for _, token in corrupted.labeled) == chosen
        elif corrupted.inputs:
            given = [token for token in corrupted.inputs if token in document]
            assert sorted(given) == sorted(set(document) - set(chosen))
        else:  # These tokens are predicted after all others.
            last = max(corrupted.targets.index(x) for x in document if x not in chosen)
            assert all(corrupted.targets.index(x) > last for x in chosen)


@pytest.mark.slow
def test_every_objective_that_supports_hide_is_tested():
    builders = {CASES[name].builder for name in HIDING}
    reading = set()
    for case in CASES.values():
        if case.builder in builders or case.objective.facts.members:
            continue
        try:
            check_hides(case.objective, IDS)
            reading.add(case.builder)
        except ValueError as error:
            assert_named(str(error), "span_corruption", "masked_lm")
    # The first two share their noise with token deletion. The others also predict visible tokens.
    deleting = {"token_masking", "contrastive"}
    with_masks = {"masked_input_next_token", "masked_input_regularization", "causal_diffusion"}
    replaced = {"uniform_diffusion", "mixed_diffusion", "unrolled_denoising", "embedding_diffusion"}
    assert reading == deleting | with_masks | replaced | {"complementary_diffusion"}


@pytest.mark.slow
def test_adjacent_spans_with_different_numbers_stay_separate():
    x, y, z = IDS.sentinels[:3]
    tokens, numbers = TOKENS[:6], [1, 1, 2, 0, 0, 3]
    features = hide(span_corruption, IDS, tokens, numbers)
    assert features["inputs"].tolist() == [x, y, 14, 15, z, IDS.eos]
    assert features["targets"].tolist() == [x, 11, 12, y, 13, z, 16, IDS.eos]
    runs = hide(iid_denoising, IDS, tokens, numbers)
    assert runs["targets"].tolist() == features["targets"].tolist()
    infilled = hide(text_infilling, IDS, tokens, numbers)
    assert infilled["inputs"].tolist() == [IDS.mask, IDS.mask, 14, 15, IDS.mask, IDS.eos]
    blanks = hide(blank_infilling, IDS, tokens, numbers)
    assert blanks["inputs"].tolist() == [IDS.mask, IDS.mask, 14, 15, IDS.mask]
    moved = hide(causal_masking, IDS, tokens, numbers)
    assert moved["targets"].tolist()[:5] == [x, y, 14, 15, z]
    joined = hide(span_corruption, IDS, tokens, np.array(numbers) > 0)
    assert joined["inputs"].tolist() == [x, 14, 15, y, IDS.eos]


@pytest.mark.slow
def test_hide_respects_closing_sentinel_setting():
    for build in (span_corruption, iid_denoising):
        closed = hide(build, IDS, TOKENS[:4], [0, 1, 0, 0])["targets"].tolist()
        bare = hide(functools.partial(build, closing_sentinel=False), IDS, TOKENS[:4], [0, 1, 0, 0])
        assert closed == [IDS.sentinels[0], 12, IDS.sentinels[1], IDS.eos]
        assert bare["targets"].tolist() == [IDS.sentinels[0], 12, IDS.eos]


@pytest.mark.slow
def test_hide_rejects_invalid_selections():
    with refuses(ValueError, "span_corruption", "masked_lm"):
        hide(causal_lm, IDS, TOKENS, HIDDEN)
    with refuses(ValueError, list(TOKENS.shape), list(HIDDEN[1:].shape), "True", "False"):
        hide(span_corruption, IDS, TOKENS, HIDDEN[1:])
    with refuses(ValueError, list(HIDDEN.shape), "True"):
        hide(span_corruption, IDS, TOKENS, np.zeros_like(HIDDEN))
    for tokens, wrong in (
        ([11, 99_999, 12], 99_999),
        ([-4, 11, 12], -4),
        ([11, 12, IDS.eos], IDS.eos),
        ([11, 12, IDS.sentinels[0]], IDS.sentinels[0]),
    ):
        with refuses(ValueError, wrong):
            hide(masked_lm, IDS, tokens, [0, 1, 0])
    with refuses(ValueError, "float64"):
        hide(masked_lm, IDS, [11, 2.7, 12], [0, 1, 0])
    with refuses(ValueError, "3", "1000"):
        hide(masked_lm, IDS, [11, 12, 13], [1] * 1000)
    with refuses(ValueError, "9", "8"):
        hide(causal_masking, IDS, np.arange(11, 29), [1, 0] * 9)
    three_sentinels = IDS._replace(sentinels=IDS.sentinels[:3])
    every_second = np.arange(TOKENS.size) % 2 == 0
    with refuses(ValueError, "7", "3"):
        hide(span_corruption, three_sentinels, TOKENS, every_second)


def test_hide_masks_one_token_per_contrastive_view():
    masked = functools.partial(contrastive, views="masking")
    given = hide(masked, IDS, TOKENS[:5], MIDDLES[:5])["inputs"].tolist()
    assert given.count(IDS.mask) == 2 and not {13, 14} & set(given)  # Each view has a mask.
