"""The contract: the data that objectives take and return, and the functions they consist of.

Axis letters used in this package:

    B  rows of a batch            L  raw tokens of a row        D  documents packed in a row
    S  sentinels (noise spans)    I  slots of `inputs`          T  slots of `targets`
    Q  queries of an attention    K  labels, predicted in place  V  vocabulary
    P  pools (one hidden state for a document, a pair or a view)
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

Array = Any  # a NumPy or JAX array

VOCABULARY: Mapping[str, int | None] = MappingProxyType({"vocabulary": None})  # the usual head


def _static(**settings):
    """A field that is static under `jax.jit`."""
    return dataclasses.field(metadata={"static": True}, **settings)


class TokenIds(NamedTuple):
    """The token ids that an objective reads and writes; `tasks.vocabularies` provides them.

        TokenIds(size=32128, text=(3, 32000), sentinels=tuple(range(32099, 31999, -1)))

    `None` and `()` mean that the vocabulary has no such token. Every `TokenIds` passes
    `check_token_ids`, so that no special id can be mistaken for text.
    """

    size: int  # ids are 0 … size-1
    text: tuple[int, int]  # [first, last): text ids, which corruption may hide or replace
    pad: int = 0
    eos: int = 1
    bos: int = 0  # the decoder's first input (T5: the padding id)
    mask: int | None = None
    cls: int | None = None
    sep: int | None = None
    sentinels: tuple[int, ...] = ()  # in order of use: T5's <extra_id_0>, <extra_id_1>, …
    modes: tuple[tuple[str, int], ...] = ()  # UL2's mode tokens by name: (("R", 32100), …)
    fim: tuple[int, ...] = ()  # fill-in-the-middle: prefix, suffix, middle
    # Bit i: a word begins with id i, or a sentence ends with it (`bitmap`).
    word_starts: bytes = b""
    sentence_ends: bytes = b""

    def mode(self, name: str) -> int:
        """Returns the id of the mode token `name`; raises ValueError when the vocabulary has none."""
        known = dict(self.modes)
        if name not in known:
            raise ValueError(
                f"The objective asks for the mode token {name!r}, the vocabulary has "
                f"{sorted(known) or 'none'}: add it to the vocabulary's special tokens, "
                "or set the objective's mode to None."
            )
        return known[name]

    def mode_tokens(self, name: str | None) -> tuple[int, ...]:
        """Returns the ids that a text begins with in this mode; () for None. Raises as `mode`."""
        return () if name is None else (self.mode(name),)

    def special(self, name: str) -> int:
        """Returns the id of "mask", "cls" or "sep"; raises ValueError when the vocabulary has none."""
        found = getattr(self, name)
        if found is None:
            raise ValueError(
                f"The objective asks for the special token {name!r}, the vocabulary has none: "
                f"add {name!r} to the vocabulary's specials."
            )
        return found

    def flags(self, name: str) -> np.ndarray:
        """Returns bool[size] of "word_starts" or "sentence_ends"; raises ValueError when unknown."""
        packed = getattr(self, name)
        if not packed:
            raise ValueError(
                f"The objective asks for the {name} of the vocabulary, which has none: "
                "make it with `tasks.special_tokens.token_ids`, or leave the setting out."
            )
        return np.unpackbits(np.frombuffer(packed, np.uint8), count=self.size).astype(bool)


def bitmap(flags) -> bytes:
    """Returns bool[size] packed into bytes, as `TokenIds` holds it."""
    return np.packbits(np.asarray(flags, bool)).tobytes()


def specimen_ids(size: int) -> TokenIds:
    """Returns a vocabulary with everything that an objective may ask for, to check or to plan with.

    Its first 60% of ids are text, of which every second begins a word, and every eighth ends a sentence.

    Raises ValueError for fewer than 50 ids, which leave too few for text or sentinels.
    """
    if size < 50:
        raise ValueError(f"Got a vocabulary of {size} ids, expected 50 or more.")
    every, text = np.arange(size), size * 6 // 10
    return check_token_ids(
        TokenIds(
            size=size,
            text=(2, text),
            mask=text,
            cls=text + 1,
            sep=text + 2,
            modes=(("R", text + 3), ("S", text + 4), ("X", text + 5)),
            fim=(text + 6, text + 7, text + 8),
            sentinels=tuple(range(size - 1, text + 8, -1)),
            word_starts=bitmap(every % 2 == 0),
            sentence_ends=bitmap(every % 8 == 0),
        )
    )


def check_token_ids(ids: TokenIds) -> TokenIds:
    """Returns `ids` if its special ids are distinct, in range and no text; else raises ValueError.

    Start, end, separator and padding may share an id, as in published vocabularies: RoBERTa's </s>
    ends a text and separates two, and GPT-2 has a single id for start, end and padding.
    """
    if isinstance(ids.modes, Mapping):
        raise ValueError(
            f"Got the modes {dict(ids.modes)}, expected pairs: give {tuple(ids.modes.items())}."
        )
    first, last = ids.text
    if not 0 <= first < last <= ids.size:
        raise ValueError(
            f"Text ids must be a non-empty range inside 0…{ids.size}, got [{first}, {last})."
        )
    named = {"pad": ids.pad, "eos": ids.eos, "mask": ids.mask, "cls": ids.cls, "sep": ids.sep}
    named["bos"] = ids.bos
    marks = set(named) - {"mask"}
    named |= {f"sentinel {i}": x for i, x in enumerate(ids.sentinels)}
    named |= {f"mode {name}": x for name, x in ids.modes}
    named |= {f"fim {i}": x for i, x in enumerate(ids.fim)}
    owner: dict[int, str] = {}
    for name, x in named.items():
        if x is None:
            continue
        if not 0 <= x < ids.size:
            raise ValueError(
                f"The {name} id is {x}, but ids must be in 0…{ids.size - 1}: "
                "make the vocabulary larger or choose another id."
            )
        if first <= x < last:
            raise ValueError(
                f"The {name} id is {x}, inside the text range [{first}, {last}): "
                "text could not be told from it."
            )
        if x in owner and not {owner[x], name} <= marks:
            raise ValueError(
                f"The {owner[x]} id and the {name} id are both {x}: give each its own."
            )
        owner.setdefault(x, name)
    for name in ("word_starts", "sentence_ends"):
        got, expected = len(getattr(ids, name)), (ids.size + 7) // 8
        if got not in (0, expected):
            raise ValueError(
                f"{name} must be {expected} bytes for {ids.size} ids, got {got}: make it with "
                "`objectives.bitmap`."
            )
    return ids


NO_LABEL = -(2**31)  # of a token that is not labelled
COUNTED = 0  # in place of a number of classes: as many as the corpus of a run names


class Row(NamedTuple):
    """A raw row, as the host ships it.

    `parts` and `labels` are given to objectives that require them (`Objective.rows`), and None for
    all others.
    """

    tokens: Array  # i32[L] text ids, padding at the end
    # i32[L] segment ids: document 1, 2, … of each token; 0 is padding; the only source of lengths
    segments: Array
    member: Array  # i32[] index of the mixture's member that this row was cut for
    # i32[L] the part of its document that each token is in: 0 a text, a first side or a user's
    # turn; 1 its answer, the second side, the first answer; 2 the next turn, …
    parts: Array = None
    # i32[L] the class of a document at each of its tokens, or a number in thousandths; the class
    # of each token; or NO_LABEL
    labels: Array = None


# The rows that an objective may require, from the least to the most demanding;
# `training.packing.POLICIES` maps them to packing policies.
ROWS = {
    "stream": "text that may run on over the ends of documents",
    "documents": "documents, or stretches of them, kept apart",
    "document": "one document, or a stretch of one, in a row",
    "parts": "whole documents of several parts, such as a text and its answer",
    "labels": "whole documents with labels",
}


class Projection(Protocol):
    """A head over classes in parts, from which a loss forms logits a few at a time.

    The logits are `finish(states @ kernel)`, with the product in float32.
    """

    @property
    def states(self) -> Array:
        """f[..., E]"""

    @property
    def kernel(self) -> Array:
        """f[E, V], in the dtype of the states"""

    @property
    def finish(self) -> Callable:
        """f32[..., V] -> f32[..., V]: a bias, a scale, a softcap"""

    @property
    def row_shards(self) -> int:
        """Shards in which a mesh has the rows, the first axis of the states; 1 on one device"""


class Outputs(Protocol):
    """The outputs of a model, as losses take them: `models.Outputs` is one."""

    @property
    def hidden(self) -> dict[str, Array]:
        """Hidden states by name: "top" f[B, T, d], "ahead" f[n, B, T, d], …"""

    def head(self, name: str, hidden: Array) -> Array:
        """Projects hidden states: "vocabulary" gives f32[..., V], "pair" f32[..., 2], …"""

    # Outputs may also have `projection(name, hidden) -> Projection | None`, `head` in parts, and
    # `z_loss: float`, the weight of the squared log-partition in the loss.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels that a term scores, from which its baseline follows.

    The baseline of a loss predicts classes by their frequencies among the training targets, and
    numbers by their mean; that of a metric, which counts hits, always names the most frequent class.
    """

    values: Array  # i32[B, N] classes, or f32[B, N] numbers
    weights: Array  # f32[B, N] weight of each in the term's sums; 0: does not count
    head: str = _static()  # of `Objective.heads`, which has the number of classes
    # The model produces them (ELECTRA's generator): the baseline uses their own frequencies.
    from_outputs: bool = _static(default=False)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Term:
    """One term of a loss, or a metric, kept as sums so that accumulation and sharding change nothing.

    The total is the sum over terms of `scale * (sums + z_losses).sum() / weights.sum()`.

    A term's baseline is that of its labels; without labels it is the term for constant outputs
    (hidden states of 0, heads that give 1).
    """

    sums: Array  # f32[B] summed loss of each row
    weights: Array  # f32[B] what to divide by; a function of the batch alone, never of outputs
    # A number, or a function of the step (an optax schedule). None: a metric, which is logged but
    # not part of the loss.
    scale: Any = _static(default=1.0)
    labels: Labels | None = None
    # f32[B] what a run's z-loss adds to `sums` in the loss (`objectives.cross_entropy`); None: nothing.
    z_losses: Array | None = None


