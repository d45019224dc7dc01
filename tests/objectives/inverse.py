"""What an objective did, undone in plain Python: written from the papers, not from the code.

Each function takes the inputs and the targets of ONE document as lists of ids and gives the
document back; it asserts everything that the objective promises about their form.
"""

import numpy as np

from objectives import TokenIds


def documents_of(features, stream: str) -> dict[int, list[int]]:
    """{document number: its ids} of one stream of one row; asserts that documents are compact."""
    tokens = np.asarray(features.get(stream, ()))
    segments = np.asarray(features.get(f"{stream}_segments", ()))
    live = segments[segments > 0]
    assert (segments[: live.size] > 0).all(), "padding between documents"
    assert (np.diff(live) >= 0).all(), "documents out of order"
    assert (tokens[live.size :] == 0).all(), "ids in the padding"
    return {int(d): tokens[segments == d].tolist() for d in np.unique(live)}


def undo_spans(ids: TokenIds, mode: int | None = None):
    def undo(inputs, targets):
        inputs, targets = _without_eos(ids, inputs), _without_eos(ids, targets)
        inputs = _without_mode(mode, inputs)
        number = {sentinel: i for i, sentinel in enumerate(ids.sentinels)}
        spans: list[list[int]] = []
        for token in targets:
            if token in number:
                assert number[token] == len(spans), "targets: sentinels start at 0, in order"
                spans.append([])
            else:
                spans[-1].append(token)
        assert all(spans), "an empty span"
        document, seen = [], 0
        for place, token in enumerate(inputs):
            if token in number:
                assert number[token] == seen, "inputs: sentinels start at 0, in order"
                assert place > 0 and inputs[place - 1] not in number, "spans touch"
                document += spans[seen]
                seen += 1
            else:
                document.append(token)
        assert seen == len(spans), "a span is missing"
        return document

    return undo


def undo_split(ids: TokenIds, mode: int | None = None):
    def undo(inputs, targets):
        suffix = _without_eos(ids, targets)
        assert suffix, "nothing to predict"
        return _without_mode(mode, _without_eos(ids, inputs)) + suffix

    return undo


def undo_copy(inputs, targets):
    assert not inputs
    return targets


def _without_eos(ids, tokens):
    assert tokens[-1] == ids.eos, "end-of-sequence closes every stream of every document"
    return tokens[:-1]


def _without_mode(mode, tokens):
    if mode is None:
        return tokens
    assert tokens[0] == mode, "the mode token opens the inputs of every document"
    return tokens[1:]
