"""Inverses of objectives that hide tokens in place, from the papers of BERT, GPT-BERT and others.

The labels have the hidden tokens and their places, and all other tokens are unchanged. MASS writes
out its fragment and gives its position.
"""

from collections.abc import Callable

from tests.objectives.vocabulary import IDS


def undo_masks(document, only_masks: bool = False, framed: bool = True):
    """Replaces masks by labels. With `only_masks`, every chosen token must be the mask."""
    if not framed:
        return _filled_in(document.inputs, document.labels, only_masks)
    first, *text, last = document.inputs
    assert (first, last) == (IDS.cls, IDS.sep), "every document stands between [CLS] and [SEP]"
    labels = {place - 1: label for place, label in document.labels.items()}
    return _filled_in(text, labels, only_masks)


def undo_masks_before(document, ahead: float = 1.0):
    """Undoes masked next-token prediction: `bos`, then text that is predicted one slot earlier.

    `ahead` is the share of the later tokens that a token attends to.
    """
    first, *text = document.inputs
    assert first == IDS.bos, "every document begins with bos"
    if ahead < 1:
        n, columns = len(document.inputs), document.columns
        assert columns["inputs_positions"] == list(range(n))
        assert columns["inputs_starts"] == [0] * n
        ends = [i + 1 + int(ahead * (n - 1 - i)) for i in range(n)]
        assert columns["inputs_ends"] == ends
    return _filled_in(text, document.labels, only_masks=False)


def undo_masks_after_bos(document):
    """Undoes FlexMDM without missing tokens: `bos`, then text with masks."""
    first, *text = document.inputs
    assert first == IDS.bos, "every document begins with bos"
    labels = {place - 1: label for place, label in document.labels.items()}
    return _filled_in(text, labels, only_masks=True)


def undo_blocks(document, size: int, rates: tuple[float, float]):
    """Undoes block diffusion: the clean copy and the completed noised copy are the document."""
    columns, n = document.columns, len(document.inputs)
    blocks = [slice(first, min(first + size, n)) for first in range(0, n, size)]
    for block in blocks:
        for name, at in (("noised_begins", block.start), ("noised_ends", block.stop)):
            assert set(columns[name][block]) == {at}
        (rate,) = set(columns["noised_rates"][block])
        assert rates[0] <= rate / 2**24 <= rates[1]
    filled = _filled_in(columns["noised"], document.labels, only_masks=True)
    assert document.inputs == filled, "the clean copy is another text"
    return filled


def undo_edits(document):
    """Undoes LLaDA2.1: the labels are the masked tokens and the wrong tokens."""
    read = document.columns.get("noised", document.inputs)
    filled = _filled_in(read, document.labels, only_masks=False)
    noised = [slot for slot, (x, y) in enumerate(zip(read, filled)) if x != y]
    assert sorted(document.labels) == noised, "a label restores nothing"
    if "noised" in document.columns:
        assert document.inputs == filled, "the clean copy is another text"
    return filled


def undo_masked_blocks(document, size: int, bidirectional: bool = True, shifted: bool = False):
    """Undoes TiDAR: the targets are the document, and each has a mask.

    The tokens that a decoder reads are bos and the document, so a token stands one position later
    than its target. A mask of TiDAR has the position of its target's token. With `shifted`, as in
    I-DLM, it has the position of the token before, whose clean copy predicts the same target.
    """
    columns = document.columns
    n = len(document.targets)
    assert not document.inputs
    assert columns["masks"] == [IDS.mask] * n
    for i in range(n):
        block = range(i - i % size, min(i - i % size + size, n))
        # TiDAR: bos and the tokens before the block. I-DLM: the same without the last of them.
        visible = len([*range(block.start), "bos"]) - shifted
        assert columns["masks_positions"][i] == (i if shifted else i + 1)
        assert columns["masks_begins"][i] == block.start
        assert columns["masks_ends"][i] == (block.stop if bidirectional else i + 1)
        assert columns["masks_visible"][i] == visible
    return document.targets


