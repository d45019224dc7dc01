"""MuToR: register tokens between the tokens of a text predict tokens further ahead.

Source: Gerontopoulos, Gidaris & Komodakis 2025, "Multi-Token Prediction Needs Registers"
(arXiv:2505.10518), whose code is at https://github.com/nasosger/MuToR.

Not implemented: offsets in two dimensions, for images, and registers after some of the tokens only.
"""

import jax.numpy as jnp

from ..constraints import Count, OpenShare, checked
from .arithmetic import kernel, randint
from .contract import Objective, comparable
from .language_modeling import causal_lm, with_columns
from .layouts import positions
from .splicing import by_document, document_bits, document_ranges
from .tidar import loss_of_masks
from .token_ids import TokenIds


@checked
def mutor(ids: TokenIds, max_offset: Count = 4, scale: OpenShare = 0.3) -> Objective:
    """Causal language modeling with registers that predict tokens further ahead (MuToR).

    For an offset of 3, ^ for `ids.bos`, and a register _ after each input:

        inputs                     ^   a   b   c   d
        predict                    a   b   c   d   e
        registers after ^, a, b    _   _   _
        predict                    c   d   e

    A decoder reads the inputs and the registers in the same stack. Inputs attend causally and never
    to registers, so the trained model is a plain causal language model without registers. A
    register attends to itself and to the inputs up to the input before it. Its position is the
    position of the input that predicts the same token, which shows the offset. Registers without a
    token to predict are left out.

    The offset of a document is drawn uniformly from 1 to `max_offset`. A register with an offset of
    1 predicts the same token as the input before it.

    The loss has two terms: "tokens", as in `causal_lm`, with the factor 1 - `scale`, and
    "registers", of the tokens that registers predict, with the factor `scale`.

    Args:
      ids: needs `mask`, which is the register token. All registers share its embedding.
      max_offset: largest distance in tokens from a register's last input to the token that it
        predicts. The paper recommends 4.
      scale: weight of the "registers" term. The paper recommends 0.3.

    A register is in the slot of the target that it predicts.

    >>> mutor(ids).lengths(512)
    {'targets': 512, 'masks': 512}
    """
    registers = kernel(_registers, max_offset=max_offset, register=ids.special("mask"))
    objective = with_columns(causal_lm(ids), registers, "masks")
    loss = comparable(loss_of_masks, "registers", 1 - scale, scale)
    return objective._replace(loss=loss).with_facts(token_weights=False)


def _registers(key, row, features, max_documents, *, max_offset, register):
    segments = features["targets_segments"]
    document = document_ranges(segments, max_documents)
    position = positions(segments, document)
    offset_D = 1 + randint(document_bits(key, max_documents), max_offset)
    visible = position + 2 - by_document(offset_D, segments)
    has_register = (segments > 0) & (visible > 0)
    columns = {
        "masks": register,
        "masks_positions": position,
        "masks_begins": position,
        "masks_ends": position + 1,
        "masks_visible": visible,
    }
    return {name: jnp.where(has_register, x, 0) for name, x in columns.items()}
