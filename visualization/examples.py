"""One row, token by token: each token's kind, its slot in the raw row, and its prediction."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..objectives import Objective, TokenIds
from .rows import STACKS, ModelView, ShownObjective

NO_SPAN = -1
NOISED = "noised"  # the copies of a decoder's tokens, displayed as a stack
CLOSING = frozenset(".,;:!?)]}")  # words that no space comes before


class Reader(NamedTuple):
    """Texts of token ids."""

    ids: TokenIds
    names: dict[int, str]  # of special ids
    decode: Callable[[Sequence[int]], str]  # of text ids
    surface: Callable[[int], str]  # the text of an id within a text, with the space before a word
    # The words of a text where each token is one: they are shown with a space between them.
    words: Callable[[str], list[str]] | None = None


class Token(NamedTuple):
    """A token as it is displayed."""

    text: str
    # "text", "kept", "replaced", "other", "left out", or a special: "sentinel", "mask", "end", …
    kind: str
    span: int = NO_SPAN  # number of its hidden span, or of its sentinel
    id: int = 0
    slot: int = -1  # in the raw row; -1 if it is not copied from it
    before: str = ""  # the space between it and the token before, where that is no part of it


class Slot(NamedTuple):
    """A slot of a stack: its input token, and the token predicted from it."""

    given: Token
    predicted: Token | None
    further: tuple[Token | None, ...] = ()  # of the stack's `further` terms


class StackView(NamedTuple):
    """A row's slots in one stack."""

    name: str  # "encoder", "decoder" or "noised"
    slots: list[Slot]  # without padding
    size: int  # number of slots with padding
    tracks: dict[str, np.ndarray]  # segments, positions, …, loss weights: a number for each slot
    targets: int  # that its slots predict, which may be several of one slot
    further: tuple[str, ...] = ()  # terms that predict other tokens from the same slots


class AttentionPattern(NamedTuple):
    """A row's attention pattern in one stack, or across the two."""

    name: str  # "encoder", "decoder", "cross", "noised" or "clean"
    intervals: np.ndarray  # i32[2, queries]: the keys [start, end) of each query
    keys: int
    documents: np.ndarray  # i32[queries]


class Pool(NamedTuple):
    """A slot whose hidden state represents a document, a pair or a view."""

    slot: int
    label: str | None  # its class, where there are classes
    counts: bool  # in the loss


class Example(NamedTuple):
    """One row before and after corruption."""

    name: str  # of the member
    text: list[list[Token]]  # its documents; hidden tokens have a span
    stacks: list[StackView]
    attentions: list[AttentionPattern]
    pools: list[Pool]
    with_loss: int  # slots with a loss


def example(subject: ShownObjective, view: ModelView, reader: Reader, row: int = 0) -> Example:
    """Returns the example of one row."""
    length = int(np.sum(view.segments[row] > 0))
    hidden, left_out = (
        marks[row, :length] for marks in (hidden_tokens(view), left_out_tokens(view))
    )
    spans = _span_numbers(view, reader.ids, row, hidden)
    labelled = _raw_slots(view, "labels")[row]
    describe = _Describer(view, reader, row, spans, labelled)
    raw = describe(view.tokens[row, :length], np.arange(length), of_text=True)
    raw = [token._replace(kind="left out") if out else token for token, out in zip(raw, left_out)]
    segments = view.segments[row, :length]
    documents = [
        [token for token, s in zip(raw, segments) if s == number]
        for number in range(1, segments.max(initial=0) + 1)
    ]
    names = [name for name in (*STACKS, NOISED) if f"{name}_input_tokens" in view.batch]
    stacks = [_stack(view, describe, row, name) for name in names]
    attentions = _attentions(view, row)
    pools = _pools(view, row, subject.build(subject.ids))
    with_loss = int(view.gives_loss[row].sum())
    return Example(subject.name, documents, stacks, attentions, pools, with_loss)


# --- hidden and predicted tokens, exactly, for any objective -------------------------------------


