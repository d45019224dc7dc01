"""Inverses of noise on documents in plain Python, written from the papers and not from the code.

If the target is the document itself, the functions check that the noise can produce the inputs.
"""

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from tests.objectives.inverse import _without_eos, _without_mode
from tests.objectives.vocabulary import IDS


def undo_pieces(document, mode: int | None = None, whole_runs: bool = True, closes: bool = True):
    """Puts pieces in the places of their sentinels, which may be anywhere.

    `closes` is whether a further sentinel ends the targets of a document that ends with text.
    """
    number = {sentinel: i for i, sentinel in enumerate(IDS.sentinels)}
    inputs = _without_mode(mode, _without_eos(document.inputs))
    pieces: list[list[int]] = []
    for token in _without_eos(document.targets):
        if token in number:
            assert number[token] == len(pieces), "sentinel k precedes piece k"
            pieces.append([])
        else:
            assert pieces, "a hidden token without a sentinel before it"
            pieces[-1].append(token)
    if whole_runs and closes and inputs and inputs[-1] not in number:
        assert pieces.pop() == [], "one more sentinel closes targets where text comes last"
    assert all(pieces) and (whole_runs or all(len(piece) == 1 for piece in pieces))
    order = [number[token] for token in inputs if token in number]
    assert order == list(range(len(pieces))), "inputs: sentinels in order, one a piece"
    marks = [token in number for token in inputs]
    assert not whole_runs or not any(a and b for a, b in zip(marks, marks[1:])), "pieces touch"
    return [x for token in inputs for x in (pieces[number[token]] if token in number else [token])]


def undo_masks_in_order(document):
    """Puts the k-th target at the k-th mask."""
    hidden = iter(_without_eos(document.targets))
    inputs = _without_eos(document.inputs)
    text = [next(hidden) if token == IDS.mask else token for token in inputs]
    assert next(hidden, None) is None, "more targets than masks"
    return text


def undo_gaps(document, rate: str = "0.3"):
    """Puts the k-th sentence of the targets at the k-th mask."""
    inputs = _without_eos(document.inputs)
    gaps = sentences(_without_eos(document.targets))
    left = iter(gaps)
    text = [x for token in inputs for x in (next(left) if token == IDS.mask else [token])]
    assert next(left, None) is None, "more sentences than masks"
    assert len(gaps) == max(1, int(len(sentences(text)) * Fraction(rate)))
    return text


def undo_whole(document, possible: Callable, mode: int | None = None):
    """Returns the target, and asserts the noise's guarantees with `possible(inputs, document)`."""
    text = _without_eos(document.targets)
    possible(_without_mode(mode, _without_eos(document.inputs)), text)
    return text


def replaced(inputs, document, allowed: Callable):
    """Asserts that inputs which differ from the document are `allowed`."""
    assert len(inputs) == len(document)
    assert all(a == b or allowed(a) for a, b in zip(inputs, document))


def left_out(inputs, document):
    rest = iter(document)
    assert all(token in rest for token in inputs), "no subsequence of the document"


def shuffled(inputs, document):
    assert Counter(inputs) == Counter(document)


def rotated(inputs, document):
    assert inputs in [document[i:] + document[:i] for i in range(len(document))]


def sentences(document) -> list[list[int]]:
    ends, result = IDS.flags("sentence_ends"), [[]]
    for token, following in zip(document, [*document[1:], None]):
        result[-1].append(token)
        if ends[token] and not (following is not None and ends[following]):
            result.append([])
    return [sentence for sentence in result if sentence]


def sentences_permuted(inputs, document):
    left = sentences(document)
    # An incomplete sentence may begin like another sentence, so the longest is tried first.
    while inputs:
        found = max((s for s in left if inputs[: len(s)] == s), key=len, default=None)
        assert found, "no sentence of the document begins here"
        left.remove(found)
        inputs = inputs[len(found) :]
    assert not left, "a sentence is missing"


def hidden_by_infilling(n: int, density) -> int:
    return round(n * Fraction(str(density)))  # rounds half to even


def infilled(inputs, document, density: float = 0.3):
    n = len(document)
    _assert_infilled_counts(inputs, n, density)
    reachable = {0}  # possible places in the document after the inputs so far
    for token in inputs:
        if token == IDS.mask:
            reachable = set(range(min(reachable), n + 1))
        else:
            reachable = {i + 1 for i in reachable if i < n and document[i] == token}
        assert reachable, "masks do not cover what is missing"
    assert n in reachable


def permuted_and_infilled(inputs, document, density: float = 0.3):
    _assert_infilled_counts(inputs, len(document), density)
    units = sentences(document)
    neighbors = set(zip(document, document[1:]))
    neighbors |= {(a[-1], b[0]) for a in units for b in units}
    for pair in zip(inputs, inputs[1:]):
        assert IDS.mask in pair or pair in neighbors, "neither in line nor a new sentence"
    assert Counter(x for x in inputs if x != IDS.mask) <= Counter(document)


def _assert_infilled_counts(inputs, n, density):
    masks = np.array(inputs) == IDS.mask
    assert (~masks).sum() == n - hidden_by_infilling(n, density)
    assert not (masks[1:] & masks[:-1]).any(), "spans touch"
    assert masks.any() == (hidden_by_infilling(n, density) > 0)
