"""Inverses of the supervised objectives (see `tests.objectives.inverse`)."""

from pretrax.objectives import TokenIds


def undo_answer(ids: TokenIds, mode: int):
    def undo(document):
        assert document.inputs[0] == mode
        assert document.inputs[-1] == document.targets[-1] == ids.eos
        return document.inputs[1:-1] + document.targets[:-1]

    return undo


def undo_turns(ids: TokenIds):
    """Undoes turns, which each end with a marker."""

    def undo(document):
        assert document.targets[-1] in (ids.sep, ids.eos)
        return [token for token in document.targets if token not in (ids.sep, ids.eos)]

    return undo


def undo_frame(ids: TokenIds):
    """Undoes the frame. All tokens of the registry's documents have labels, which are not text."""

    def undo(document):
        first, *text, last = document.inputs
        assert (first, last) == (ids.cls, ids.sep)
        if document.labels:
            assert sorted(document.labels) == list(range(1, len(text) + 1))
            assert set(document.labels.values()) <= {0, 1, 2}
        else:
            ((place, label, weight),) = document.pools
            assert place == 0 and label in (0, 1, 2) and weight == 1
        return text

    return undo