def hidden_tokens(view: ModelView) -> np.ndarray:
    """Returns bool[rows, L]: tokens predicted in place, or predicted and not among the inputs.

    Without inputs (causal language modelling) nothing is hidden; everything is predicted.
    """
    labelled = _is_text(view) & _marked(view, _raw_slots(view, "labels"))
    return labelled | (_absent(view) & predicted_tokens(view))


def hides(view: ModelView, row: int, asked: np.ndarray) -> bool:
    """Returns whether exactly these tokens bool[L] of a row's are hidden.

    Without inputs, as in fill-in-the-middle: whether they are predicted after all others, several
    runs each after a special token; with stand-ins, whether later slots are given these in place of
    them.
    """
    wanted = asked & _is_text(view)[row]
    if "inputs" in view.features:
        return bool((hidden_tokens(view)[row] == wanted).all())
    slots = _raw_slots(view, "targets")
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


def left_out_tokens(view: ModelView) -> np.ndarray:
    """Returns bool[rows, L]: tokens neither given nor predicted, as after A if B is not its own."""
    return _absent(view) & ~predicted_tokens(view)


def _absent(view: ModelView) -> np.ndarray:
    if "inputs" not in view.features:
        return np.zeros(view.tokens.shape, bool)
    return _is_text(view) & ~_marked(view, _copied_slots(view, "inputs"))


def predicted_tokens(view: ModelView) -> np.ndarray:
    """Returns bool[rows, L]: text tokens that are targets or labels with a loss weight."""
    both = _marked(view, _raw_slots(view, "targets")) | _marked(view, _raw_slots(view, "labels"))
    return _is_text(view) & both


def _is_text(view: ModelView) -> np.ndarray:
    first, last = view.ids.text
    return (view.segments > 0) & (view.tokens >= first) & (view.tokens < last)


def _raw_slots(view: ModelView, stream: str) -> np.ndarray:
    """Returns i32[rows, n]: the raw slots of targets or labels with a loss weight; else -1."""
    if stream not in view.features:
        return np.full((len(view.tokens), 1), -1)
    _, slots = view.read(view.features[stream])
    return np.where(view.features[f"{stream}_weights"] > 0, slots, -1)


def _copied_slots(view: ModelView, stream: str) -> np.ndarray:
    """Returns i32[rows, n]: the raw slots of a stream's tokens; -1: special, or not copied."""
    tokens, slots = view.read(view.features[stream])
    own = (slots >= 0) & (slots < view.length)
    row = np.arange(len(view.tokens))[:, None]
    is_copy = own & (view.tokens[row, np.where(own, slots, 0)] == tokens)
    return np.where(is_copy, slots, -1)


def _marked(view: ModelView, slots) -> np.ndarray:
    """Returns bool[rows, L], true at these raw slots."""
    inside = (slots >= 0) & (slots < view.length)
    marks = np.zeros((len(view.tokens), view.length + 1), bool)
    np.put_along_axis(marks, np.where(inside, slots, view.length), True, axis=1)
    return marks[:, : view.length]


def _span_numbers(view: ModelView, ids: TokenIds, row: int, hidden) -> np.ndarray:
    """Returns i32[L]: the number of each token's hidden span, which is its sentinel's if any."""
    numbers = np.full(hidden.size, NO_SPAN)
    segments = view.segments[row, : hidden.size]
    starts = hidden & ~(np.roll(hidden, 1) & (np.roll(segments, 1) == segments))
    if hidden.size and hidden[0]:
        starts[0] = True
    numbers[hidden] = np.cumsum(starts)[hidden] - 1
    if "targets" in view.features and "inputs" in view.features:
        tokens, slots = view.read(view.features["targets"][row], row)
        sentinel = {i: k for k, i in enumerate(ids.sentinels)}
        current = NO_SPAN
        for token, slot in zip(tokens, slots):
            current = sentinel.get(int(token), current if slot >= 0 else NO_SPAN)
            if current != NO_SPAN and 0 <= slot < hidden.size and hidden[slot]:
                numbers[slot] = current
    return numbers


