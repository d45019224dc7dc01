"""Describes the tokens of a row: their kinds, slots and predictions."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..objectives import Objective, TokenIds
from .hidden import hidden_tokens, left_out_tokens, weighted_slots
from .picture import NO_SPAN, AttentionPattern, Example, Slot, StackView, Token, counted
from .rows import STACKS, ModelView, ShownObjective
from .tracing import read

NOISED = "noised"  # noised copies of a decoder's tokens, displayed as a stack
CLOSING = frozenset(".,;:!?)]}")  # words without a space before them
POOLED = "slots whose hidden state represents a text or a pair of texts"
# (name, title, stack of the queries, stack of the keys, column of the batch) of attention patterns
PATTERNS = (
    ("encoder", "encoder attends to itself", "encoder", "encoder", "encoder_key_intervals"),
    ("cross", "decoder attends to encoder", "decoder", "encoder", "cross_key_intervals"),
    ("decoder", "decoder attends to itself", "decoder", "decoder", "decoder_key_intervals"),
    ("noised", "noised copies attend to copies", NOISED, NOISED, "noised_key_intervals"),
    ("clean", "noised copies attend to decoder", NOISED, "decoder", "noised_clean_intervals"),
)


class Reader(NamedTuple):
    """Converts token ids to text."""

    ids: TokenIds
    names: dict[int, str]  # names of special ids
    decode: Callable[[Sequence[int]], str]  # text ids -> their text
    surface: Callable[[int], str]  # id -> its text, with the space before a word
    # text -> its words, if each word is a token. Words are shown with a space between them.
    words: Callable[[str], list[str]] | None = None


def example(member: ShownObjective, view: ModelView, reader: Reader, row: int = 0) -> Example:
    """Returns the example of one row."""
    segments = view.segments[row]
    segments = segments[segments > 0]
    hidden = hidden_tokens(view)[row, : segments.size]
    left_out = left_out_tokens(view)[row, : segments.size]
    labeled = weighted_slots(view, "labels")[row]
    describe = _Describer(
        reader, view.length, _span_numbers(view, row, hidden), set(labeled[labeled >= 0].tolist())
    )
    raw = describe(view.tokens[row, : segments.size], np.arange(segments.size), is_raw=True)
    raw = [replace(token, kind="left out") if out else token for token, out in zip(raw, left_out)]
    documents = [
        [token for token, s in zip(raw, segments) if s == number]
        for number in range(1, segments.max(initial=0) + 1)
    ]
    names = [name for name in (*STACKS, NOISED) if f"{name}_input_tokens" in view.batch]
    return Example(
        title=member.name,
        caption=_text_caption(documents),
        text=documents,
        stacks=[_stack(view, describe, row, name) for name in names],
        attentions=_attentions(view, row),
        pools=_pools(view, row, member.objective),
        with_loss=int(view.gives_loss[row].sum()),
        call=member.call,
    )


def _text_caption(documents: Sequence[Sequence[Token]]) -> str:
    """Returns for example "258 tokens in 2 documents; 39 hidden; 20 left out"."""
    tokens = list(itertools.chain.from_iterable(documents))
    hidden = sum(token.span != NO_SPAN for token in tokens)
    left_out = sum(token.kind == "left out" for token in tokens)
    words = counted(len(tokens), "token")
    if len(documents) > 1:
        words += f" in {len(documents)} documents"
    words += f"; {hidden} hidden" if hidden else ""
    return words + (f"; {left_out} left out" if left_out else "")


def _span_numbers(view: ModelView, row: int, hidden: np.ndarray) -> np.ndarray:
    """Returns i32[L] numbers of the tokens' hidden spans; a sentinel has the number of its span."""
    numbers = np.full(hidden.size, NO_SPAN)
    segments = view.segments[row, : hidden.size]
    starts = hidden & ~(np.roll(hidden, 1) & (np.roll(segments, 1) == segments))
    starts[:1] = hidden[:1]
    numbers[hidden] = np.cumsum(starts)[hidden] - 1
    if "targets" in view.features and "inputs" in view.features:
        sentinel = {i: k for k, i in enumerate(view.ids.sentinels)}
        current = NO_SPAN
        for token, slot in zip(*read(view.features["targets"][row])):
            current = sentinel.get(int(token), current if slot >= 0 else NO_SPAN)
            if current != NO_SPAN and 0 <= slot < hidden.size and hidden[slot]:
                numbers[slot] = current
    return numbers


# --- tokens ---------------------------------------------------------------------------------------


