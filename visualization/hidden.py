"""Finds the hidden, predicted and left-out tokens of a row, for any objective."""

import numpy as np

from ..objectives.streams import streams_of
from .rows import ModelView
from .tracing import read


def hidden_tokens(view: ModelView) -> np.ndarray:
    """Returns a bool[rows, L] mask of the hidden tokens.

    A token is hidden if it is predicted in place, or if it is predicted and not among the inputs.
    Without inputs (causal language modeling) every token is predicted and none is hidden.
    """
    labeled = _is_text(view) & _marked(view, weighted_slots(view, "labels"))
    return labeled | (_absent(view) & predicted_tokens(view))


def left_out_tokens(view: ModelView) -> np.ndarray:
    """Returns a bool[rows, L] mask of the tokens that are neither given nor predicted.

    An example is the text after A if B is from another text.
    """
    return _absent(view) & ~predicted_tokens(view)


def predicted_tokens(view: ModelView) -> np.ndarray:
    """Returns a bool[rows, L] mask of the text tokens that are targets or labels with a weight.

    A target may have further tokens, such as the rest of its bag.
    """
    predicted_slots = [weighted_slots(view, "targets"), weighted_slots(view, "labels")]
    predicted_slots += [
        np.where(view.features["targets_weights"] > 0, read(view.features[column])[1], -1)
        for stream in streams_of(view.features)
        if stream.in_use == "targets_segments" and stream.name != "targets"
        for column in stream.columns
    ]
    return _is_text(view) & np.any([_marked(view, slots) for slots in predicted_slots], axis=0)


def hides(view: ModelView, row: int, requested: np.ndarray) -> bool:
    """Returns whether exactly the requested tokens of a row, bool[L], are hidden.

    Without inputs, as in fill-in-the-middle, hidden tokens are predicted after all other tokens,
    and several runs follow a special token each. With stand-ins, hidden tokens are those with a
    stand-in.
    """
    wanted = requested & _is_text(view)[row]
    if "inputs" in view.features:
        return bool((hidden_tokens(view)[row] == wanted).all())
    slots = weighted_slots(view, "targets")
    if "targets_stand_ins" in view.features:
        masked = np.where(view.features["targets_stand_ins"] > 0, slots, -1)
        return bool((_marked(view, masked)[row] == wanted).all())
    slots = slots[row]
    is_requested = (slots >= 0) & requested[slots]
    opens = is_requested & ~(np.roll(is_requested, 1) & (np.diff(slots, prepend=-2) == 1))
    after_special = np.roll(slots, 1)[opens] < 0
    turn = np.arange(slots.size)
    after_others = turn[is_requested].min() > turn[(slots >= 0) & ~is_requested].max(initial=-1)
    return bool(after_others and (opens.sum() == 1 or after_special.all()))


def weighted_slots(view: ModelView, stream: str) -> np.ndarray:
    """Returns i32[rows, n] raw slots of a stream's tokens; -1 for tokens without a loss weight."""
    if stream not in view.features:
        return np.full((len(view.tokens), 1), -1)
    _, slots = read(view.features[stream])
    return np.where(view.features[f"{stream}_weights"] > 0, slots, -1)


def _absent(view: ModelView) -> np.ndarray:
    """Returns a bool[rows, L] mask of the text tokens that are missing from the inputs."""
    if "inputs" not in view.features:
        return np.zeros(view.tokens.shape, bool)
    _, slots = read(view.features["inputs"])
    return _is_text(view) & ~_marked(view, slots)


def _is_text(view: ModelView) -> np.ndarray:
    first, last = view.ids.text
    return (view.segments > 0) & (view.tokens >= first) & (view.tokens < last)


def _marked(view: ModelView, slots: np.ndarray) -> np.ndarray:
    """Returns bool[rows, L], true at these raw slots. Slots outside the row are ignored."""
    marks = np.zeros((len(view.tokens), view.length + 1), bool)
    inside = (slots >= 0) & (slots < view.length)
    np.put_along_axis(marks, np.where(inside, slots, view.length), True, axis=1)
    return marks[:, :-1]