# What a model can be asked for (`inference.trained.MODES` describes each), and how.
MODES = (
    "continue",
    "complete",
    "infill",
    "middle",
    "restore",
    "respond",
    "mask",
    "unmask",
    "embed",
    "states",
    "pair",
    "classify",
    "tag",
)
BLANKS = ("together", "in turn", "masks")
POOLINGS = ("first", "mean", "last")


class PromptForm(NamedTuple):
    """How a text becomes a prompt for a model that an objective trained.

    The prompt is `before`, the text and `after`, with bidirectional attention unless `causal`. The
    answer begins with `ids.bos` and `start`. T5's span corruption, and GPT's language modelling:

        PromptForm("infill", after=(ids.eos,))
        PromptForm("continue", causal=True)
    """

    mode: str  # what the model does with it: one of `MODES`
    before: tuple[int, ...] = ()  # ids before the text, such as a mode token or [CLS]
    after: tuple[int, ...] = ()  # ids after it
    start: tuple[int, ...] = ()
    causal: bool = False  # the answer continues the text, with causal attention throughout
    # Of "infill": "together", one answer has every blank after its sentinel; "in turn", each blank
    # has a separate answer, after its sentinel; "masks", the same, where blanks are mask tokens.
    blanks: str = "together"
    shift: int = 0  # slots from a mask to the slot that predicts its token
    head: str | None = None  # None: the vocabulary projection; of "embed": no head
    # Of "embed", "pair" and "classify": what the loss read of a text, its "first" slot, the "mean" of
    # all or the "last"; None: each slot by itself, and "embed" takes the mean.
    pooling: str | None = None
    independent: bool = False  # of "classify": each class has a probability of its own
    classes: tuple[str, ...] = ()  # names of the head's classes, where the objective has them


