"""Token editing: a diffusion model restores masked tokens, and visible tokens that are wrong.

Source: Bie et al. 2026, "LLaDA2.1: Speeding Up Text Diffusion via Token Editing"
(arXiv:2602.08676), section 3.1: a mixture of mask-to-token and token-to-token training, in which
original tokens are recovered from random noise. The paper gives neither the share of wrong tokens
nor the weight of their loss, so both defaults are ours. Its training code was not found.
"""

import functools

import jax
import jax.numpy as jnp

from ..constraints import OpenShare, Positive, checked
from .arithmetic import bernoulli, fixed24, is_text, kernel, randint
from .block_diffusion import block_diffusion
from .contract import BatchLoss, Builder, Objective, build
from .features import labels_in_place
from .losses import predicting_stack, predictions, token_loss
from .splicing import document_ranges, piece, splice
from .token_ids import TokenIds
from .token_weights import spliced_weights


@checked
def token_editing(
    ids: TokenIds,
    builder: Builder = block_diffusion,
    wrong_share: OpenShare = 0.1,
    scale: Positive = 1.0,
) -> Objective:
    """LLaDA2.1: block or masked diffusion in which some visible tokens are wrong.

    With blocks of three tokens, the mask token _, and a random token x in place of f:

        inputs    a b c   d e f
        noised    a _ c   _ _ x
        labels      b     d e f

    A model of `masked_diffusion` never reads wrong tokens in training, but in generation it reads
    its own mistakes. Here random tokens replace a share of the visible tokens. The model predicts
    the masked and the wrong tokens, so it learns to edit text. The inputs do not show which tokens
    are wrong, and correct visible tokens have no loss.

    Terms: the terms of the builder's loss, for masked tokens; and "edits", the mean cross-entropy
    of the wrong tokens, which costs one more vocabulary projection. Since the context is partly
    wrong, the loss of masked tokens is not a bound on the likelihood of the text.

    Args:
      ids: needs `mask`; only text tokens are replaced, by other ids of text.
      builder: builder of the diffusion: `block_diffusion`, as in the paper, or `masked_diffusion`.
      wrong_share: probability that a visible text token is replaced.
      scale: factor of the mean of the "edits" term.

    In the paper's figure 2, documents have either masks or wrong tokens; here a text has both. Not
    implemented: the paper's decoding, which also replaces written tokens; and its data
    augmentation, which trains on the model's samples over several passes.

    The features are those of the builder.

    >>> token_editing(ids).lengths(512)
    {'inputs': 512, 'noised': 512, 'labels': 512}

    Raises ValueError for any other objective.
    """
    plain = build(builder, ids)
    if not _masks_in_place(plain):
        raise ValueError(
            "token_editing takes an objective that masks text in place and predicts the masked "
            f"tokens, got one with the prompt forms {plain.facts.prompt_forms}: set builder to "
            "block_diffusion or masked_diffusion."
        )
    mask = ids.special("mask")
    return plain._replace(
        corrupt=kernel(
            _with_wrong_tokens,
            plain.corrupt,
            share=fixed24(wrong_share),
            mask=mask,
            text=ids.text,
        ),
        loss=functools.partial(_loss_of_both, plain.loss, mask, scale),
    ).with_facts(bound=None)


def _masks_in_place(objective: Objective) -> bool:
    """Returns whether an objective masks text at its own slots, without other noise."""
    forms = objective.facts.prompt_forms
    return (
        objective.loss is not token_loss
        and not objective.facts.members
        and all(
            form.mode in ("unmask", "blocks")
            and not (form.before or form.after or form.shift)
            and form.noise is None
            for form in forms
        )
        and bool(forms)
    )


def _with_wrong_tokens(
    corrupt, key, row, partner, lengths, max_documents, *, share, mask, text
) -> dict:
    noise_key, wrong_key, text_key = jax.random.split(key, 3)
    features = corrupt(noise_key, row, partner, lengths, max_documents)
    if row.hidden is not None:  # the user has chosen what to hide
        return features
    name = "noised" if "noised" in features else "inputs"
    noised = features[name]
    whole = piece(*document_ranges(row.segments, max_documents))
    tokens, segments = splice(row.tokens, whole, noised.size)
    first, last = text
    is_visible = is_text(noised, text) & (segments > 0)
    wrong = is_visible & bernoulli(jax.random.bits(wrong_key, noised.shape, jnp.uint32), share)
    distance = 1 + randint(jax.random.bits(text_key, noised.shape, jnp.uint32), last - first - 1)
    other = first + (tokens - first + distance) % (last - first)
    labeled = wrong | ((noised == mask) & (segments > 0))
    weights = spliced_weights(row, row.tokens, whole, noised.size)
    labels = labels_in_place(tokens, labeled, 0, lengths["labels"], weights)
    return features | {name: jnp.where(wrong, other, noised)} | labels


def _loss_of_both(loss, mask: int, scale: float, batch) -> BatchLoss:
    """Returns the loss of masked tokens, and the cross-entropy of wrong tokens."""
    copied = "noised_segment_ids" in batch  # copies and clean tokens are in one decoder
    stack = predicting_stack(batch)
    read = batch["noised_input_tokens" if copied else f"{stack}_input_tokens"]
    _, slots, weights = predictions(batch)
    is_mask = jnp.take_along_axis(read, slots, axis=1) == mask
    masked = batch | {f"{stack}_loss_weights": jnp.where(is_mask, weights, 0)}
    wrong = batch | {f"{stack}_loss_weights": jnp.where(is_mask, 0, weights)}
    edits = token_loss(wrong, hidden="noised" if copied else "top")
    return loss(masked) | edits.with_term("edits", scale=scale)
