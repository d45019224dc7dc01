"""Inverses of sentence pairs in plain Python (see `inverse.py`)."""

from tests.objectives.vocabulary import IDS


def pair_of(document) -> tuple[list[int], list[int]]:
    """Returns A and B of `[CLS] A [SEP] B [SEP]`, and asserts the form and the token types."""
    inputs = document.inputs
    assert inputs[0] == IDS.cls and inputs[-1] == IDS.sep
    separators = [i for i, token in enumerate(inputs) if token == IDS.sep]
    assert len(separators) == 2
    first, last = separators
    types = document.columns["inputs_types"]
    assert types == [0] * (first + 1) + [1] * (last - first)
    return inputs[1:first], inputs[first + 1 : last]


def undo_order(document):
    a, b = pair_of(document)
    if not document.pools:  # A single token cannot be cut.
        assert (len(a), len(b)) == (1, 0)
        return a
    ((place, label, _),) = document.pools
    assert place == 0 and a and b
    return b + a if label == 1 else a + b


def undo_masked_order(document):
    """Undoes sentence order with masked language modeling. The masks are undone first."""
    inputs = list(document.inputs)
    for place, token in document.labels.items():
        assert IDS.text[0] <= token < IDS.text[1]
        inputs[place] = token
    return undo_order(document._replace(inputs=inputs))