class Lengths(Protocol):
    """The slots that one document takes, from its number of tokens."""

    def __call__(self, n: int, /) -> dict[str, int]:
        """Returns the slots of each stream.

        Args:
          n: tokens of the document, 1 or more.

        Returns:
          {stream: slots, "sentinels": ids used}; the streams are in `objectives.features`. Python
          ints that never decrease in n. "both", where given, bounds inputs and targets together
          more tightly than the sum of the two.
        """


class Corrupt(Protocol):
    """From a raw row to features.

    One that is written for rows of one document is lifted to packed rows by `each_document`.
    """

    def __call__(
        self, key, row: Row, partner: Row, lengths: dict[str, int], max_documents: int, /
    ) -> dict[str, Array]:
        """Corrupts one row.

        Args:
          key: the row's own random key.
          row: the row.
          partner: another row of the batch, for objectives that need text of another document.
          lengths: slots of each stream, as planned for the whole row.
          max_documents: the most documents that the row may hold; a Python int, and so static.

        Returns:
          {column: i32[...]} of exactly these lengths; `objectives.features` names the columns.
          Documents stay apart: the features of one are its own segment.
        """


class Loss(Protocol):
    """The terms of the loss of a batch."""

    def __call__(self, outputs: Outputs, batch: dict[str, Array], /) -> dict[str, Term]:
        """Returns the terms of a batch.

        Args:
          outputs: of the model, for the batch.
          batch: the arranged features (`objectives.layouts`), each with a leading axis of rows.

        Returns:
          {name: term}.
        """