class _Describer:
    """Makes the `Token`s of one row."""

    def __init__(self, reader: Reader, length: int, spans: np.ndarray, labeled: set[int]):
        self.reader = reader
        self.length = length
        self.spans = spans
        self.labeled = labeled
        ids = reader.ids
        self.special: dict[int | None, str] = {ids.pad: "pad", ids.eos: "end", ids.mask: "mask"}
        self.special |= {ids.cls: "cls", ids.sep: "sep"} | dict.fromkeys(ids.fim, "mark")
        self.special |= {mode: "mode" for _, mode in ids.modes}
        self.sentinel = {i: k for k, i in enumerate(ids.sentinels)}

    def __call__(self, tokens, slots, is_raw: bool = False) -> list[Token]:
        texts = surfaces(self.reader, tokens)
        described = [
            self._token(int(token), int(slot), text, is_raw)
            for token, slot, text in zip(tokens, slots, texts)
        ]
        return _spaced(described) if self.reader.words else described

    def _token(self, token: int, slot: int, text: str, is_raw: bool) -> Token:
        if token in self.sentinel:
            number = self.sentinel[token]
            return Token(f"⟨{number}⟩", "sentinel", span=number, id=token)
        if token in self.special:
            return Token(self.reader.names.get(token, text), self.special[token], id=token)
        if slot < 0:  # not copied from the row: a text id is then a random token
            first, last = self.reader.ids.text
            return Token(text, "replaced" if first <= token < last else "text", id=token)
        if slot >= self.length:
            return Token(text, "other", id=token)
        span = int(self.spans[slot]) if slot < self.spans.size else NO_SPAN
        kind = "kept" if slot in self.labeled and not is_raw else "text"
        return Token(text, kind, span=span, id=token, slot=slot)


def _spaced(words: Sequence[Token]) -> list[Token]:
    """Returns words with a space before them, except the first word and closing punctuation."""
    bare = [replace(word, text=word.text.strip()) for word in words]
    return bare[:1] + [x if x.text in CLOSING else replace(x, before=" ") for x in bare[1:]]


def surfaces(reader: Reader, tokens) -> list[str]:
    """Returns the text of each token.

    If a character takes several tokens, it is the text of the first of them. A token with an
    incomplete character has the text �.
    """
    tokens = [int(t) for t in tokens]
    texts: list[str] = []
    while len(texts) < len(tokens):
        token, *after = tokens[len(texts) : len(texts) + 4]
        if token in reader.names or "\ufffd" not in reader.decode([token]):
            texts.append(reader.names.get(token) or reader.surface(token))
            continue
        # part of a character: take the tokens that complete it, or only this token
        parts = [token, *itertools.takewhile(lambda t: t not in reader.names, after)]
        counts = range(2, len(parts) + 1)
        whole = next((k for k in counts if "\ufffd" not in reader.decode(parts[:k])), 1)
        texts += [reader.decode(parts[:whole]), *[""] * (whole - 1)]
    return texts


# --- stacks ---------------------------------------------------------------------------------------


def _stack(view: ModelView, describe: _Describer, row: int, name: str) -> StackView:
    batch = {column: x[row] for column, x in view.batch.items()}
    segments = batch[f"{name}_segment_ids"]
    used = _used(segments)
    given = _given(batch, describe, name, used)
    tracks = _tracks(batch, name)
    # If there are noised copies, in the decoder or next to its tokens, the copies are predicted and
    # the originals are not.
    copies = NOISED if f"{NOISED}_input_tokens" in batch else "decoder"
    has_copies = f"{NOISED}_rates" in batch
    is_original = has_copies and name != copies
    if is_original:
        given = [replace(t, kind="text") if t.kind == "kept" else t for t in given]
    elif has_copies and batch[f"{NOISED}_rates"].any():
        tracks["masked, in %"] = np.round(batch[f"{NOISED}_rates"] / 2**24 * 100)
    predicting = "decoder" if name == NOISED else name
    weights = batch.get(f"{predicting}_loss_weights", np.zeros(0, int))
    predicted: dict[int, Token] = {}
    further: dict[str, dict[int, Token]] = {}
    targets = 0
    if weights.size and not is_original:
        target_slots = batch.get(f"{predicting}_target_slots", np.arange(weights.size))
        weights = np.where(segments[target_slots] > 0, weights, 0)
        predicted = _predicted(batch, describe, predicting, target_slots, weights)
        further = {
            term: _at_slots(describe, target_slots, ids[row], term_weights[row])
            for term, (ids, term_weights) in view.further.items()
        }
        counts = weights > 0
        targets = int(np.sum(counts))
        tracks["loss weights"] = np.bincount(target_slots[counts], weights[counts], minlength=used)
    slots = [
        Slot(token, predicted.get(slot), tuple(at.get(slot) for at in further.values()))
        for slot, token in enumerate(given)
    ]
    return StackView(
        name=name,
        caption=_slots_caption(used, segments.size, targets, tuple(further)),
        slots=slots,
        tracks={title: x[:used].astype(int).tolist() for title, x in tracks.items()},
        targets=targets,
        further=tuple(further),
    )


