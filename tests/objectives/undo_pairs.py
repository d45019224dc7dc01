"""Inverses of sentence pairs in plain Python (see `inverse.py`)."""

from pretrax.objectives import TokenIds


def pair_of(ids: TokenIds, document) -> tuple[list[int], list[int]]:
    """Returns A and B of `[CLS] A [SEP] B [SEP]`, and asserts the form and the token types."""
    inputs = document.inputs
    assert inputs[0] == ids.cls and inputs[-1] == ids.sep
    separators = [i for i, token in enumerate(inputs) if token == ids.sep]
    assert len(separators) == 2
    first, last = separators
    types = document.columns["inputs_types"]
    assert types == [0] * (first + 1) + [1] * (last - first)
    return inputs[1:first], inputs[first + 1 : last]


def undo_order(ids: TokenIds):
    def undo(document):
        a, b = pair_of(ids, document)
        if not document.pools:  # A single token cannot be cut.
            assert (len(a), len(b)) == (1, 0)
            return a
        ((place, label, _),) = document.pools
        assert place == 0 and a and b
        return b + a if label == 1 else a + b

    return undo


def undo_masked_order(ids: TokenIds):
    """Undoes sentence order with masked language modeling. The masks are undone first."""

    def undo(document):
        inputs = list(document.inputs)
        for place, token in document.labels.items():
            assert ids.text[0] <= token < ids.text[1]
            inputs[place] = token
        return undo_order(ids)(document._replace(inputs=inputs))

    return undo
