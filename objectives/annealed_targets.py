"""Additional targets for the logits of the next token, with weights that decay during training.

These objectives add no parameters to a causal language model. At first the logits of a slot are
scored on several tokens, and at the end only on the next token.

Sources: the speed records of modded-nanogpt (https://github.com/KellerJordan/modded-nanogpt), track
1: record 53 of 2025-12-22 for multi-token prediction (pull request 178), and record 88 of
2026-07-13 for prefix token prediction (pull request 337).
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import jax.numpy as jnp
import numpy as np
from annotated_types import MinLen

from ..constraints import Positive, PositiveShare, checked
from .contract import Array, BatchLoss, Objective, ProgressSchedule, comparable
from .language_modeling import causal_lm
from .losses import label_loss, predictions
from .multi_token_prediction import ahead_tokens
from .token_ids import TokenIds


@checked
def annealed_multi_token_prediction(
    ids: TokenIds,
    scales: Annotated[Sequence[Positive], MinLen(1)] = (0.5, 0.25),
    until: PositiveShare = 2 / 3,
) -> Objective:
    """Causal language modeling whose logits also predict later tokens, with weights that fall to 0.

        text                          a b c d e
        from the slot of b, at first  c + 0.5 d + 0.25 e
        in the end                    c

    The same logits predict all tokens, so the model has no additional heads. In the last third of
    training, the loss is the loss of `causal_lm`, and the model is used like a causal language
    model.

    Terms of the loss: "tokens", of the next token, as in `causal_lm`, and "ahead_2", "ahead_3", …
    Tokens of the next document do not count. As in the authors' code, the sum of each term is
    divided by the number of next tokens, so a slot without a later token lowers the term.

    Args:
      scales: weights of the second, third, … token at the first step; the next token has a weight
        of 1. The farthest token fades first.
      until: fraction of the training steps after which only the next token is predicted. It is
        divided into n equal parts for n scales. The farthest token fades linearly to 0 in the first
        part, the token before it in the second part, and so on.

    Not implemented: targets across document boundaries (in the authors' code).

    >>> ones = jnp.ones((1, 8), jnp.int32)
    >>> weights = {"decoder_loss_weights": ones, "decoder_segment_ids": ones}
    >>> objective = annealed_multi_token_prediction(ids)
    >>> terms = objective.loss({"decoder_target_tokens": 5 * ones} | weights).terms
    >>> [round(float(terms["ahead_2"].scale.at(share)), 3) for share in (0, 1 / 3, 1 / 2, 2 / 3)]
    [0.5, 0.5, 0.25, 0.0]
    >>> [round(float(terms["ahead_3"].scale.at(share)), 3) for share in (0, 1 / 6, 1 / 3, 2 / 3)]
    [0.25, 0.125, 0.0, 0.0]
    """
    return _with_targets(ids, _later_tokens(until, scales))


@checked
def prefix_token_prediction(
    ids: TokenIds,
    scale: Positive = 0.25,
    ahead_scales: Sequence[Positive] = (),
    until: PositiveShare = 2 / 3,
) -> Objective:
    """Causal language modeling whose logits also predict the longest prefix of the next token.

        next token   " reading"    " read"    " re"    "!"
        prefix       " read"       " re"      " r"     none

    The prefix of a token is the longest other token that its bytes begin with, as a tokenizer with
    a smaller vocabulary might have produced. The same logits predict both, so the model has no
    additional heads. In the last third of training, the loss is the loss of `causal_lm`, and the
    model is used like a causal language model.

    Terms of the loss: "tokens", of the next token, as in `causal_lm`, and "prefix", over the next
    tokens that have a prefix. The sum of each term is divided by the number of all next tokens, as
    in the authors' code.

    Args:
      ids: needs the bytes of its tokens (`TokenIds.token_bytes`).
      scale: weight of the prefix in the first half of `until`. It falls linearly to 0 in the second
        half.
      ahead_scales: weights of later tokens, as `scales` of `annealed_multi_token_prediction`. The
        record run combines both, with (0.5, 0.25).
      until: fraction of the training steps after which only the next token is predicted.

    >>> from pretrax.objectives.token_ids import specimen_ids
    >>> specimen = specimen_ids(1000)
    >>> prefixes = prefix_tokens(specimen)
    >>> texts = specimen.texts()
    >>> [(texts[i], texts[prefixes[i]]) for i in (140, 131)]
    [(' a140', ' a14'), ('a131', 'a13')]

    Raises ValueError if the texts of tokens are not known, or if no token is a prefix of another,
    as in a byte vocabulary.
    """
    prefixes_V = prefix_tokens(ids)
    if not (prefixes_V >= 0).any():
        raise ValueError(
            "prefix_token_prediction needs tokens that begin with other tokens, but no token of "
            f"this vocabulary of {ids.size} ids does: use a vocabulary of subwords, or causal_lm."
        )
    prefix = functools.partial(_prefixes, prefixes_V), _fade(scale, until / 2, until)
    return _with_targets(ids, {"prefix": prefix} | _later_tokens(until, ahead_scales))


def prefix_tokens(ids: TokenIds) -> np.ndarray:
    """Returns i32[size]: for each id, the id of the longest proper prefix of its bytes, or -1.

    Special tokens neither have prefixes nor are prefixes. If several ids have the same bytes, the
    prefix is the largest of them, since SentencePiece's fallback bytes come before its other
    pieces.

    Raises ValueError if the texts of tokens are not known, or if their number is not `size`.
    """
    pieces = ids.token_bytes()
    by_bytes = {piece: i for i, piece in enumerate(pieces) if piece}

    def prefix_of(piece: bytes) -> int:
        shorter = (piece[:length] for length in range(len(piece) - 1, 0, -1))
        return next((by_bytes[start] for start in shorter if start in by_bytes), -1)

    return np.array([prefix_of(piece) for piece in pieces], np.int32)


# A target in addition to the next token: batch -> (labels i32[B, K], weights [B, K]); its scale.
_Target = tuple[Callable[[Mapping[str, Array]], tuple], ProgressSchedule]


def _fade(scale: float, first: float, last: float) -> ProgressSchedule:
    """Returns a line from `scale` at `first` to 0 at `last`, constant before and after."""
    return ProgressSchedule(comparable(_line, scale, first, last))


def _line(scale: float, first: float, last: float, share):
    return scale * jnp.clip((last - share) / (last - first), 0.0, 1.0)


def _later_tokens(until: float, scales: Sequence[float]) -> dict[str, _Target]:
    """Returns the targets "ahead_2", "ahead_3", …, of which the farthest fades first."""
    part = until / max(len(scales), 1)
    targets: dict[str, _Target] = {}
    for k, scale in enumerate(scales, 1):
        first = part * (len(scales) - k)
        fade = _fade(scale, first, first + part)
        targets[f"ahead_{k + 1}"] = functools.partial(ahead_tokens, k=k), fade
    return targets


def _prefixes(prefixes_V: np.ndarray, batch) -> tuple:
    """Returns the prefix of each next token, with weight 0 if there is none."""
    tokens, _, weights = predictions(batch)
    labels = jnp.asarray(prefixes_V)[tokens]
    return jnp.maximum(labels, 0), weights * (labels >= 0)


def _with_targets(ids: TokenIds, targets: Mapping[str, _Target]) -> Objective:
    """Returns `causal_lm` with additional targets for the same logits."""
    plain = causal_lm(ids).with_facts(token_weights=False)
    return plain._replace(loss=functools.partial(_loss, targets))


def _loss(targets: Mapping[str, _Target], batch) -> BatchLoss:
    tokens, slots, weights = predictions(batch)
    pairs = {"tokens": (tokens, weights)}
    pairs |= {name: find(batch) for name, (find, _) in targets.items()}
    loss = label_loss(slots, {name: [pair] for name, pair in pairs.items()})
    total_B = loss.terms["tokens"].weights
    scaled = {
        name: dataclasses.replace(loss.terms[name], weights=total_B, scale=scale)
        for name, (_, scale) in targets.items()
    }
    return loss._replace(terms=loss.terms | scaled)