def _given(batch: dict, describe: _Describer, name: str, used: int) -> list[Token]:
    """Returns the input tokens of a stack. A slot without a noised copy is shown as padding."""
    given = describe(*read(batch[f"{name}_input_tokens"][:used]))
    # The first input of a text is bos, which may be the padding id.
    given = [replace(t, text="▷", kind="start") if t.kind == "pad" else t for t in given]
    if f"{name}_bag_tokens" in batch:
        bags = [describe(*read(ids)) for ids in batch[f"{name}_bag_tokens"][:, :used]]
        given = _with_bags(given, bags, batch[f"{name}_bag_sizes"])
    if f"{name}_noise_levels" in batch:
        levels = batch[f"{name}_noise_levels"]
        given = [replace(t, kind="noised") if level else t for t, level in zip(given, levels)]
    segments = batch[f"{name}_segment_ids"]
    return [t if segment else Token("", "pad") for t, segment in zip(given, segments)]


def _tracks(batch: dict, name: str) -> dict[str, np.ndarray]:
    columns = {
        "segments": f"{name}_segment_ids",
        "positions": f"{name}_positions",
        "block positions": f"{name}_block_positions",
        "token types": f"{name}_types",
    }
    tracks = {title: batch[column] for title, column in columns.items() if column in batch}
    if f"{name}_noise_levels" in batch:
        tracks["noise level, in %"] = np.round(batch[f"{name}_noise_levels"] / 2**24 * 100)
    return tracks


def _predicted(
    batch: dict, describe: _Describer, name: str, slots: np.ndarray, weights: np.ndarray
) -> dict[int, Token]:
    """Returns {slot: token that it predicts} of a stack, with all tokens of a target's bag."""
    predicted = _at_slots(describe, slots, batch[f"{name}_target_tokens"], weights)
    if f"{name}_target_bag_tokens" in batch:
        bags = [describe(*read(x), is_raw=True) for x in batch[f"{name}_target_bag_tokens"]]
        sizes = batch[f"{name}_target_bag_sizes"]
        predicted = dict(zip(predicted, _with_bags([*predicted.values()], bags, sizes)))
    return predicted


def _with_bags(
    first: Sequence[Token], further: Sequence[Sequence[Token]], sizes: np.ndarray
) -> list[Token]:
    """Returns one token for each slot, with the texts of all tokens of its bag.

    Args:
      first: the first token of each bag.
      further: the second tokens of all slots, the third tokens, ….
      sizes: i32[slots] number of tokens of each bag.
    """
    joined = []
    for slot, token in enumerate(first):
        others = [tokens[slot] for tokens in further[: max(int(sizes[slot]) - 1, 0)]]
        text = token.text + "".join(other.before + other.text for other in others)
        joined.append(replace(token, text=text))
    return joined


def _used(segments: np.ndarray) -> int:
    """Returns the number of slots up to the last one in use."""
    live = np.flatnonzero(segments > 0)
    return int(live[-1]) + 1 if live.size else 0


def _slots_caption(used: int, size: int, targets: int, further: Sequence[str]) -> str:
    """Returns the caption of a stack.

    An example is "233 slots and 23 of padding; 39 targets, below the slots that predict them".
    """
    words = counted(used, "slot")
    if size > used:
        words += f" and {size - used} of padding"
    if targets:
        below = "slot that predicts it" if targets == 1 else "slots that predict them"
        words += f"; {counted(targets, 'target')}, below the {below}"
    if further:
        words += f"; below them those of {', '.join(further)}"
    return words


def _at_slots(describe: _Describer, slots, traced, weights) -> dict[int, Token]:
    """Returns {slot: token that it predicts} for the tokens with a loss weight.

    If a slot predicts several tokens, as in `insertion_lm`, their texts are joined into one token.
    """
    predicted: dict[int, Token] = {}
    for slot, token, weight in zip(slots, describe(*read(traced), is_raw=True), weights):
        if weight > 0 and (first := predicted.get(int(slot))):
            token = replace(first, text=first.text + token.before + token.text)
        if weight > 0:
            predicted[int(slot)] = token
    return predicted


def _attentions(view: ModelView, row: int) -> list[AttentionPattern]:
    patterns = []
    for name, title, query, key, column in PATTERNS:
        if column in view.batch:
            segments = view.batch[f"{query}_segment_ids"][row]
            queries = _used(segments)
            keys = _used(view.batch[f"{key}_segment_ids"][row])
            intervals = np.where(segments > 0, view.batch[column][row], 0)
            starts, ends = intervals[:, :queries].tolist()
            patterns.append(
                AttentionPattern(name, title, keys, starts, ends, segments[:queries].tolist())
            )
    return patterns


def _pools(view: ModelView, row: int, objective: Objective) -> list[str]:
    """Returns for example "slot 4: class 1, swapped" for each pooled slot."""
    # Without inputs, pools only count segments.
    if "pools_slots" not in view.batch or "inputs" not in view.features:
        return []
    names = next((form.classes for form in objective.facts.prompt_forms if form.classes), ())
    predicts_classes = any(size is not None for size in objective.facts.heads.values())
    pools = []
    columns = (view.batch[f"pools_{name}"][row].tolist() for name in ("slots", "labels", "weights"))
    for slot, label, weight in zip(*columns):
        words = f"slot {slot}"
        if predicts_classes:
            words += f": class {label}" + (f", {names[label]}" if label < len(names) else "")
        pools.append(words if weight > 0 else "one without a loss")
    return pools