# --- tokens ---------------------------------------------------------------------------------------


class _Describer:
    """Makes the `Token`s of one row."""

    def __init__(self, view: ModelView, reader: Reader, row: int, spans, labelled):
        self.view = view
        self.reader = reader
        self.row = row
        self.spans = spans
        self.labelled = set(labelled[labelled >= 0].tolist())
        ids = reader.ids
        self.special: dict[int | None, str] = {ids.pad: "pad", ids.eos: "end", ids.mask: "mask"}
        self.special |= {ids.cls: "cls", ids.sep: "sep"} | dict.fromkeys(ids.fim, "mark")
        self.special |= {mode: "mode" for _, mode in ids.modes}
        self.sentinel = {i: k for k, i in enumerate(ids.sentinels)}

    def traced(self, traced, of_text: bool = False) -> list[Token]:
        return self(*self.view.read(traced, self.row), of_text)

    def __call__(self, tokens, slots, of_text: bool = False) -> list[Token]:
        texts = surfaces(self.reader, tokens)
        described = [
            self._token(int(token), int(slot), text, of_text)
            for token, slot, text in zip(tokens, slots, texts)
        ]
        return _apart(described) if self.reader.words else described

    def _token(self, token: int, slot: int, text: str, of_text: bool) -> Token:
        if token in self.sentinel:
            number = self.sentinel[token]
            return Token(f"⟨{number}⟩", "sentinel", number, token)
        if token in self.special:
            return Token(self.reader.names.get(token, text), self.special[token], NO_SPAN, token)
        if slot < 0:  # it is not copied from the row: text is a random token then
            first, last = self.reader.ids.text
            kind = "replaced" if first <= token < last else "text"
            return Token(text, kind, NO_SPAN, token)
        if slot >= self.view.length:
            return Token(text, "other", NO_SPAN, token)
        span = int(self.spans[slot]) if slot < self.spans.size else NO_SPAN
        kind = "kept" if slot in self.labelled and not of_text else "text"
        return Token(text, kind, span, token, slot)


def _apart(words: Sequence[Token]) -> list[Token]:
    """Returns words with a space before each but the first, and those that close a phrase."""
    bare = [word._replace(text=word.text.strip()) for word in words]
    rest = [word if word.text in CLOSING else word._replace(before=" ") for word in bare[1:]]
    return bare[:1] + rest


def surfaces(reader: Reader, tokens) -> list[str]:
    """Returns the text of each token; a character in several tokens is the first one's text.

    A token with part of a character whose other parts do not follow has the text �.
    """
    tokens = [int(t) for t in tokens]
    texts: list[str] = []
    while len(texts) < len(tokens):
        token, *after = tokens[len(texts) : len(texts) + 4]
        if token in reader.names or "\ufffd" not in reader.decode([token]):
            texts.append(reader.names.get(token) or reader.surface(token))
            continue
        # A part of a character: as many tokens as make it whole, or this one alone.
        parts = [token, *itertools.takewhile(lambda t: t not in reader.names, after)]
        counts = range(2, len(parts) + 1)
        whole = next((k for k in counts if "\ufffd" not in reader.decode(parts[:k])), 1)
        texts += [reader.decode(parts[:whole]), *[""] * (whole - 1)]
    return texts


# --- stacks ---------------------------------------------------------------------------------------