class Objective(NamedTuple):
    """A pre-training objective: pure functions and facts, built by the function of its name."""

    lengths: Lengths
    corrupt: Corrupt
    loss: Loss
    # The heads that the loss requires of the model: name -> number of classes. None: the ids of
    # the vocabulary, or no classes. `COUNTED` until a run's corpus is known.
    heads: Mapping[str, int | None] = VOCABULARY
    rows: str = "stream"  # the rows that it requires: one of `ROWS`
    closes_documents: bool = False  # it appends end-of-sequence itself
    prompt_forms: tuple[PromptForm, ...] = ()  # for models that it trained, the default first
    sentinels: int | None = None  # the number available, where `lengths` counts them
    members: tuple = ()  # Member(name, objective, rate), … of a mixture
    couples_rows: bool = False  # the loss is not a sum over rows
    needs_dropout: bool = False  # segments of one text differ by the model's dropout alone
    # Labels of rows are classes 0 … num_classes - 1, or NO_LABEL; None: any numbers; `COUNTED`.
    num_classes: int | None = None
    num_parts: int | None = None  # parts of a document that it reads; None: any number
    # The term that is the negative log-likelihood of the text itself, exactly: each of its tokens
    # once, given those before it. None: no term is, as where only hidden tokens are predicted.
    likelihood: str | None = None


Builder = Callable[[TokenIds], Objective]  # an objective before it has a vocabulary


class Member(NamedTuple):
    """One member of a mixture."""

    name: str
    objective: Objective
    rate: Any  # share of rows, relative to the others: a number, or a function of the step


def build(builder: Builder, ids: TokenIds) -> Objective:
    """Returns the builder's objective; raises ValueError for what is no builder."""
    if not callable(builder):
        raise ValueError(
            f"Got a {type(builder).__name__} for a builder, expected a function of TokenIds: "
            "span_corruption, and not span_corruption(ids); settings go in by functools.partial."
        )
    objective = builder(ids)
    if not isinstance(objective, Objective):
        raise ValueError(
            f"The builder returned a {type(objective).__name__}, expected an Objective."
        )
    return objective


def members_of(objective: Objective) -> tuple[Member, ...]:
    """Returns the members of a mixture; a plain objective is its own only member."""
    return objective.members or (Member("all", objective, 1.0),)


def joint_rows(kinds: Iterable[str]) -> str:
    """Returns the kind of rows that suits objectives of all these kinds: the most demanding one.

    >>> joint_rows(["stream", "document"])
    'document'

    Raises ValueError for "parts" and "labels" together, which no corpus provides.
    """
    kinds = set(kinds)
    unknown = kinds - ROWS.keys()
    if unknown:
        raise ValueError(f"rows must be one of {list(ROWS)}, got {sorted(unknown)}.")
    if {"parts", "labels"} <= kinds:
        raise ValueError(
            f"One objective asks for {ROWS['parts']}, another for {ROWS['labels']}: no corpus gives "
            "both, so train them in two runs."
        )
    return max(kinds, key=list(ROWS).index)


def joined_heads(objectives: Iterable[Objective]) -> dict[str, int | None]:
    """Returns the heads of several objectives together.

    Raises ValueError where two of them require different numbers of classes of one head.
    """
    heads: dict[str, int | None] = {}
    for objective in objectives:
        for name, classes in objective.heads.items():
            if heads.setdefault(name, classes) != classes:
                raise ValueError(
                    f"Two objectives share the head {name!r}, and one has {heads[name]} classes, the "
                    f"other {classes}: give them the same number."
                )
    return heads


