"""MuToR: what registers attend to, their positions, and the loss compared with the paper."""

import jax
import numpy as np
import pytest

from pretrax.objectives import Row, attention_mask, batched, causal_lm, mutor, tidar
from tests.objectives.batches import raw_rows
from tests.objectives.linear_outputs import LinearOutputs
from tests.objectives.noised_copies import (
    PACKED,
    decoder_batch,
)
from tests.objectives.registry import IDS, RAW_LENGTH, quick_jit
from tests.objectives.waves import waves

TOTAL = sum(PACKED)
each_offset = pytest.mark.parametrize("max_offset", [1, 4, 12])


def offsets_of(batch, row, documents=PACKED):
    """Returns the offset of each document; None if the document has no register.

    With an offset of d, every input but the last d - 1 has a register.
    """
    segments = np.asarray(batch["noised_segment_ids"][row])
    counts = [int(np.sum(segments == 1 + i)) for i in range(len(documents))]
    return [n - count + 1 if count else None for n, count in zip(documents, counts)]


def interleaved(documents, offsets):
    """Returns the paper's sequence, its attention and its positions, for packed documents.

    The paper places a register after each token x_t that has a token x_(t+d) to predict, where x_1
    is bos here.

    Returns:
      sequence: (kind, slot of the input or of the predicted target) of each element.
      sees: bool, which element (column) an element (row) attends to.
      positions: {element: position in its document, from 0}.
    """
    sequence, positions = [], {}
    first = 0
    for length, d in zip(documents, offsets):
        for t in range(1, length + 1):
            sequence.append(("x", first + t - 1))
            positions[sequence[-1]] = t - 1
            if d is not None and t + d <= length + 1:
                sequence.append(("r", first + t + d - 2))  # x_(t+d) is target t + d - 1
                positions[sequence[-1]] = (t + d - 1) - 1
        first += length
    document = np.repeat(np.arange(len(documents)), documents)
    sees = np.zeros((len(sequence), len(sequence)), bool)
    for i, (_, slot) in enumerate(sequence):
        for j, (kind, other_slot) in enumerate(sequence):
            causal = j <= i and document[slot] == document[other_slot]
            sees[i, j] = causal and (kind == "x" or i == j)
    return sequence, sees, positions


@each_offset
def test_attention_and_positions_match_paper(max_offset):
    batch = decoder_batch(mutor(IDS, max_offset), raw_rows(*[PACKED] * 8)[0])
    masks = {
        ("x", "x"): "decoder_key_intervals",
        ("r", "r"): "noised_key_intervals",
        ("r", "x"): "noised_clean_intervals",
    }
    for row in range(8):
        offsets = offsets_of(batch, row)
        assert all(d is None or d <= max_offset for d in offsets)
        sequence, sees, positions = interleaved(PACKED, offsets)
        dense = {
            kinds: np.asarray(attention_mask(batch[name][row], RAW_LENGTH))
            for kinds, name in masks.items()
        }
        for i, (kind, slot) in enumerate(sequence):
            for j, (key_kind, key) in enumerate(sequence):
                got = (kind, key_kind) in dense and dense[kind, key_kind][slot, key]
                assert got == sees[i, j], (sequence[i], sequence[j])
            side = "decoder" if kind == "x" else "noised"
            assert batch[f"{side}_positions"][row][slot] == positions[kind, slot]
        registers = {slot for kind, slot in sequence if kind == "r"}
        used = batch["noised_segment_ids"][row] > 0
        assert registers == set(np.flatnonzero(used))
        assert set(batch["noised_input_tokens"][row][used]) <= {IDS.mask}


# The registers that `process_input_and_labels_mutor` of nasosger/MuToR at 9b33d632 (`finetune.py`)
# makes for bos and the text 21 … 26, by offset: the token that a register predicts, its position,
# and the number of the first tokens that it attends to, besides itself.
PUBLISHED = {
    1: [(21, 0, 1), (22, 1, 2), (23, 2, 3), (24, 3, 4), (25, 4, 5), (26, 5, 6)],
    2: [(22, 1, 1), (23, 2, 2), (24, 3, 3), (25, 4, 4), (26, 5, 5)],
    3: [(23, 2, 1), (24, 3, 2), (25, 4, 3), (26, 5, 4)],
    4: [(24, 3, 1), (25, 4, 2), (26, 5, 3)],
}