def undo_registers(document, max_offset: int):
    """Undoes MuToR: the targets are the document, and those from the offset on have a register.

    The inputs are bos and the document, so the input at slot t predicts target t. In the paper, the
    register after the input at slot s, with an offset of d, predicts the token that the input at
    slot s + d - 1 predicts. It has the position of that input, and attends to the s + 1 inputs up
    to slot s.
    """
    columns = document.columns
    n = len(document.targets)
    assert not document.inputs
    registers = [slot for slot in range(n) if columns["masks_ends"][slot]]
    if registers:
        offset = registers[0] + 1
        assert 1 <= offset <= max_offset
        assert registers == list(range(offset - 1, n))
    else:
        assert n < max_offset
    for target in range(n):
        got = tuple(columns[f"masks{x}"][target] for x in ("", *_OF_REGISTERS))
        after = target - offset + 1 if registers else -1
        if after < 0:
            assert not any(got)
        else:
            assert got == (IDS.mask, after + offset - 1, target, target + 1, after + 1)
    return document.targets


_OF_REGISTERS = ("_positions", "_begins", "_ends", "_visible")


def undo_permuted_masks(document):
    """Undoes MPNet: each slot attends to every position of its document once."""
    k, given = len(document.labels), document.inputs
    n = len(given) - 2 * k  # including [CLS] and [SEP]
    positions, starts, ends = (
        document.columns[f"inputs_{name}"] for name in ("positions", "starts", "ends")
    )
    assert sorted(document.labels) == list(range(n + k, n + 2 * k)), "predicted elsewhere"
    for start, end in zip(starts, ends):
        assert sorted(positions[start:end]) == list(range(n)), "a position is out of view"
    masks, shown, order = range(k), range(k, n), positions[n : n + k]
    assert order == positions[:k] == positions[n + k :], "masks stand in another order"
    for t in range(k):
        visible = {*range(t, k), *shown, *range(n, n + t)}  # later masks, earlier tokens
        assert set(range(starts[n + k + t], ends[n + k + t])) == visible
        assert set(range(starts[n + t], ends[n + t])) == visible - {t} | {n + t}
        assert given[n + t] == document.labels[n + k + t] and given[t] == given[n + k + t]
    assert all((starts[slot], ends[slot]) == (0, n) for slot in (*masks, *shown))
    first, *text, last = [given[positions.index(at, k)] for at in range(n)]
    assert (first, last) == (IDS.cls, IDS.sep)
    return text


def undo_permutation(document):
    """Undoes XLNet's order: puts tokens at their positions, and predicted tokens by labels."""
    columns, n = document.columns, len(document.inputs)
    predicted = sorted(document.labels)
    given = n - len(predicted)
    assert predicted == list(range(given, n))
    assert sorted(columns["inputs_positions"]) == list(range(n))
    assert columns["inputs_starts"] == [0] * n
    assert columns["inputs_ends"] == columns["noised_ends"]
    assert columns["inputs_positions"][:given] == sorted(columns["inputs_positions"][:given])
    assert columns["noised"] == document.inputs[:given] + [IDS.mask] * len(predicted)
    assert columns["noised_begins"] == [0] * given + predicted
    assert columns["noised_ends"] == [given] * given + [slot + 1 for slot in predicted]
    text = [0] * n
    for slot, position in enumerate(columns["inputs_positions"]):
        text[position] = document.labels.get(slot, document.inputs[slot])
    assert [text[i] for i in columns["inputs_positions"]] == document.inputs
    return text


def undo_groups(document, size: int, shuffled: bool = True):
    """Undoes A3: puts tokens at their positions. Groups are runs of `size` slots.

    In the published code, the content stream attends to groups up to its own, and the query stream
    to earlier groups. Copies also attend to the copies of their group.
    """
    columns, n = document.columns, len(document.inputs)
    positions = columns["inputs_positions"]
    assert sorted(positions) == list(range(n))
    assert shuffled or positions == list(range(n))
    assert document.labels == dict(enumerate(document.inputs))
    assert columns["noised"] == [IDS.mask] * n
    for slot in range(n):
        begin = slot - slot % size
        end = min(begin + size, n)
        assert (columns["inputs_starts"][slot], columns["inputs_ends"][slot]) == (0, end)
        assert (columns["noised_begins"][slot], columns["noised_ends"][slot]) == (begin, end)
    return [token for _, token in sorted(zip(positions, document.inputs))]


def undo_shuffled(document):
    """Undoes σ-GPT: puts each target at its position, which its slot also knows.

    The slot reads bos or the target before it, whose position it knows, too.
    """
    columns = document.columns
    predicted = [position - 1 for position in columns["targets_block_positions"]]
    assert not document.inputs and sorted(predicted) == list(range(len(predicted)))
    assert columns["targets_positions"] == [0, *predicted[:-1]]
    return [token for _, token in sorted(zip(predicted, document.targets))]


