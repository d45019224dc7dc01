"""Goldfish loss: next-token prediction that leaves out tokens chosen by a hash of their context.

Source: Hans et al. 2024, "Be like a Goldfish, Don't Memorize!" (arXiv:2406.10209), and the authors'
code (https://github.com/ahans30/goldfish-loss), `apply_goldfish`.
"""

import jax.numpy as jnp
from jax import lax

from ..constraints import AtLeastTwo, Count, checked
from .arithmetic import bernoulli, fixed24, kernel
from .contract import Array, Objective
from .language_modeling import causal_lm, with_columns
from .token_ids import TokenIds


@checked
def goldfish_loss(ids: TokenIds, k: AtLeastTwo = 4, width: Count = 13) -> Objective:
    """Causal language modeling without a loss on one token in `k`, so that no text is memorized.

        targets   a b c d e f g h
        weights   1 1 1 0 1 1 0 1      (k = 4, width = 2)

    A hash of the `width` tokens before a token decides whether the token is left out. A repeated
    passage is therefore always trained without the same tokens. The model never learns them from
    the passage, so it cannot reproduce the passage word for word. It still reads all tokens, and is
    used like a model trained with `causal_lm`.

    The first `width` tokens of a document, or of a row that continues a document, always count. In
    rows of concatenated text, the context extends across document boundaries.

    Args:
      k: one token in `k` is left out, on average. The paper uses 4; Apertus (arXiv:2509.14233)
        uses 50, with a width of 50.
      width: number of preceding tokens that are hashed; the paper's h. With a small width, the last
        tokens of common phrases are never trained. With a large width, a passage that differs in
        one word is trained without other tokens.

    The loss is the mean over the tokens that count. As in the paper, the hash reads only the tokens
    before a token, so the choice reveals nothing about it. In the authors' code, the hash also
    reads the token, and ignores the order. Not implemented: the paper's masks of every k-th token
    and of random tokens, which it recommends against.

    >>> goldfish_loss(ids).lengths(512)
    {'targets': 512}
    >>> tokens = jnp.array([5, 6, 7, 8, 5, 6, 7, 8])
    >>> left_out(tokens, jnp.ones_like(tokens), 2, jnp.int32(2**23)).tolist()
    [False, False, True, True, True, False, True, True]
    """
    plain = causal_lm(ids).with_facts(likelihood=None)  # some tokens do not count
    return with_columns(plain, kernel(_fewer_weights, width=width, share=fixed24(1 / k)))


def _fewer_weights(key, row, features, max_documents, *, width, share):
    dropped = left_out(features["targets"], features["targets_segments"], width, share)
    return {"targets_weights": jnp.where(dropped, 0, features["targets_weights"])}


def left_out(tokens: Array, segments: Array, width: Array, share: Array) -> Array:
    """Returns bool[T]: the tokens that the goldfish loss leaves out.

    Args:
      tokens: i32[T].
      segments: i32[T].
      width: number of tokens before a token that decide.
      share: average share of tokens that are left out, as a 24-bit integer.
    """
    slot = jnp.arange(tokens.size, dtype=jnp.int32)
    has_context = (jnp.roll(segments, width) == segments) & (slot >= width) & (segments > 0)
    return bernoulli(context_hashes(tokens, width), share) & has_context


def context_hashes(tokens: Array, width: Array) -> Array:
    """Returns u32[T]: a hash of the `width` tokens before each token, in their order.

    This is FNV-1a on whole tokens, followed by the finalizer of MurmurHash3. Near the beginning,
    the context wraps around the end of the array.

    >>> hashes = context_hashes(jnp.array([5, 6, 7, 5, 6, 8]), 2)
    >>> bool(hashes[2] == hashes[5]), bool(hashes[2] == hashes[3])
    (True, False)
    """
    words = jnp.asarray(tokens).astype(jnp.uint32)

    def absorb(i, hashes):
        return (hashes ^ jnp.roll(words, width - i)) * jnp.uint32(0x01000193)

    hashes = lax.fori_loop(0, width, absorb, jnp.full(words.shape, 0x811C9DC5, jnp.uint32))
    hashes = (hashes ^ (hashes >> 16)) * jnp.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> 13)) * jnp.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> 16)