def column_of(objective: Objective) -> str | None:
    """Returns the further column of rows that an objective reads: "parts", "labels" or None."""
    return objective.rows if objective.rows in ("parts", "labels") else None


def check_facts(objective: Objective) -> None:
    """Raises ValueError for rows or prompt forms that are none of those known."""
    joint_rows([objective.rows])
    for form in objective.prompt_forms:
        for name, known in (("mode", MODES), ("blanks", BLANKS), ("pooling", (*POOLINGS, None))):
            got = getattr(form, name)
            if got not in known:
                raise ValueError(f"PromptForm.{name} must be one of {known}, got {got!r}.")


def with_counted_classes(objective: Objective, count: int) -> Objective:
    """Returns the objective with `count` in place of `COUNTED`, and its members likewise.

    Args:
      count: the classes that the corpus names; 0: it names none.

    Raises ValueError where there are too few classes for an objective that has them counted.
    """
    if COUNTED not in objective.heads.values():
        return objective
    if count < 2:
        raise ValueError(
            f"The objective predicts one of the classes of the corpus, which names {count}, expected 2 "
            "or more: name them (seqio_corpora.seqio_pairs.classes), take a corpus that counts them "
            "(--gin_file=corpora/labelled_text.gin), or give the objective its num_classes."
        )
    heads = {name: count if size == COUNTED else size for name, size in objective.heads.items()}
    members = tuple(
        member._replace(objective=with_counted_classes(member.objective, count))
        for member in objective.members
    )
    known = count if objective.num_classes == COUNTED else objective.num_classes
    return objective._replace(heads=heads, members=members, num_classes=known)


def check_classes(labels: Array, num_classes: int) -> None:
    """Raises ValueError for labels that are neither a class nor NO_LABEL.

    Args:
      labels: a NumPy array of any shape.
      num_classes: classes are 0 … num_classes - 1.
    """
    wrong = labels[(labels != NO_LABEL) & ((labels < 0) | (labels >= num_classes))]
    if wrong.size:
        raise ValueError(
            f"Got the label {wrong[0]}, expected a class of 0 … {num_classes - 1}: count classes from "
            "0, or raise num_classes."
        )


def check_parts(parts: Array, num_parts: int) -> None:
    """Raises ValueError for parts of a document, i32[n] in NumPy, beyond the first `num_parts`."""
    most = 1 + int(parts.max(initial=0))
    if most > num_parts:
        raise ValueError(
            f"Got a document of {most} parts, expected at most {num_parts}, since this objective would "
            "leave out the others: give documents of fewer parts, or choose an objective that reads "
            "more of them, such as dialogue."
        )


def batched(objective: Objective, lengths: dict[str, int], max_documents: int = 1) -> Callable:
    """Returns `(keys_B, rows_B) -> features_B`, which corrupts a batch, on device or host.

    Args:
      lengths: slots of each stream, as in `RowGroup.features`.
      max_documents: the most documents that a row may hold.

    Rows 2k and 2k+1 are partners, so a batch has an even number of rows; no row depends on any
    other, so sharding the batch adds no communication.

    Raises ValueError for a `corrupt` that takes other arguments, or more sentinels than there are;
    when it is called or traced, for an odd number of rows, a missing column, or rows of more tokens
    than any member has slots for; when it is called with arrays that are not traced, also for rows
    whose values are not those of `Row`, or whose documents need more slots (`packed_lengths`).

    Inside of `jit` values cannot be checked: there a number of no member gives another member's
    features, and documents beyond `max_documents`, or the slots, are left out. Call it once
    outside of `jit` on rows like those to come.
    """
    _check_arguments(objective.corrupt)
    if objective.sentinels is not None:
        check_sentinels("Rows", lengths, objective.sentinels)

    def corrupt_rows(keys_B, rows_B: Row) -> dict[str, Array]:
        _check_rows(objective, lengths, rows_B, max_documents)
        partners_B = jax.tree.map(_swap_neighbours, rows_B)

        def corrupt_row(key, row, partner):
            features = objective.corrupt(key, row, partner, lengths, max_documents)
            return features | {"member": jnp.asarray(row.member, jnp.int32)}

        return jax.vmap(corrupt_row)(keys_B, rows_B, partners_B)

    return corrupt_rows


