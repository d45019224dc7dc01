"""Continuing texts block by block agrees with a model that reads the whole row at each step."""

import collections
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from pretrax import models
from pretrax.inference import Trained, answer, continue_blocks, score
from pretrax.inference.answering.options import Decoding, Options
from pretrax.inference.trained import allowed_token_mask, check_mode, mode_of
from pretrax.models import builders
from pretrax.models.trees import flattened, nested
from pretrax.objectives import PromptForm, TokenIds
from tests.inference.runs import CODEC, IDS, TEXT, trained
from tests.refusals import refuses

SIZE = 16  # size of a block, as in the objective
WIDTH = 4 * SIZE
# ends within a block, just after one and at the end of one
TEXTS = [TEXT[:5], TEXT[: SIZE + 1], TEXT[: 2 * SIZE]]


@functools.cache
def model(layout="decoder", positions=0):
    """Returns a model with this number of learned positions.

    0 stands for positions without a limit.
    """
    encodes = dict(merged_attention=True, num_encoder_layers=2)
    more = encodes if layout == "encoder_decoder" else {}
    if positions:
        more |= dict(positions="learned", max_positions=positions)
    elif layout == "encoder_decoder":
        more |= dict(positions="rotary", rotate_encoded=True)
    return trained(layout, "block_diffusion", **more)


@functools.cache
def logits_of_row(layout, positions):
    """Returns tokens i32[T] -> logits f32[T, V]. Tokens attend up to the end of their block."""
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
        # the encoder sees the text before the block, the decoder the block
        if layout == "encoder_decoder":
            batch["decoder_key_intervals"] = jnp.stack([begin, end])
            batch["cross_key_intervals"] = jnp.stack([0 * slot, begin])
        outputs = one.model.apply(one.params, {name: x[None] for name, x in batch.items()})
        return outputs.head("vocabulary", outputs.hidden["top"])[0]

    return lambda row: np.array(logits(jnp.array(row + [0] * (width - len(row)), jnp.int32)))


def continued_plainly(layout, text: str, max_new: int, positions=0) -> list[int]:
    """Writes the most confident mask of a block first, and reads the whole row each time."""
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


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["decoder", "encoder_decoder"])
def test_cached_block_decoding_equals_full_passes(layout):
    got = continue_blocks(model(layout), TEXTS, Options(Decoding(max_new=20)))
    for text, one in zip(TEXTS, got):
        assert one.text == CODEC.decode(continued_plainly(layout, text, 20))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["decoder", "encoder_decoder"])
def test_last_block_ends_at_the_last_position(layout):
    """The block ends after 4 tokens, like the last block of a training row.

    No positions are shared.
    """
    texts, end = ["Ada w", "tea x", "or so"], SIZE + 4
    got = continue_blocks(model(layout, end), texts, Options(Decoding(max_new=end - 5)))
    for text, one in zip(texts, got):
        assert one.text == CODEC.decode(continued_plainly(layout, text, end - 5, end))


@pytest.mark.slow
def test_samples_depend_only_on_their_number():
    decoding = Decoding(max_new=20, temperature=1.0, batch_size=1)

    def draw(texts, numbers):
        options = Options(decoding, order="random", steps=4, numbers=numbers)
        return continue_blocks(model(), texts, options)

    both = draw(TEXTS[:2], [5, 6])
    assert draw(TEXTS[1:2], [6]) == both[1:]
    assert draw(TEXTS[1:2], [7]) != both[1:]


def test_block_diffusion_model_answers_in_blocks_mode():
    assert mode_of(model()) == "blocks"
    (record,) = answer(model(), "blocks", [{"text": "import os"}], Options(Decoding(max_new=4)))
    assert set(record) == {"answer", "ended"}
    with refuses(ValueError, "beams", "temperature"):
        answer(model(), "blocks", [{"text": "a"}], Options(Decoding(beams=2)))
    with refuses(ValueError, "continue"):
        check_mode(trained("decoder", "causal_lm"), "blocks")
    with refuses(ValueError, "--run=RUN", "--heldout"):
        score(model(), [("", "a text")])
    with refuses(ValueError, repr(" ")):
        continue_blocks(model(), [" "])


# --- what is drawn --------------------------------------------------------------------------------

TINY = TokenIds(size=8, text=(3, 6), pad=0, eos=1, bos=0, mask=6, cls=7)  # ids of "a", "b" and "c"
ALPHABET = "#$?abc_@"
WRITTEN = (TINY.eos, 3, 4, 5)  # ids that may occur in a block
PAIR, ROW = 2, 8  # number of slots of a block, and of a row


