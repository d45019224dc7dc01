"""Inverses of infilling objectives in plain Python, from the papers (see `inverse.py`)."""

from pretrax.objectives import TokenIds
from tests.objectives.vocabulary import IDS


def undo_middle(document, spm: str = "spmv2", ids: TokenIds = IDS):
    """Undoes Bavarian et al. 2022: a document, or prefix, suffix and middle after their markers."""
    prefix, suffix, middle = ids.fim
    forms = {  # the markers in order, and which part follows each of them
        "psm": ((prefix, suffix, middle), "psm"),
        "spm": ((suffix, prefix, middle), "spm"),
        # T is the prefix directly followed by the middle.
        "spmv2": ((prefix, suffix, middle), " st"),
    }
    assert not document.inputs
    *text, end = document.targets
    assert end == ids.eos and ids.eos not in text
    markers = tuple(token for token in text if token in ids.fim)
    if not markers:
        return text
    form = "psm"
    if text[0] == suffix or text[1] == suffix and spm == "spmv2":
        # With an empty prefix, PSM and SPMv2 have the same tokens in the same order.
        form = spm
    order, names = forms[form]
    assert markers == order and text[0] == order[0]
    places = [text.index(marker) for marker in order] + [len(text)]
    stretches = zip(places, places[1:])
    part = {name: text[a + 1 : b] for name, (a, b) in zip(names, stretches)}
    if form == "spmv2":
        assert not part[" "]
        return part["t"] + part["s"]
    return part["p"] + part["m"] + part["s"]


def undo_causal_masking(document, max_spans: int = 16):
    """Undoes Aghajanyan et al. 2022: spans follow their sentinels at the end, in order."""
    assert not document.inputs
    used = sorted(set(document.targets) & set(IDS.sentinels), key=IDS.sentinels.index)
    assert 1 <= len(used) <= max_spans and used == list(IDS.sentinels[: len(used)])
    second = document.targets.index(used[0], document.targets.index(used[0]) + 1)
    text, moved = document.targets[:second], document.targets[second:]
    assert [token for token in text if token in used] == used, "each once, in order"
    places = [text.index(sentinel) for sentinel in used]
    assert all(b - a > 1 for a, b in zip(places, places[1:])), "spans touch"
    spans = {}
    for sentinel in used:
        assert moved[0] == sentinel
        end = moved.index(IDS.eos)
        spans[sentinel], moved = moved[1:end], moved[end + 1 :]
        assert spans[sentinel], "an empty span"
    assert not moved
    return [x for token in text for x in spans.get(token, [token])]


def undo_blanks(document):
    """Undoes Du et al. 2022: blocks are in any order, and their positions show their places."""
    inputs, targets = document.inputs, document.targets
    positions = document.columns["targets_positions"]
    within = document.columns["targets_block_positions"]
    assert targets[-1] == IDS.eos
    blocks, start = {}, 0
    while start < len(targets):
        end = targets.index(IDS.eos, start)
        place = positions[start]
        assert positions[start : end + 1] == [place] * (end + 1 - start)
        assert within[start : end + 1] == list(range(1, end + 2 - start))
        assert end > start, "an empty span"
        assert place not in blocks and inputs[place] == IDS.mask
        blocks[place] = targets[start:end]
        start = end + 1
    assert sorted(blocks) == [i for i, token in enumerate(inputs) if token == IDS.mask]
    assert not any(place + 1 in blocks for place in blocks), "spans touch"
    return [x for i, token in enumerate(inputs) for x in blocks.get(i, [token])]