def undo_fragment(document):
    """Undoes MASS: the positions of the targets show their place."""
    *text, last = document.inputs
    assert last == IDS.eos, "end-of-sequence closes the inputs of every document"
    begins, count = document.columns["targets_positions"], len(document.targets)
    assert len(set(begins)) == 1, "a fragment begins in one place"
    assert document.columns["targets_block_positions"] == list(range(1, count + 1))
    labels = dict(enumerate(document.targets, begins[0]))
    assert len(labels) == max(1, round(len(text) / 2))
    return _filled_in(text, labels, only_masks=False)


def undo_hybrid(document):
    """Undoes hybrid diffusion: every token is predicted, noised or not."""
    assert sorted(document.labels) == list(range(len(document.inputs)))
    return _filled_in(document.inputs, document.labels, only_masks=False)


def undo_replaced(document):
    """Undoes uniform diffusion: all tokens are predicted, and no mask marks the noise."""
    assert IDS.mask not in document.inputs
    return undo_hybrid(document)


def undo_noised_embeddings(document):
    """Undoes embedding diffusion: all tokens are given and predicted, with one level of noise."""
    levels = document.columns["inputs_noise_levels"]
    assert len(set(levels)) == 1 and 0 < levels[0] < 2**24
    assert len(set(document.columns["inputs_self_conditioned"])) == 1
    return undo_replaced(document)


def undo_insertions(document):
    """Undoes ILM: dropped tokens follow the token that predicts them, in the given order."""
    cls, bos, *text = document.inputs
    assert (cls, bos) == (IDS.cls, IDS.bos) and IDS.mask not in text
    assert all(place > 0 for place, _ in document.labeled), "[CLS] predicts a token"
    assert document.pools == [(0, int(bool(document.labeled)), 1)], "is a token missing?"
    rebuilt = []
    for place, token in enumerate(document.inputs):
        rebuilt += [token] * (place > 1)
        rebuilt += [dropped for at, dropped in document.labeled if at == place]
    return rebuilt


def undo_stand_ins(document):
    """Undoes MEAP: all tokens are targets, and some are hidden from later tokens."""
    stand_ins = document.columns["targets_stand_ins"]
    assert not document.inputs and len(stand_ins) == len(document.targets)
    assert set(stand_ins) <= {0, IDS.mask + 1}
    assert stand_ins.count(IDS.mask + 1) == max(1, round(0.15 * len(stand_ins)))
    return document.targets


def undo_tail(document):
    """Undoes CARD: all tokens are targets, and those hidden from later tokens are near the end."""
    stand_ins = document.columns["targets_stand_ins"]
    n = len(document.targets)
    assert not document.inputs and len(stand_ins) == n
    assert set(stand_ins) <= {0, IDS.mask + 1}
    number = stand_ins.count(IDS.mask + 1)
    assert 1 <= number <= max(1, n - 1)
    assert IDS.mask + 1 not in stand_ins[: max(0, n - number * 3 // 2)]
    return document.targets


def undo_restored(document, states: int, visible: Callable[[int], int]):
    """Undoes RetroMAE, both ways: the masks, and the order of the targets.

    `states` is the number of embeddings among the targets. `visible` is the number of tokens from
    which each of n tokens is restored, in addition to an embedding.
    """
    columns = document.columns
    positions = columns["contexts_positions"]
    assert positions.count(0) == states, "the number of embeddings differs from `states`"
    placed = {at: token for at, token in zip(positions, document.targets) if at}
    assert all(t == IDS.cls for t, at in zip(document.targets, positions) if not at)
    text = [placed[at] for at in sorted(placed)]
    assert sorted(placed) == list(range(1, len(text) + 1)), "a position is twice or not there"
    intervals = zip(columns["contexts_starts"], columns["contexts_ends"])
    for slot, (start, end) in enumerate(intervals):
        assert 0 <= start < end <= len(positions), "an interval leaves the document"
        assert end - start == 1 + visible(len(text)), "another number of tokens is visible"
        assert positions[start:end].count(0) == 1, "an interval without the embedding"
        assert not start <= slot < end, "a token is restored from itself"
    assert undo_masks(document) == text, "encoder and decoder have different texts"
    return text


def _filled_in(tokens, labels, only_masks):
    first, last = IDS.text
    for place, label in labels.items():
        assert first <= label < last, "a label that is no text"
        assert tokens[place] == IDS.mask or (not only_masks and first <= tokens[place] < last)
    for place, token in enumerate(tokens):
        assert place in labels or first <= token < last, "hidden, but never predicted"
    return [labels.get(place, token) for place, token in enumerate(tokens)]