@functools.cache
def tiny_model(layout):
    """Returns a model whose tokens differ in probability and depend on each other."""
    sizes = dict(emb_dim=16, num_heads=2, head_dim=8, mlp_dim=16)
    encodes = dict(merged_attention=True, positions="rotary", rotate_encoded=True)
    both = dict(num_encoder_layers=1, num_decoder_layers=1, **encodes)
    more = both if layout == "encoder_decoder" else dict(num_layers=1)
    network = getattr(models, layout)(TINY.size, ("vocabulary",), **sizes, **more)
    shapes = flattened(nn.unbox(builders.abstract_params(network)))
    rng = np.random.default_rng(1)
    drawn = {name: rng.normal(x.ndim == 1, 0.3, x.shape) for name, x in sorted(shapes.items())}
    params = nested((name, jnp.float32(x)) for name, x in drawn.items())
    form = PromptForm("blocks", block_size=PAIR)

    def decode(tokens):
        return "".join(ALPHABET[token] for token in tokens)

    return Trained(network, params, TINY, lambda x: [*map(ALPHABET.index, x)], decode, (form,))


def pairs_written(layout, prompt, temperature):
    """Returns {(tokens of two slots, whether they end the text): probability}, by enumeration.

    Each mask of a block is equally likely to be written first. The other mask is then written
    given the first token.
    """
    one = tiny_model(layout)

    @jax.jit
    def logits_of(tokens):
        slot = jnp.arange(ROW)
        begin, end = slot // PAIR * PAIR, (slot // PAIR + 1) * PAIR
        row = {"input_tokens": tokens, "segment_ids": jnp.ones_like(slot), "positions": slot}
        row |= {"key_intervals": jnp.stack([0 * slot, end])}
        batch = {f"{s}_{name}": x for s in ("encoder", "decoder") for name, x in row.items()}
        if layout == "encoder_decoder":
            batch["decoder_key_intervals"] = jnp.stack([begin, end])
            batch["cross_key_intervals"] = jnp.stack([0 * slot, begin])
        outputs = one.model.apply(one.params, {name: x[None] for name, x in batch.items()})
        return outputs.head("vocabulary", outputs.hidden["top"])[0]

    def likely(row, slot):
        logits = np.float64(logits_of(jnp.int32(row + [0] * (ROW - len(row)))))[slot]
        p = np.exp(logits[[*WRITTEN]] / temperature)
        return zip(WRITTEN, p / p.sum())

    def filled(row):
        """Yields each (row, probability) that writing the masks of a row can give."""
        masks = [slot for slot, token in enumerate(row) if token == TINY.mask]
        if not masks:
            yield row, 1.0
        for slot in masks:
            for token, p in likely(row, slot):
                for whole, q in filled([*row[:slot], token, *row[slot + 1 :]]):
                    yield whole, p * q / len(masks)

    found = collections.Counter()

    def extend(row, probability):
        new = row[len(prompt) :][:PAIR]
        if TINY.eos in new or len(new) == PAIR:
            ended = TINY.eos in new
            found[one.decode(new[: new.index(TINY.eos)] if ended else new), ended] += probability
            return
        for whole, p in filled(row + [TINY.mask] * (PAIR - len(row) % PAIR)):
            extend(whole, probability * p)

    extend(one.encode(prompt), 1.0)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout, prompt",  # texts that end at the end of a block, or within one
    [(layout, prompt) for layout in ("encoder_decoder", "decoder") for prompt in ("ab", "abc")],
)
def test_sampled_blocks_follow_the_model_distribution(layout, prompt):
    """Uses a chi-squared test with a significance level of 0.001."""
    expected, draws = pairs_written(layout, prompt, temperature=0.8), 1500
    assert sum(expected.values()) == pytest.approx(1)
    decoding = Decoding(max_new=PAIR, temperature=0.8, batch_size=draws)
    model = tiny_model(layout)
    drawn = continue_blocks(model, [prompt] * draws, Options(decoding, order="random"))
    found = collections.Counter(map(tuple, drawn))
    assert found.keys() <= expected.keys()
    often = [outcome for outcome, p in expected.items() if p * draws >= 5]
    counts = np.array([found[outcome] for outcome in often] + [0.0])
    p = np.array([expected[outcome] for outcome in often] + [0.0])
    counts[-1], p[-1] = draws - counts.sum(), 1 - p.sum()
    kept = p > 1e-9
    assert kept.sum() > 4 and chisquare(counts[kept], p[kept] * draws).pvalue > 1e-3
