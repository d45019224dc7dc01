"""MASS: one long fragment of a text is masked, and the decoder predicts it.

Source: Song et al. 2019 (MASS, arXiv:1905.02450), section 3.2, and the authors' published code
(MASS-unsupNMT) for the positions of fragments.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ..constraints import OpenShare, Share, checked
from .arithmetic import kernel, randint, ratio, round_ratio
from .contract import Facts, Objective, Rows
from .features import sequence_pair
from .losses import token_loss
from .masked_language_modeling import replacer
from .prompt_forms import PromptForm
from .splicing import (
    by_document,
    document_bits,
    document_ranges,
    framed,
    marked_runs,
    piece,
    splice,
)
from .token_ids import TokenIds


@checked
def mass(
    ids: TokenIds, rate: OpenShare = 0.5, mask_share: Share = 0.8, random_share: Share = 0.1
) -> Objective:
    """MASS: half of a document, one fragment, is masked in the inputs and predicted as targets.

    With text `a b c d e f`, the fragment c d e, the mask _ and end-of-sequence /:

        inputs      a b _ _ _ f /
        targets         c d e
        positions       2 3 4       of the decoder, with learned or rotary positions

    The fragment has round(rate n) of a document's n tokens, at least one. It is at the beginning of
    one document in five, at the end of one in five, and otherwise at a uniform position.

    The masks show the length of the fragment, so no token closes the targets. The first decoder
    input is `ids.bos`, as in the paper. The authors' code uses the token before the fragment
    instead. Not implemented: their block size for long documents.

    Args:
      ids: needs `mask`.
      rate: share of a document's tokens in the fragment; 0.5 is best in the paper.
      mask_share, random_share: shares of the fragment's tokens that are replaced in the inputs by
        the mask and by random text. The other tokens stay unchanged.

    All tokens of a fragment have the position of its first token; block positions count from 1.

    >>> mass(ids).lengths(512)
    {'inputs': 513, 'targets': 256, 'positions': 256}

    Raises ValueError if mask_share and random_share add up to more than 1.
    """
    share = ratio(rate, "rate")

    def lengths(n: int) -> dict[str, int]:
        fragment = int(_fragment_length(n, share.as_integer_ratio(), np))
        return {"inputs": n + 1, "targets": fragment, "positions": fragment}

    return Objective(
        lengths=lengths,
        corrupt=kernel(
            _mask_fragments,
            share=share,
            replace=replacer(ids, mask_share, random_share),
            frame=((), (ids.eos,)),
        ),
        loss=token_loss,
        facts=Facts(
            prompt_forms=(PromptForm("states", after=(ids.eos,)),),
            rows=Rows("documents", appends_eos=True),
        ),
    )


def _fragment_length(n, share, xp=jnp):
    return xp.minimum(xp.maximum(round_ratio(n * share[0], share[1]), 1), n)


def _mask_fragments(key, row, partner, lengths, max_documents, *, share, replace, frame):
    document = document_ranges(row.segments, max_documents)
    position_key, fate_key = jax.random.split(key)
    length = _fragment_length(document.length, share)
    begin = _drawn_begins(
        document_bits(position_key, max_documents, (2,)), document.length - length
    )
    if row.hidden is not None:  # the first run of hidden tokens is the fragment
        begins, ends = marked_runs(row.hidden, row.segments, document, 1)
        begin = begins[:, 0]
        length = ends[:, 0] - begins[:, 0]
    first = document.start + begin

    slot = jnp.arange(row.tokens.size, dtype=jnp.int32)
    within = slot - by_document(first, row.segments)
    chosen = (row.segments > 0) & (within >= 0) & (within < by_document(length, row.segments))
    masked = replace(fate_key, row.tokens, chosen, slot)
    inputs = framed((masked, row.segments), document.length > 0, frame, lengths["inputs"])

    tokens, segments = splice(row.tokens, piece(first, length), lengths["targets"])
    count = jnp.arange(tokens.size, dtype=jnp.int32) - by_document(
        jnp.cumsum(length) - length, segments
    )
    return sequence_pair(inputs, (tokens, segments)) | {
        "targets_positions": by_document(begin, segments),
        "targets_block_positions": jnp.where(segments > 0, count + 1, 0),
    }


def _drawn_begins(bits_Dx2, most_D):
    """Returns i32[D]: 0 or `most` with probability 1/5 each, else uniform in 0 … most."""
    choice = randint(bits_Dx2[:, 0], jnp.int32(5))
    uniform = randint(bits_Dx2[:, 1], most_D + 1)
    return jnp.where(choice == 0, 0, jnp.where(choice == 1, most_D, uniform))