def test_registers_match_published_code():
    rows = 40
    objective = mutor(IDS)
    tokens = np.broadcast_to(np.arange(21, 27, dtype=np.int32), (rows, 6))
    raw = Row(tokens, np.ones_like(tokens), np.zeros(rows, np.int32))
    keys = jax.random.split(jax.random.key(0), rows)
    got = jax.device_get(quick_jit(batched(objective, objective.lengths(6)))(keys, raw))
    found = set()
    for row in range(rows):
        used = got["masks_ends"][row] > 0
        offset = 7 - used.sum()
        found.add(int(offset))
        columns = "targets", "masks_positions", "masks_visible"
        registers = zip(*(got[name][row][used].tolist() for name in columns))
        assert list(registers) == PUBLISHED[offset]
    assert found == PUBLISHED.keys()


def test_loss_matches_published_code():
    """`MuToRLlamaForCausalLM.forward` and the final loss of `finetune.py`, for an offset of 2."""
    ones = np.ones((1, 6), np.int32)
    batch = {
        "decoder_target_tokens": np.int32([[3, 7, 2, 8, 5, 4]]),
        "decoder_loss_weights": ones,
        "decoder_segment_ids": ones,
        "noised_segment_ids": np.int32([[0, 1, 1, 1, 1, 1]]),
    }
    top = waves(7, 11)[None, :6]
    noised = np.pad(waves(6, 11, step=0.9)[:5], ((1, 0), (0, 0)))[None]
    terms = mutor(IDS).loss(batch).scored(LinearOutputs({"top": top, "noised": noised}))
    total = sum(term.scale * term.sums / term.weights for term in terms.values())
    np.testing.assert_allclose(total, [3.3898971557617186], rtol=1e-5)


def test_inputs_match_causal_lm():
    raw, _ = raw_rows(PACKED, PACKED)
    plain = decoder_batch(causal_lm(IDS), raw)
    with_registers = decoder_batch(mutor(IDS), raw)
    for name, x in plain.items():
        np.testing.assert_array_equal(with_registers[name], x, name)
    assert mutor(IDS).facts.prompt_forms == causal_lm(IDS).facts.prompt_forms
    assert mutor(IDS).facts.likelihood == "tokens"


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.3, 0.5])
def test_loss_matches_paper(scale):
    """(1 - a) times the mean over tokens, and a times the mean over registers."""
    raw, documents = raw_rows(*[PACKED] * 4)
    objective = mutor(IDS, 3, scale)
    batch = decoder_batch(objective, raw)
    rng = np.random.default_rng(0)
    top, noised = rng.normal(size=(2, 4, RAW_LENGTH, IDS.size)).astype(np.float32)
    terms = objective.loss(batch).scored(LinearOutputs({"top": top, "noised": noised}))
    losses: dict = {"tokens": [], "registers": []}
    for row, texts in enumerate(documents):
        slot = 0
        for text, d in zip(texts, offsets_of(batch, row)):
            for i, token in enumerate(text):
                logits_by_term = {"tokens": top, "registers": noised}
                if d is None or i < d - 1:  # no input is d tokens before this token
                    del logits_by_term["registers"]
                for name, logits in logits_by_term.items():
                    scores = logits[row, slot].astype(np.float64)
                    losses[name].append(np.log(np.exp(scores).sum()) - scores[token])
                slot += 1
    assert len(losses["tokens"]) == 4 * TOTAL > len(losses["registers"]) > 0
    for name, values in losses.items():
        np.testing.assert_allclose(terms[name].sums.sum(), np.sum(values), rtol=1e-5)
        assert terms[name].weights.sum() == len(values)
    expected = (1 - scale) * np.mean(losses["tokens"]) + scale * np.mean(losses["registers"])
    got = sum(term.scale * term.sums.sum() / term.weights.sum() for term in terms.values())
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_offsets_are_uniform():
    batch = decoder_batch(mutor(IDS, 4), raw_rows(*[(20, 20, 10)] * 200)[0])
    documents = (20, 20, 10)
    offsets = np.array([offsets_of(batch, row, documents) for row in range(200)])
    for drawn in offsets.T:
        counts = np.bincount(drawn, minlength=5)[1:]
        assert np.abs(counts - 50).max() < 5 * np.sqrt(200 * 0.25 * 0.75), counts
    same = np.mean(offsets[:, 0] == offsets[:, 1])  # documents of a row draw separately
    assert abs(same - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 200)


def test_registers_need_no_position_after_row():
    """They need no position after the row, in contrast to TiDAR's masks."""
    assert not mutor(IDS).facts.requires and tidar(IDS).facts.requires
