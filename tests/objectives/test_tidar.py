"""TiDAR: what masks attend to, the loss compared with the paper's formula, and requirements."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from pretrax import models
from pretrax.objectives import (
    annealed,
    attention_mask,
    block_diffusion,
    causal_lm,
    mixture,
    tidar,
)
from pretrax.objectives.layouts import reads_positions
from pretrax.objectives.tidar import position_after_the_row
from tests.models.small_models import init
from tests.objectives.batches import raw_rows
from tests.objectives.blocks import corrupted
from tests.objectives.linear_outputs import LinearOutputs
from tests.objectives.noised_copies import (
    PACKED,
    SMALL,
    decoder_batch,
    states_of_first_row,
)
from tests.objectives.registry import IDS, RAW_LENGTH
from tests.objectives.waves import waves
from tests.refusals import refuses

VOCABULARY = IDS.size
BLOCKS = {
    "TiDAR": dict(block_size=4),
    "I-DLM": dict(block_size=3, bidirectional=False, shifted=True),
}
with_each_block_kind = pytest.mark.parametrize("settings", BLOCKS.values(), ids=BLOCKS)

# `create_idlm_sdpa_mask` of NVIDIA-NeMo/Automodel at 36044ad3 (`idlm_mask.py`) for six tokens and
# blocks of three. Rows and columns are the masks, and then the clean tokens.
IDLM_ATTENTION = """
100000000000 110000000000 111000000000 000100111000 000110111000 000111111000
000000100000 000000110000 000000111000 000000111100 000000111110 000000111111
"""


def dense_attention(documents, block_size, bidirectional=True, shifted=False):
    """Returns the dense attention of the papers, for [clean tokens | masks] of packed documents.

    The clean tokens of a document are bos and its tokens but the last, which predict its tokens.
    """
    total = sum(documents)
    attends = np.zeros((2 * total, 2 * total), bool)
    first = 0
    for length in documents:
        for i, j in itertools.product(range(length), repeat=2):
            same_block = i // block_size == j // block_size
            clean, mask = first + i, total + first + i
            attends[clean, first + j] = j <= i
            attends[mask, total + first + j] = same_block and (bidirectional or j <= i)
            # The clean token at j is bos or token j - 1 of the document.
            stands_for = i - 1 if shifted else i
            start = stands_for - i % block_size  # the first token that the block stands for
            attends[mask, first + j] = j - 1 < start
        first += length
    return attends


@with_each_block_kind
def test_masks_attend_to_own_block_and_earlier_clean_tokens(settings):
    batch = decoder_batch(tidar(IDS, **settings), raw_rows(PACKED, PACKED)[0])
    total = sum(PACKED)
    expected = dense_attention(PACKED, **settings)
    for row in range(2):
        for queries, keys, column in (
            (slice(0, total), slice(0, total), "decoder_key_intervals"),
            (slice(total, None), slice(total, None), "noised_key_intervals"),
            (slice(total, None), slice(0, total), "noised_clean_intervals"),
        ):
            got = np.asarray(attention_mask(batch[column][row], RAW_LENGTH))[:total]
            np.testing.assert_array_equal(got[:, :total], expected[queries, keys])
            assert not got[:, total:].any()


def test_attention_and_loss_match_published_idlm():
    """The losses are those of `IDLMLoss` of the same repository (`dllm_loss.py`).

    That code predicts six tokens from seven of each kind, and does not divide the sum of its terms
    by 1 + α.
    """
    settings = BLOCKS["I-DLM"]
    raw, _ = raw_rows((6,))
    batch = decoder_batch(tidar(IDS, **settings), raw)
    names = "noised_key_intervals", "noised_clean_intervals", "decoder_key_intervals"
    masks, across, clean = (attention_mask(batch[x][0], RAW_LENGTH)[:6, :6] for x in names)
    expected = [[sees == "1" for sees in line] for line in IDLM_ATTENTION.split()]
    got = np.block([[masks, across], [np.zeros_like(clean), clean]])
    np.testing.assert_array_equal(got, expected)

    targets = np.pad(np.int32([[3, 7, 2, 10, 5, 4]]), ((0, 0), (0, RAW_LENGTH - 6)))
    batch = batch | {"decoder_target_tokens": targets}
    noised, top = (np.pad(x, ((0, RAW_LENGTH - 7), (0, 0)))[None] for x in waves(2, 7, 11))
    loss = tidar(IDS, causal_scale=0.2, **settings).loss(batch)
    terms = loss.scored(LinearOutputs({"top": top, "noised": noised}))
    np.testing.assert_allclose(terms["masked_blocks"].sums / 6, [3.624900457517201], rtol=1e-5)
    total = sum(term.scale * term.sums / term.weights for term in terms.values())
    np.testing.assert_allclose(1.2 * total, [4.140469614317706], rtol=1e-5)


@pytest.mark.slow
@with_each_block_kind
def test_predictions_do_not_depend_on_their_targets(settings):
    """A changed token moves the clean states after it, and the masks of later blocks only."""
    objective = tidar(IDS, **settings)
    raw, _ = raw_rows((9, 4))
    model = models.decoder(VOCABULARY, **SMALL)
    before = decoder_batch(objective, raw)
    params = init(model, before)

    states = states_of_first_row(model, params)
    expected = dense_attention((9, 4), **settings)
    original = states(before)
    for changed in (0, 2, 3, 4, 8, 9, 11):
        tokens = raw.tokens.copy()
        tokens[:, changed] = 99
        after = states(decoder_batch(objective, raw._replace(tokens=tokens)))
        moved = [np.abs(after[x] - original[x]).max(-1)[:13] > 1e-6 for x in ("top", "noised")]
        # The token is read by the clean slot after it, unless its document ends there.
        if changed in (8, 12):
            reads = np.zeros(26, bool)
        else:
            reads = expected[:, changed + 1]
        np.testing.assert_array_equal(np.concatenate(moved), reads)
        assert not moved[0][changed] and not moved[1][changed]


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1.0, 0.2])
def test_loss_matches_paper(alpha):
    """(α · mean of -log p_AR + mean of -log p_masks) / (1 + α), with padding and packed rows."""
    raw, documents = raw_rows(PACKED, PACKED)
    objective = tidar(IDS, block_size=4, causal_scale=alpha)
    batch = decoder_batch(objective, raw)
    rng = np.random.default_rng(0)
    top, noised = rng.normal(size=(2, 2, RAW_LENGTH, VOCABULARY)).astype(np.float32)
    terms = objective.loss(batch).scored(LinearOutputs({"top": top, "noised": noised}))
    sums = {"top": 0.0, "noised": 0.0}
    number = 0
    for row, texts in enumerate(documents):
        slot = 0
        for text in texts:
            for token in text:
                for name, logits in (("top", top), ("noised", noised)):
                    scores = logits[row, slot].astype(np.float64)
                    sums[name] += np.log(np.exp(scores).sum()) - scores[token]
                slot += 1
                number += 1
    for name, states in (("tokens", "top"), ("masked_blocks", "noised")):
        np.testing.assert_allclose(terms[name].sums.sum(), sums[states], rtol=1e-5)
        assert terms[name].weights.sum() == number == 2 * sum(PACKED)
    expected = (alpha * sums["top"] + sums["noised"]) / number / (1 + alpha)
    got = sum(term.scale * term.sums.sum() / term.weights.sum() for term in terms.values())
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_clean_tokens_match_causal_lm():
    raw, _ = raw_rows(PACKED, PACKED)
    plain = decoder_batch(causal_lm(IDS), raw)
    with_masks = decoder_batch(tidar(IDS), raw)
    for name, x in plain.items():
        np.testing.assert_array_equal(with_masks[name], x, name)


@pytest.mark.slow
def test_mixture_keeps_masks_and_noised_copies_of_members():
    """Rows of another member have no masks, and keep the noised copies of block diffusion."""
    members = {"tidar": (tidar, 1), "blocks": (block_diffusion, 1), "causal": (causal_lm, 1)}
    objective = mixture(IDS, members)
    _, batch = corrupted(objective, 3, 20)
    for row, (build, _) in enumerate(members.values()):
        _, alone = corrupted(build(IDS), 3, 20)
        if build is causal_lm:
            assert not batch["noised_segment_ids"][row].any()
            continue
        for name in ("input_tokens", "segment_ids", "positions", "clean_intervals"):
            got = batch[f"noised_{name}"][row][..., :20]
            if build is block_diffusion and name == "input_tokens":  # other random draws
                assert set(got.tolist()) > {IDS.mask}
                continue
            np.testing.assert_array_equal(got, alone[f"noised_{name}"][row], name)
    weights = tidar(IDS).loss(batch).terms["masked_blocks"].weights
    assert (weights[0], weights[2]) == (20, 0)
    with refuses(ValueError, "tokens", "0.5", "1.0"):  # the scales of a term must be equal
        objective.loss(batch)


@pytest.mark.slow
def test_block_size_can_be_annealed():
    """I-DLM grows its blocks during training."""
    objective = annealed(IDS, tidar, "block_size", first=2, last=4, steps=10)
    assert [member.name for member in objective.facts.members] == [
        "block_size_2",
        "block_size_3",
        "block_size_4",
    ]
    (form,) = objective.facts.prompt_forms
    assert form.masked_blocks.size == 4
    _, batch = corrupted(objective, 3, 12)
    for row, size in enumerate((2, 3, 4)):
        start, end = batch["noised_key_intervals"][row]
        assert (end - start).tolist() == [size] * 12
    zeros = np.zeros((3, 12, VOCABULARY), np.float32)
    terms = objective.loss(batch).scored(LinearOutputs({"top": zeros, "noised": zeros}))
    assert terms["tokens"].scale == 0.5


def test_number_of_drafts_depends_on_shift():
    (form,) = tidar(IDS, block_size=8).facts.prompt_forms
    assert form.mode == "continue" and form.causal
    assert form.masked_blocks.drafts == 7  # the clean token already predicts the first of 8
    assert form.masked_blocks._replace(shifted=True).drafts == 8


@pytest.mark.parametrize(
    "settings, named",
    [
        (dict(positions="relative"), "relative"),
        (dict(positions="none"), "none"),
        (dict(window=4), "window=4"),
    ],
)
def test_relative_none_or_windowed_positions_are_rejected(settings, named):
    assert named in reads_positions(models.decoder(64, **SMALL, **settings), [])


def test_learned_positions_must_cover_mask_after_row():
    """TiDAR's last mask stands for the last target, which no slot of the row reads."""
    group = SimpleNamespace(stacks={"decoder": 16})
    short, long = (
        models.decoder(64, **SMALL, positions="learned", max_positions=n) for n in (16, 17)
    )
    assert "17" in position_after_the_row(short, [group])
    for model in (long, models.decoder(64, **SMALL)):
        assert position_after_the_row(model, [group]) is None
        assert reads_positions(model, [group]) is None
    assert position_after_the_row in tidar(IDS).facts.requires
    assert position_after_the_row not in tidar(IDS, shifted=True).facts.requires
