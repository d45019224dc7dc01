"""MASS: one long fragment of a text is masked, and written by the decoder.

Source: Song et al. 2019 (MASS, arXiv:1905.02450), section 3.2, and the authors' published code
(MASS-unsupNMT) for where fragments lie.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from ..constraints import OpenShare, Share, checked
from .arithmetic import below, ratio, round_ratio, traced
from .contract import Facts, Objective, Rows
from .features import sequence_pair
from .losses import token_loss
from .masked_language_modeling import replacer
from .prompt_forms import PromptForm
from .splicing import (
    by_document,
    document_bits,
    documents,
    frame_of,
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
    """MASS: a fragment of half a document is masked in the inputs, and is the targets.

    With text `a b c d e f`, the fragment c d e, the mask _ and end-of-sequence /:

        inputs      a b _ _ _ f /
        targets         c d e
        positions       2 3 4       of the decoder, with learned or rotary positions

    The fragment of a document of n tokens has round(rate n) of them, at least one. One in five
    begins the document and one in five ends it; the others are uniform among all places.

    What is masked says how much there is to write, so that nothing closes the targets. The first
    decoder input is `ids.bos`, where the authors' code has the token before the fragment: the paper
    masks all that the decoder is not to write. Their block size for long documents is left out.

    Args:
      ids: needs `mask`.
      rate: share of a document's tokens; 0.5 is the paper's best.
      mask_share, random_share: the shares of the fragment's tokens that become the mask and random
        text in the inputs; the rest stays unchanged.

    Features: inputs, inputs_segments i32[I]; targets, targets_segments, targets_weights,
    targets_positions, targets_block_positions i32[T]. All of a fragment have the position where it
    begins, and count from 1 within it.

    >>> mass(ids).lengths(512)
    {'inputs': 513, 'targets': 256, 'positions': 256}

    Raises ValueError for shares of more than 1 together.
    """
    share = ratio(rate, "rate")

    def lengths(n: int) -> dict[str, int]:
        fragment = int(_fragment_length(n, share.as_integer_ratio(), np))
        return {"inputs": n + 1, "targets": fragment, "positions": fragment}

    return Objective(
        lengths=lengths,
        corrupt=Partial(
            _mask_fragments,
            share=traced(share)[0],
            replace=replacer(ids, mask_share, random_share),
            frame=frame_of((), (ids.eos,)),
        ),
        loss=token_loss,
        facts=Facts(
            prompt_forms=(PromptForm("states", after=(ids.eos,)),),
            rows=Rows("documents", appends_eos=True),
        ),
    )


def _fragment_length(n, share, xp=jnp):
    """Returns the tokens of the fragment of a document of n tokens."""
    return xp.minimum(xp.maximum(round_ratio(n * share[0], share[1]), 1), n)


def _mask_fragments(key, row, partner, lengths, max_documents, *, share, replace, frame):
    document = documents(row.segments, max_documents)
    place_key, fate_key = jax.random.split(key)
    length = _fragment_length(document.length, share)
    begin = _drawn_begins(document_bits(place_key, max_documents, (2,)), document.length - length)
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
    """Returns i32[D]: 0 or `most` for one document in five each, else uniform in 0 … most."""
    law = below(bits_Dx2[:, 0], jnp.int32(5))
    uniform = below(bits_Dx2[:, 1], most_D + 1)
    return jnp.where(law == 0, 0, jnp.where(law == 1, most_D, uniform))