def _stack(view: ModelView, describe: _Describer, row: int, name: str) -> StackView:
    batch = {column: x[row] for column, x in view.batch.items()}
    segments = batch[f"{name}_segment_ids"]
    live = np.flatnonzero(segments > 0)
    used = int(live[-1]) + 1 if live.size else 0
    given = describe.traced(batch[f"{name}_input_tokens"][:used])
    # A text's first input, bos, may be the padding id.
    given = [t._replace(text="▷", kind="start") if t.kind == "pad" else t for t in given]
    # Copies, beside the decoder's tokens or in the decoder, are predicted, and not the originals.
    copies = NOISED if f"{NOISED}_input_tokens" in batch else "decoder"
    copied = f"{NOISED}_rates" in batch
    if copied and name != copies:
        given = [t._replace(kind="text") if t.kind == "kept" else t for t in given]
    predicted: dict[int, Token] = {}
    further: dict[str, dict[int, Token]] = {}
    weights = np.zeros(0, int)
    predicting = "decoder" if name == NOISED else name
    if name == copies or not copied:
        weights = batch.get(f"{predicting}_loss_weights", weights)
    if weights.size:
        target_slots = batch.get(f"{predicting}_target_slots", np.arange(weights.size))
        at_slots = functools.partial(_at_slots, describe, target_slots)
        predicted = at_slots(batch[f"{predicting}_target_tokens"], weights)
        further = {term: at_slots(ids[row], w[row]) for term, (ids, w) in view.further.items()}
    slots = [
        Slot(token, predicted.get(slot), tuple(at.get(slot) for at in further.values()))
        for slot, token in enumerate(given)
    ]
    tracks = {"segments": segments[:used], "positions": batch[f"{name}_positions"][:used]}
    for column, title in (("block_positions", "block positions"), ("types", "token types")):
        if f"{name}_{column}" in batch:
            tracks[title] = batch[f"{name}_{column}"][:used]
    if copied and name == copies and batch[f"{NOISED}_rates"].any():
        tracks["masked, in %"] = np.round(batch[f"{NOISED}_rates"][:used] / 2**24 * 100)
    if weights.size:
        tracks["loss weights"] = np.zeros(used, int)
        np.add.at(tracks["loss weights"], target_slots[weights > 0], weights[weights > 0])
    targets = int(np.sum(weights > 0))
    return StackView(name, slots, segments.size, tracks, targets, tuple(further))


def _at_slots(describe: _Describer, slots, traced, weights) -> dict[int, Token]:
    """Returns the tokens that have a loss weight, by the slots that predict them.

    Several of one slot, as of `insertion_lm`, are one after another in its token's text.
    """
    found: dict[int, Token] = {}
    for i, token in enumerate(describe.traced(traced, of_text=True)):
        slot = int(slots[i])
        if weights[i] > 0 and slot in found:
            token = found[slot]._replace(text=found[slot].text + token.before + token.text)
        if weights[i] > 0:
            found[slot] = token
    return found


def _attentions(view: ModelView, row: int) -> list[AttentionPattern]:
    patterns = []
    for name, query, key, column in (
        ("encoder", "encoder", "encoder", "encoder_key_intervals"),
        ("cross", "decoder", "encoder", "cross_key_intervals"),
        ("decoder", "decoder", "decoder", "decoder_key_intervals"),
        ("noised", NOISED, NOISED, "noised_key_intervals"),
        ("clean", NOISED, "decoder", "noised_clean_intervals"),
    ):
        if column in view.batch:
            segments = view.batch[f"{query}_segment_ids"][row]
            queries = int(np.sum(segments > 0))
            keys = int(np.sum(view.batch[f"{key}_segment_ids"][row] > 0))
            intervals = view.batch[column][row][:, :queries]
            patterns.append(AttentionPattern(name, intervals, keys, segments[:queries]))
    return patterns


def _pools(view: ModelView, row: int, objective: Objective) -> list[Pool]:
    # Those of an objective without inputs count its segments alone.
    if "pools_slots" not in view.batch or "inputs" not in view.features:
        return []
    names = next((form.classes for form in objective.facts.prompt_forms if form.classes), ())
    classes = any(
        n is not None for n in objective.facts.heads.values()
    )  # some head tells them apart

    def words(label: int) -> str:
        return f"class {label}" + (f", {names[label]}" if label < len(names) else "")

    columns = (view.batch[f"pools_{name}"][row].tolist() for name in ("slots", "labels", "weights"))
    return [
        Pool(slot, words(label) if classes else None, weight > 0)
        for slot, label, weight in zip(*columns)
    ]
