"""What was hidden in place, put back: written from the papers of BERT, GPT-BERT, LLaDA and BD3LM.

The labels say which token stood where; everything else was given as it is. MASS writes its fragment
out, and says where it began.
"""

from pretrax.objectives import TokenIds


def undo_masks(ids: TokenIds, only_masks: bool = False, framed: bool = True):
    """`only_masks`: every chosen token became the mask, none another token or itself."""

    def undo(document):
        if not framed:
            return _filled_in(ids, document.inputs, document.labels, only_masks)
        first, *text, last = document.inputs
        assert (first, last) == (ids.cls, ids.sep), "every document stands between [CLS] and [SEP]"
        labels = {place - 1: label for place, label in document.labels.items()}
        return _filled_in(ids, text, labels, only_masks)

    return undo


def undo_masks_before(ids: TokenIds):
    """Undoes masked next-token prediction: `bos`, then text predicted one place before it."""

    def undo(document):
        first, *text = document.inputs
        assert first == ids.bos, "every document begins with bos"
        return _filled_in(ids, text, document.labels, only_masks=False)

    return undo


def undo_blocks(ids: TokenIds, size: int, rates: tuple[float, float]):
    """Undoes block diffusion: the noised copy filled in is the document, as the clean copy is."""

    def undo(document):
        columns, n = document.columns, len(document.inputs)
        blocks = [slice(first, min(first + size, n)) for first in range(0, n, size)]
        for block in blocks:
            for name, at in (("noised_begins", block.start), ("noised_ends", block.stop)):
                assert set(columns[name][block]) == {at}
            (rate,) = set(columns["noised_rates"][block])
            assert rates[0] <= rate / 2**24 <= rates[1]
        filled = _filled_in(ids, columns["noised"], document.labels, only_masks=True)
        assert document.inputs == filled, "the clean copy is another text"
        return filled

    return undo


def undo_fragment(ids: TokenIds):
    """Undoes MASS: the targets stand in the place that their positions say."""

    def undo(document):
        *text, last = document.inputs
        assert last == ids.eos, "end-of-sequence closes the inputs of every document"
        begins, count = document.columns["targets_positions"], len(document.targets)
        assert len(set(begins)) == 1, "a fragment begins in one place"
        assert document.columns["targets_block_positions"] == list(range(1, count + 1))
        labels = dict(enumerate(document.targets, begins[0]))
        assert len(labels) == max(1, round(len(text) / 2))
        return _filled_in(ids, text, labels, only_masks=False)

    return undo


def undo_hybrid(ids: TokenIds):
    """Undoes hybrid diffusion: every token is predicted, whether it is noised or not."""

    def undo(document):
        assert sorted(document.labels) == list(range(len(document.inputs)))
        return _filled_in(ids, document.inputs, document.labels, only_masks=False)

    return undo


def undo_stand_ins(ids: TokenIds):
    """Undoes MEAP: all targets are there, and some are not shown to those after them."""

    def undo(document):
        stand_ins = document.columns["targets_stand_ins"]
        assert not document.inputs and len(stand_ins) == len(document.targets)
        assert set(stand_ins) <= {0, ids.mask}
        assert stand_ins.count(ids.mask) == max(1, round(0.15 * len(stand_ins)))
        return document.targets

    return undo


def _filled_in(ids, tokens, labels, only_masks):
    first, last = ids.text
    for place, label in labels.items():
        assert first <= label < last, "a label that is no text"
        assert tokens[place] == ids.mask or (not only_masks and first <= tokens[place] < last)
    for place, token in enumerate(tokens):
        assert place in labels or first <= token < last, "hidden, but never predicted"
    return [labels.get(place, token) for place, token in enumerate(tokens)]
