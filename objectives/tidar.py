"""TiDAR: one pass predicts the next token, and a block of tokens from masks.

Sources: Liu et al. 2025, "TiDAR: Think in Diffusion, Talk in Autoregression" (arXiv:2511.08923);
Yu et al. 2026, "Introspective Diffusion Language Models" (I-DLM, arXiv:2604.11035), whose training
is also in NVIDIA's NeMo AutoModel (`idlm_mask.py`, `dllm_loss.py`).

Not implemented: sampling from a mean of both predictions of a token (TiDAR), and the scale of
I-DLM's later stages, which is the ratio of the two losses of a batch.
"""

import jax.numpy as jnp

from ..constraints import Count, Positive, checked
from .arithmetic import kernel
from .block_diffusion import no_tokens_ahead
from .contract import BatchLoss, Objective, comparable
from .language_modeling import causal_lm, with_columns
from .layouts import key_intervals, reads_positions
from .losses import at_slots, predictions, token_loss
from .prompt_forms import MaskedBlocks, PromptForm
from .splicing import by_document, document_ranges
from .streams import StackRow, register_target_stream
from .token_ids import TokenIds


@checked
def tidar(
    ids: TokenIds,
    block_size: Count = 16,
    causal_scale: Positive = 1.0,
    bidirectional: bool = True,
    shifted: bool = False,
) -> Objective:
    """TiDAR: causal language modeling, and blocks of masks that predict the same text.

    With blocks of three tokens, ^ for `ids.bos`, and the mask token _:

        targets   a b c d e f
        inputs    ^ a b c d e      each predicts the target above it
        masks     _ _ _ _ _ _      each predicts the target above it

    A decoder reads the inputs and the masks in the same stack. Inputs attend causally and never to
    masks, so the trained model is also a plain causal language model. A mask attends to the inputs
    before its block (^ for the first block, ^ a b c for the second block), and to its own block in
    both directions. It has the position of the token that it stands for.

    The trained model generates like a model trained with `causal_lm`. With `pretrax predict
    --own_drafts`, it drafts blocks from masks: each call verifies the last draft and drafts the
    next block, so greedy decoding gives the same text in fewer calls.

    The loss has two terms: "tokens", as in `causal_lm`, with the factor α / (1 + α), and
    "masked_blocks", of the tokens that masks predict, with the factor 1 / (1 + α). I-DLM adds α
    times the first term to the second, without dividing by 1 + α.

    Args:
      ids: needs `mask`.
      block_size: number of tokens in a block; the last block of a document may be shorter. TiDAR
        trains 4, 8 or 16. For a size that changes during training, as in I-DLM, use `annealed`.
      causal_scale: α, the weight of the "tokens" term. TiDAR has 1, I-DLM has 0.2.
      bidirectional: whether masks attend to their block in both directions. If False, they attend
        causally, as in I-DLM.
      shifted: whether a mask predicts the token after its own, like clean inputs. In I-DLM, masks
        stand for ^ a b c d e, and a block's masks attend to the inputs before its first mask.

    >>> tidar(ids).lengths(512)
    {'targets': 512, 'masks': 512}
    """
    blocks = MaskedBlocks(block_size, bidirectional, shifted)
    total = 1 + causal_scale
    masks = kernel(
        _masks,
        size=block_size,
        bidirectional=bidirectional,
        shift=int(shifted),
        mask=ids.special("mask"),
    )
    objective = with_columns(causal_lm(ids), masks, "masks")
    loss = comparable(loss_of_masks, "masked_blocks", causal_scale / total, 1 / total)
    return objective._replace(loss=loss).with_facts(
        prompt_forms=(PromptForm("continue", causal=True, masked_blocks=blocks),),
        token_weights=False,
        requires=() if shifted else (position_after_the_row,),
    )


def _masks(key, row, features, max_documents, *, size, bidirectional, shift, mask):
    segments = features["targets_segments"]
    document = document_ranges(segments, max_documents)
    position = jnp.arange(segments.size, dtype=jnp.int32) - by_document(document.start, segments)
    begin = position // size * size
    block_end = jnp.minimum(begin + size, by_document(document.length, segments))
    columns = {
        "masks": mask,
        "masks_positions": position + 1 - shift,
        "masks_begins": begin,
        "masks_ends": jnp.where(bidirectional, block_end, position + 1),
        "masks_visible": begin + 1 - shift,
    }
    return {name: jnp.where(segments > 0, x, 0) for name, x in columns.items()}


def loss_of_masks(term: str, causal_scale: float, mask_scale: float, batch) -> BatchLoss:
    """Returns the loss of the inputs, "tokens", and of the masks of the stream "masks".

    Args:
      term: name of the term of the masks, which counts the targets that have a mask.
      causal_scale: factor of the mean of the term "tokens".
      mask_scale: factor of the mean of the term of the masks.
    """
    tokens, slots, weights = predictions(batch)
    has_mask = batch["noised_segment_ids"][..., None] > 0
    has_mask = at_slots(has_mask, slots)[:, : tokens.shape[1], 0]
    masked = batch | {"decoder_loss_weights": jnp.where(has_mask, weights, 0)}
    causal_loss = token_loss(batch).with_term("tokens", scale=causal_scale)
    return causal_loss | token_loss(masked, hidden="noised").with_term(term, scale=mask_scale)


# --- arrangement of the masks ---------------------------------------------------------------------


def _add_masks(row: StackRow, batch: dict) -> dict:
    """Adds a mask for each target, as a noised copy of the slot that predicts it.

    Slots with an end of 0, such as slots of other members of a mixture, have no mask and keep their
    noised copies.
    """
    masks, positions, begins, ends, visible = map(row.place_targets, MASKS.columns)
    has_mask = ends > 0
    segments = jnp.where(has_mask, row.segments, 0)
    first = by_document(row.documents.start, segments)
    columns = {
        "noised_input_tokens": masks,
        "noised_segment_ids": segments,
        "noised_positions": positions,
        "noised_key_intervals": key_intervals(first + begins, first + ends, segments),
        "noised_clean_intervals": jnp.stack([first, first + visible]),
    }
    return {name: jnp.where(has_mask, x, batch.get(name, x)) for name, x in columns.items()}


def position_after_the_row(model, groups) -> str | None:
    """Requires a position for a mask after the last slot of a row."""
    config = model.config
    slots = max((group.stacks.get("decoder", 0) for group in groups), default=0)
    if config is None or config.positions != "learned" or slots < config.max_positions:
        return None
    return (
        f"A mask stands after the last of the {slots} slots of a row, but this model has "
        f"max_positions={config.max_positions}: set max_positions to {slots + 1} or more, or "
        "set shorter sequence_lengths."
    )


MASKS = register_target_stream(
    name="masks",
    about="a mask for each target, its position, the targets [begin, end) whose masks it "
    "attends to, and its number of visible inputs",
    columns=("masks", "masks_positions", "masks_begins", "masks_ends", "masks_visible"),
    arrange=_add_masks,
    values={"masks": "id"},
    after=("noised",),  # slots without a mask keep their noised copy
    more_slots=lambda slots: {"copies": slots, "predicted_copies": slots},
    requires=(no_tokens_ahead, reads_positions),
)
