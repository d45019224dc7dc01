"""Texts continued block by block, against a model that reads the whole row again each time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.inference import answer, continue_blocks, score
from pretrax.inference.answering.answers import Options
from pretrax.inference.answering.generation import Decoding
from pretrax.inference.trained import allowed_token_mask, check_mode, mode_of
from tests.inference.runs import CODEC, IDS, TEXT, trained

SIZE = 16  # of a block, as the objective has it
WIDTH = 4 * SIZE
TEXTS = [TEXT[:5], TEXT[: SIZE + 1], TEXT[: 2 * SIZE]]  # within a block, just behind one, at an end


@functools.cache
def model(layout="decoder", positions=0):
    """Of learned positions, so many; 0: of others, which have no end."""
    encodes = dict(merged_attention=True, num_encoder_layers=2)
    more = encodes if layout == "encoder_decoder" else {}
    if positions:
        more |= dict(positions="learned", max_positions=positions)
    elif layout == "encoder_decoder":
        more |= dict(positions="rotary", rotate_encoded=True)
    return trained(layout, "block_diffusion", **more)


@functools.cache
def logits_of_row(layout, positions):
    """tokens i32[T] -> f32[T, V], each attending to all before the end of its block."""
    one, width = model(layout, positions), positions or WIDTH

    @jax.jit
    def logits(tokens_T):
        slot = jnp.arange(tokens_T.size)
        begin, end = slot // SIZE * SIZE, jnp.minimum((slot // SIZE + 1) * SIZE, width)
        batch = {}
        for stack in ("encoder", "decoder"):
            batch |= {
                f"{stack}_input_tokens": tokens_T,
                f"{stack}_segment_ids": jnp.ones_like(slot),
                f"{stack}_positions": slot,
                f"{stack}_key_intervals": jnp.stack([0 * slot, end]),
            }
        if layout == "encoder_decoder":  # the encoder before the block, and the block itself
            batch["decoder_key_intervals"] = jnp.stack([begin, end])
            batch["cross_key_intervals"] = jnp.stack([0 * slot, begin])
        outputs = one.model.apply(one.params, {name: x[None] for name, x in batch.items()})
        return outputs.head("vocabulary", outputs.hidden["top"])[0]

    return lambda row: np.array(logits(jnp.array(row + [0] * (width - len(row)), jnp.int32)))


def continued_plainly(layout, text: str, max_new: int, positions=0) -> list[int]:
    """The surest mask of a block first; the whole row is read for each."""
    row = CODEC.encode(text)
    rows = model(layout, positions).model.vocab_size
    allowed = np.array(allowed_token_mask(IDS, rows, special=(IDS.eos,)))
    given = len(row)
    while len(row) < given + max_new:
        row += [IDS.mask] * (SIZE - len(row) % SIZE)
        row = row[: positions or len(row)]
        while IDS.mask in row:
            logits = np.where(allowed, logits_of_row(layout, positions)(row), -1e30)
            p = np.asarray(jax.nn.softmax(logits, -1)).max(-1)
            slot = max((i for i, x in enumerate(row) if x == IDS.mask), key=lambda i: (p[i], -i))
            row[slot] = int(logits[slot].argmax())
        if IDS.eos in row[given:]:
            break
    new = row[given : given + max_new]
    return new[: new.index(IDS.eos)] if IDS.eos in new else new


@pytest.mark.parametrize("layout", ["decoder", "encoder_decoder"])
def test_blocks_are_written_as_by_reading_the_whole_row(layout):
    got = continue_blocks(model(layout), TEXTS, max_new=20)
    for text, one in zip(TEXTS, got):
        assert one.text == CODEC.decode(continued_plainly(layout, text, 20))


@pytest.mark.parametrize("layout", ["decoder", "encoder_decoder"])
def test_the_last_block_ends_where_the_positions_of_the_model_do(layout):
    """Here after 4 tokens, as the last block of a row of training; none shares a position."""
    texts, end = ["Ada w", "tea x", "or so"], SIZE + 4
    got = continue_blocks(model(layout, end), texts, max_new=end - 5)
    for text, one in zip(texts, got):
        assert one.text == CODEC.decode(continued_plainly(layout, text, end - 5, end))


def test_samples_depend_on_their_number_alone():
    draw = functools.partial(
        continue_blocks,
        model(),
        max_new=20,
        order="random",
        temperature=1.0,
        steps=4,
        batch_size=1,
    )
    both = draw(TEXTS[:2], numbers=[5, 6])
    assert draw(TEXTS[1:2], numbers=[6]) == both[1:]
    assert draw(TEXTS[1:2], numbers=[7]) != both[1:]


def test_the_mode_of_a_model_that_block_diffusion_trained():
    assert mode_of(model()) == "blocks"
    (record,) = answer(model(), "blocks", [{"text": "import os"}], Options(Decoding(max_new=4)))
    assert set(record) == {"answer", "ended"}
    with pytest.raises(ValueError, match="beams, samples.*expected none"):
        answer(model(), "blocks", [{"text": "a"}], Options(Decoding(beams=2)))
    with pytest.raises(ValueError, match="never learned to write blocks.*'continue': use that"):
        check_mode(trained("decoder", "causal_lm"), "blocks")
    with pytest.raises(ValueError, match="block diffusion.*evaluate --run=RUN --heldout"):
        score(model(), [("", "a text")])
    with pytest.raises(ValueError, match="order='gibbs' with temperature=0.*above 0"):
        continue_blocks(model(), ["a"], max_new=2, order="gibbs")
    with pytest.raises(ValueError, match="empty text"):
        continue_blocks(model(), [" "])
