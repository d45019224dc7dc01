"""Which tokens of a row are hidden, predicted or left out: exact, for any objective."""

import numpy as np

from .rows import ModelView
from .tracing import read


def hidden_tokens(view: ModelView) -> np.ndarray:
    """Returns bool[rows, L]: tokens predicted in place, or predicted and not among the inputs.

    Without inputs (causal language modeling) nothing is hidden; everything is predicted.
    """
    labeled = _is_text(view) & _marked(view, weighted_slots(view, "labels"))
    return labeled | (_absent(view) & predicted_tokens(view))


def left_out_tokens(view: ModelView) -> np.ndarray:
    """Returns bool[rows, L]: tokens neither given nor predicted, such as those after A when B is
    from another text."""
    return _absent(view) & ~predicted_tokens(view)


def predicted_tokens(view: ModelView) -> np.ndarray:
    """Returns bool[rows, L]: text tokens that are targets or labels with a loss weight."""
    targets = _marked(view, weighted_slots(view, "targets"))
    return _is_text(view) & (targets | _marked(view, weighted_slots(view, "labels")))


def hides(view: ModelView, row: int, asked: np.ndarray) -> bool:
    """Returns whether exactly the tokens `asked`, bool[L], of a row are hidden.

    Without inputs, as in fill-in-the-middle, it returns whether they are predicted after all other
    tokens, and each of several runs after a special token. With stand-ins, it returns whether
    later slots are given the stand-ins in place of these tokens.
    """
    wanted = asked & _is_text(view)[row]
    if "inputs" in view.features:
        return bool((hidden_tokens(view)[row] == wanted).all())
    slots = weighted_slots(view, "targets")
    if "targets_stand_ins" in view.features:
        masked = np.where(view.features["targets_stand_ins"] > 0, slots, -1)
        return bool((_marked(view, masked)[row] == wanted).all())
    slots = slots[row]
    is_asked = (slots >= 0) & asked[slots]
    opens = is_asked & ~(np.roll(is_asked, 1) & (np.diff(slots, prepend=-2) == 1))
    after_special = np.roll(slots, 1)[opens] < 0
    turn = np.arange(slots.size)
    after_others = turn[is_asked].min() > turn[(slots >= 0) & ~is_asked].max(initial=-1)
    return bool(after_others and (opens.sum() == 1 or after_special.all()))


def weighted_slots(view: ModelView, stream: str) -> np.ndarray:
    """Returns i32[rows, n]: the raw slots of a stream's tokens with a loss weight; else -1."""
    if stream not in view.features:
        return np.full((len(view.tokens), 1), -1)
    _, slots = read(view.features[stream])
    return np.where(view.features[f"{stream}_weights"] > 0, slots, -1)


def _absent(view: ModelView) -> np.ndarray:
    """Returns bool[rows, L]: text tokens that the inputs, if there are any, do not hold."""
    if "inputs" not in view.features:
        return np.zeros(view.tokens.shape, bool)
    _, slots = read(view.features["inputs"])
    return _is_text(view) & ~_marked(view, slots)


def _is_text(view: ModelView) -> np.ndarray:
    first, last = view.ids.text
    return (view.segments > 0) & (view.tokens >= first) & (view.tokens < last)


def _marked(view: ModelView, slots: np.ndarray) -> np.ndarray:
    """Returns bool[rows, L], true at these raw slots; slots outside the row do not count."""
    marks = np.zeros((len(view.tokens), view.length + 1), bool)
    inside = (slots >= 0) & (slots < view.length)
    np.put_along_axis(marks, np.where(inside, slots, view.length), True, axis=1)
    return marks[:, :-1]