def _check_arguments(corrupt: Callable) -> None:
    try:
        inspect.signature(corrupt).bind(*range(5))
    except TypeError:
        raise ValueError(
            f"An objective's corrupt takes (key, row, partner, lengths, max_documents), got "
            f"{inspect.signature(corrupt)}: a function of rows of one document, (key, row, partner, "
            "lengths), is lifted to packed rows by `objectives.each_document`."
        ) from None


def check_sentinels(what: str, lengths: Mapping[str, int], available: int) -> None:
    """Raises ValueError where `lengths`, those of `what`, count more sentinels than there are."""
    needed = lengths.get("sentinels", 0)
    if needed > available:
        raise ValueError(
            f"{what} need {needed} sentinels, the vocabulary has {available}: give the vocabulary "
            "more, shorten the rows, lower noise_density, or raise mean_span_length."
        )


def _check_rows(
    objective: Objective, lengths: dict[str, int], rows_B: Row, max_documents: int
) -> None:
    B, L = rows_B.tokens.shape
    if B % 2:
        raise ValueError(f"Rows come in pairs, got a batch of {B}: use an even number of rows.")
    column = column_of(objective)
    if column and getattr(rows_B, column) is None:
        raise ValueError(f"The objective reads {column}, which these rows have not.")
    needs = [member.objective.lengths(L) for member in members_of(objective)]
    # Several short documents use the same sentinels, and fewer of them.
    unbounded = {"both"} if max_documents == 1 else {"both", "sentinels"}
    if not any(
        all(lengths.get(name, 0) >= n for name, n in each.items() if name not in unbounded)
        for each in needs
    ):
        raise ValueError(
            f"Rows of {L} tokens need the slots {needs[0]}, got {lengths}: give "
            f"objective.lengths({L}), or shorter rows."
        )
    if not any(isinstance(x, jax.core.Tracer) for x in rows_B):
        _check_values(objective, lengths, jax.tree.map(np.asarray, rows_B), max_documents)


def _check_values(
    objective: Objective, lengths: dict[str, int], rows_B: Row, max_documents: int
) -> None:
    members = members_of(objective)
    low, high = rows_B.member.min(initial=0), rows_B.member.max(initial=0)
    if low < 0 or high >= len(members):
        raise ValueError(
            f"Got rows of the members {low} … {high}, expected 0 … {len(members) - 1}."
        )
    steps_BxL = np.diff(rows_B.segments, axis=1, prepend=0)
    ended_BxL = np.logical_or.accumulate(steps_BxL < 0, axis=1)
    if (steps_BxL > 1).any() or (ended_BxL & (rows_B.segments != 0)).any():
        raise ValueError(
            "Segment ids must number the documents of a row 1, 2, …, from its first slot on and "
            "without gaps, with 0 for padding at its end."
        )
    most = rows_B.segments.max(initial=0)
    if most > max_documents:
        raise ValueError(
            f"Got a row of {most} documents, expected at most {max_documents}: raise max_documents."
        )
    if objective.num_classes and rows_B.labels is not None:
        check_classes(rows_B.labels[rows_B.segments > 0], objective.num_classes)
    if objective.num_parts is not None and rows_B.parts is not None:
        check_parts(rows_B.parts[rows_B.segments > 0], objective.num_parts)
    for member, segments in zip(rows_B.member, rows_B.segments):
        sizes = np.bincount(segments)[1:]
        for name, needed in lengths_of_documents(members[member].objective, sizes.tolist()).items():
            if name != "both" and needed > lengths.get(name, 0):
                raise ValueError(
                    f"Documents of {sizes.tolist()} tokens need {needed} slots of {name!r}, got "
                    f"{lengths.get(name, 0)}: give the lengths that `packed_lengths` returns."
                )


def lengths_of_documents(objective: Objective, document_lengths: Sequence[int]) -> dict[str, int]:
    """Returns the slots that documents of a row take together: each uses the same sentinels."""
    each = [objective.lengths(n) for n in document_lengths]
    return {
        name: (max if name == "sentinels" else sum)(n[name] for n in each)
        for name in (each[0] if each else ())
    }


def _swap_neighbours(x_B):
    x_B = jnp.asarray(x_B)
    return x_B.reshape((-1, 2) + x_B.shape[1:])[:, ::-1].reshape(x_B.shape)
