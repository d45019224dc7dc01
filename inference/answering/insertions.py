"""Inserts one token after another into a text until nothing is missing.

Letters: B rows, T slots, V ids.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ...objectives.insertion import COMPLETE, insertion_slots
from ..decoding.batching import (
    bidirectional_batch,
    jitted,
    padded_rows,
    padded_width,
)
from ..decoding.sampling import NEVER, Sampling, choose
from ..prompting.windows import check_texts
from ..trained import Trained, allowed_token_mask, prompt_form
from .options import DEFAULT_OPTIONS, Options, check_single_draw

ENOUGH = 0.9  # stops at this probability of "nothing is missing", as in the published code


class Written(NamedTuple):
    """A text with the tokens that a model added."""

    text: str
    # whether it ended before the maximum length
    ended: bool


def insert(
    trained: Trained, texts: Sequence[str], options: Options = DEFAULT_OPTIONS
) -> list[Written]:
    """Returns each text with up to `max_new` inserted tokens, at positions that the model chooses.

        insert(trained, ["The cat the mat."], Options(Decoding(max_new=8, temperature=1.0)))

    A step draws a slot and a token from their joint softmax (Patel et al. 2025, arXiv:2505.05755).
    A text ends if the head "stop" predicts "nothing is missing" with a probability of 0.9 or more.
    Each step reads the whole text again.

    Raises:
      ValueError: A text with its insertions has more slots than the model has positions, or the
        options have other settings of sampling than a temperature.
    """
    check_single_draw(options)
    batching = options.batching
    decoding = options.decoding
    max_new = decoding.max_new
    form = prompt_form(trained, "insert")
    ids = trained.ids
    model = trained.model
    rows = [[*form.before, *trained.encode(text), *form.after] for text in texts]
    check_texts(trained, rows, max_new)
    run = jitted(insert_tokens, model, form.head, max_new, decoding.sampling)
    allowed_V = allowed_token_mask(ids, model.vocab_size, special=())

    def inserted(chosen: list[int]) -> Iterator[Written]:
        batch_rows = [rows[i] for i in chosen]
        width = padded_width([[*row, *[0] * max_new] for row in batch_rows], model.max_positions)
        batch, sizes_B = padded_rows("encoder", batch_rows, width)
        tokens_BxT = batch["encoder_input_tokens"]
        keys_B = batching.keys(decoding.seed, chosen)
        state = jax.device_get(run(trained.params, tokens_BxT, sizes_B, allowed_V, keys_B))
        for tokens_T, size, done in zip(*state):
            yield Written(trained.decode(tokens_T[len(form.before) : size].tolist()), bool(done))

    return batching.run(inserted, [len(row) for row in rows])


def insert_tokens(
    model, head, max_new, sampling: Sampling, params, tokens_BxT, sizes_B, allowed_V, keys_B
):
    """Returns the tokens i32[B, T] and sizes i32[B] of the rows, and whether they are complete."""

    def step(state):
        n, tokens_BxT, sizes_B, _ = state
        batch = bidirectional_batch("encoder", tokens_BxT, sizes_B, jnp)
        outputs = model.apply(params, batch)
        top_BxTxE = outputs.hidden["top"]
        stop_BxC = outputs.head(head, top_BxTxE[:, 0])
        done_B = jax.nn.softmax(stop_BxC)[:, COMPLETE] >= ENOUGH

        slots_BxT = insertion_slots(batch["encoder_segment_ids"], batch["encoder_positions"])
        logits_BxTxV = outputs.head("vocabulary", top_BxTxE)
        logits_BxTxV = jnp.where(slots_BxT[..., None] & allowed_V[None, None], logits_BxTxV, NEVER)
        step_keys_B = jax.vmap(jax.random.fold_in, (0, None))(keys_B, n)
        joint_B = choose(step_keys_B, logits_BxTxV.reshape(len(keys_B), -1), sampling)
        after_B, token_B = jnp.divmod(joint_B, allowed_V.size)
        grown_BxT = jax.vmap(_inserted)(tokens_BxT, after_B, token_B)
        tokens_BxT = jnp.where(done_B[:, None], tokens_BxT, grown_BxT)
        return n + 1, tokens_BxT, sizes_B + ~done_B, done_B

    def unfinished(state):
        n, _, _, done_B = state
        return (n < max_new) & ~jnp.all(done_B)

    start = 0, jnp.asarray(tokens_BxT), jnp.asarray(sizes_B), jnp.zeros(len(sizes_B), bool)
    return lax.while_loop(unfinished, step, start)[1:]


def _inserted(tokens_T, after, token):
    """Inserts a token after a slot, and drops the last token."""
    slot_T = jnp.arange(tokens_T.size)
    later_T = jnp.where(slot_T == after + 1, token, jnp.roll(tokens_T, 1))
    return jnp.where(slot_T <= after, tokens_T, later_T)
