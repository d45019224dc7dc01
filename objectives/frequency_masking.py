"""Frequency-informed masking: rare words are masked more often than frequent words.

Sources: Kosmopoulou et al. 2025, "Masked Diffusion Language Models with Frequency-Informed
Training" (arXiv:2509.05056), with the authors' published code; Ma et al. 2026, "Mask Is What DLLM
Needs" (arXiv:2603.15803), for a mask of informative tokens and its complement.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..constraints import NonNegative, checked
from .arithmetic import is_text, kernel
from .contract import Adaptation, ModelOutputs, Objective, Row
from .losses import predicting_stack, predictions
from .masked_diffusion import LOWEST_RATE, LowestRate, complementary_diffusion, masked_diffusion
from .token_ids import TokenIds


@checked
def frequency_informed_diffusion(
    ids: TokenIds,
    lowest_rate: LowestRate = LOWEST_RATE,
    weighted: bool = True,
    complementary: bool = False,
    power: NonNegative = 0.02,
) -> Objective:
    """Masked diffusion that masks rare words more often than frequent words.

        text                  the   cat   sat   on    the   mat      (rate drawn: 0.5)
        more frequent words   0     7     9     1     0     8
        rates, power = 0      0.50  0.50  0.50  0.50  0.50  0.50
        rates, power = 1      0.07  0.79  1.00  0.17  0.07  0.90

    Training counts the frequencies of the words that it reads. The rank of a word is the number of
    more frequent words. The ranks of a document's tokens are scaled to a range from 0 to 1, raised
    to `power`, and scaled to a mean of the document's rate
    (`objectives.selection.rates_by_chances`). The loss keeps the weight 1 / rate.

    In evaluation, `pretrax show` and SeqIO tasks, all tokens are masked at the document's rate, so
    held-out losses are bounds, as in `masked_diffusion`. The training loss is not a bound, since
    rare words are hidden more often than the weights assume.

    Args:
      ids: needs `mask`; only text tokens are masked.
      lowest_rate, weighted: as in `masked_diffusion`.
      complementary: whether to read each document twice, as in `complementary_diffusion`: first
        with the informative words masked, then with the others masked. Ma et al. 2026 do this for
        spans that a language model marks as informative.
      power: how strongly masks follow the ranks: 0 masks all words alike, and 1 in proportion to
        the scaled rank. The paper raises it from 0 to 0.02 during training (`annealed`). With a
        power above 0, a document's most frequent word is never masked if the rate is below the mean
        of the raised ranks.

    Not implemented: the paper's cosine and Gaussian distributions of rates, the derivatives of
    rates as weights, and the time as an input of the model. The paper counts frequencies before
    training, and includes special tokens in a text's least and mean rank.

    The run logs the number of words that have been read.

    >>> frequency_informed_diffusion(ids).lengths(512)
    {'inputs': 512, 'labels': 512, 'rates': 1}
    """
    build = complementary_diffusion if complementary else masked_diffusion
    objective = build(ids, lowest_rate, weighted)
    adaptation = Adaptation(
        init=functools.partial(_initial, ids.text),
        chances=functools.partial(_chances, ids.text),
        measure=functools.partial(_counts, ids),
        update=_updated,
        summary=lambda state: {"words": jnp.sum(state.counts > 0).astype(jnp.float32)},
    )
    corrupt = kernel(objective.corrupt, power=np.float32(power))
    return objective._replace(corrupt=corrupt, adaptation=adaptation)


class _Frequencies(NamedTuple):
    """How often each text id has been read."""

    counts: Any  # f32[W], as an i32 could overflow; the rounding of sums hardly changes ranks


def _initial(text: tuple[int, int]) -> _Frequencies:
    return _Frequencies(jnp.zeros(text[1] - text[0], jnp.float32))


def _chances(text: tuple[int, int], state: _Frequencies, rows: Row):
    ranks = frequency_ranks(state.counts)
    most = max(ranks.size - 1, 1)
    whole = 1 + jnp.round(ranks * ((2.0**16 - 2) / most)).astype(jnp.int32)
    return whole[word_number(text, rows.tokens)]


def frequency_ranks(counts):
    """Returns i32[W]: for each word, the number of words that are more frequent.

    >>> frequency_ranks(jnp.array([5.0, 9.0, 5.0, 0.0]))
    Array([1, 0, 1, 3], dtype=int32)
    """
    at_most = jnp.searchsorted(jnp.sort(counts), counts, side="right")
    return (counts.size - at_most).astype(jnp.int32)


def _counts(ids: TokenIds, outputs: ModelOutputs, batch):
    """Returns i32[W]: how often each text id occurs in the batch, visible or masked."""
    stack = predicting_stack(batch)
    input_tokens = batch[f"{stack}_input_tokens"]
    labels, _, weights = predictions(batch)
    visible = (batch[f"{stack}_segment_ids"] > 0) & is_text(input_tokens, ids.text)
    totals = jnp.zeros(ids.text[1] - ids.text[0], jnp.int32)
    for tokens, counts in ((input_tokens, visible), (labels, weights > 0)):
        totals = totals.at[word_number(ids.text, tokens)].add(counts.astype(jnp.int32))
    return totals


def word_number(text: tuple[int, int], tokens):
    """Returns the number of each token among the text ids; arbitrary for other tokens."""
    first, last = text
    return jnp.clip(tokens - first, 0, last - first - 1)


def _updated(state: _Frequencies, counts, step) -> _Frequencies:
    return _Frequencies(state.counts + counts)
