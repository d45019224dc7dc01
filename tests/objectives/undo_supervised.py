"""Inverses of the supervised objectives (see `tests.objectives.inverse`)."""

from tests.objectives.vocabulary import IDS


def undo_answer(document, mode: int):
    assert document.inputs[0] == mode
    assert document.inputs[-1] == document.targets[-1] == IDS.eos
    return document.inputs[1:-1] + document.targets[:-1]


def undo_turns(document):
    """Undoes turns, which each end with a marker."""
    assert document.targets[-1] in (IDS.sep, IDS.eos)
    return [token for token in document.targets if token not in (IDS.sep, IDS.eos)]


def undo_frame(document):
    """Undoes the frame. All tokens of the registry's documents have labels, which are not text."""
    first, *text, last = document.inputs
    assert (first, last) == (IDS.cls, IDS.sep)
    if document.labels:
        assert sorted(document.labels) == list(range(1, len(text) + 1))
        assert set(document.labels.values()) <= {0, 1, 2}
    else:
        ((place, label, weight),) = document.pools
        assert place == 0 and label in (0, 1, 2) and weight == 1
    return text
