"""The one contract: what an objective is, what it is given, and what it gives back.

Axis letters used in this package:

    B  rows of a batch            L  raw tokens of a row        D  documents packed in a row
    S  sentinels (noise spans)    I  slots of `inputs`          T  slots of `targets`
    Q  queries of an attention    K  places predicted in place  V  vocabulary
    P  places pooled (one hidden state for a document, a pair or a view)
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

Array = Any  # a NumPy or JAX array

VOCABULARY: Mapping[str, int | None] = MappingProxyType({"vocabulary": None})  # the usual head


def _static(**settings):
    """A field that is no array: `jax.jit` keeps it as it is."""
    return dataclasses.field(metadata={"static": True}, **settings)


class TokenIds(NamedTuple):
    """The token ids an objective may read or write; `tasks.vocabularies` makes one.

    `None` and `()` mean that the vocabulary has no such token. `check_token_ids` is run wherever
    one is made, so that no special id can be mistaken for text.
    """

    size: int  # ids are 0 … size-1
    text: tuple[int, int]  # [first, last): ordinary ids, the ones that may be corrupted
    pad: int = 0
    eos: int = 1
    bos: int = 0  # what a decoder is given first (T5: the padding id)
    mask: int | None = None
    cls: int | None = None
    sep: int | None = None
    sentinels: tuple[int, ...] = ()  # in order of use: T5's <extra_id_0>, <extra_id_1>, …
    modes: tuple[tuple[str, int], ...] = ()  # UL2's mode tokens by name: (("R", 32100), …)
    fim: tuple[int, ...] = ()  # fill-in-the-middle: prefix, suffix, middle
    # Bit i says that a word begins with id i, or that a sentence ends with it (`bitmap`).
    word_starts: bytes = b""
    sentence_ends: bytes = b""

    def mode(self, name: str) -> int:
        """The id of the mode token `name`; raises ValueError when the vocabulary has none."""
        known = dict(self.modes)
        if name not in known:
            raise ValueError(
                f"The objective asks for the mode token {name!r}, the vocabulary has "
                f"{sorted(known) or 'none'}: add it to the vocabulary's special tokens, "
                "or set the objective's mode to None."
            )
        return known[name]

    def mode_tokens(self, name: str | None) -> tuple[int, ...]:
        """The mode token `name` as what a text begins with; nothing for None. Raises as `mode`."""
        return () if name is None else (self.mode(name),)

    def special(self, name: str) -> int:
        """The id of "mask", "cls" or "sep"; raises ValueError when the vocabulary has none."""
        found = getattr(self, name)
        if found is None:
            raise ValueError(
                f"The objective asks for the special token {name!r}, the vocabulary has none: "
                f"add {name!r} to the vocabulary's specials."
            )
        return found

    def flags(self, name: str) -> np.ndarray:
        """bool[size] from "word_starts" or "sentence_ends"; raises ValueError when not known."""
        packed = getattr(self, name)
        if not packed:
            raise ValueError(
                f"The objective asks for the {name} of the vocabulary, which does not tell them: "
                "make it with `tasks.special_tokens.token_ids`, or leave the setting out."
            )
        return np.unpackbits(np.frombuffer(packed, np.uint8), count=self.size).astype(bool)


def bitmap(flags) -> bytes:
    """bool[size] packed into bytes, as `TokenIds` keeps it."""
    return np.packbits(np.asarray(flags, bool)).tobytes()


def check_token_ids(ids: TokenIds) -> TokenIds:
    """Returns `ids` if its special ids are distinct, in range and no text; else raises.

    Ids that only mark a place may be one, as published vocabularies have it: RoBERTa's </s> ends a
    text and separates two, and GPT-2 has a single id for start, end and padding.
    """
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


class Row(NamedTuple):
    """All that the host ships for one example.

    `parts` and `labels` are there for objectives that are made for such rows (`Objective.rows`),
    and None for all others.
    """

    tokens: Array  # i32[L] text ids, padding at the end
    # i32[L] document 1, 2, … of each token; 0 = padding; the only source of lengths
    segments: Array
    member: Array  # i32[] which member of a mixture this row was cut for
    # i32[L] which part of its document a token is in, in their order: 0 a text, a first side or a
    # user's turn; 1 its answer, the second side, the first answer; 2 the next turn, …
    parts: Array | None = None
    # i32[L] the class of a document at each of its tokens, or a number in thousandths; the class
    # of each token; or NO_LABEL
    labels: Array | None = None


# What rows an objective is made for, from any text to the most that is asked of it;
# `training.packing.POLICIES` says which packing gives them.
ROWS = {
    "stream": "text that may run on over the ends of documents",
    "documents": "documents, or stretches of them, kept apart",
    "document": "one document, or a stretch of one, in a row",
    "parts": "whole documents of several parts, such as a text and its answer",
    "labels": "whole documents with labels",
}


class Outputs(Protocol):
    """What an objective's loss sees of a model."""

    hidden: dict[str, Array]  # "top": f[B, T, d]; "ahead": f[n, B, T, d]; …

    def head(self, name: str, hidden: Array) -> Array:
        """Projects hidden states: "vocabulary" gives f32[..., V], "pair" f32[..., 2], …"""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Labels:
    """The right answers that a term scores, from which its trivial baseline follows.

    Classes are guessed by how often each is right among the training targets; numbers by their
    mean there.
    """

    values: Array  # i32[B, N] classes, or f32[B, N] numbers
    weights: Array  # f32[B, N] what each counts in the term's sums; 0: nothing
    head: str = _static()  # of `Objective.heads`, which says how many classes there are
    # The model itself makes them (ELECTRA's generator): the guess is by their own frequency.
    from_outputs: bool = _static(default=False)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Term:
    """One term of a loss, or a metric, kept as sums so that accumulation and sharding change nothing.

    The total is the sum over terms of `scale * sums.sum() / weights.sum()`.

    A term's trivial baseline is that of its labels; without any, it is the term itself for outputs
    that are the same whatever the batch (hidden states of 0, heads that give 1).
    """

    sums: Array  # f32[B] summed loss of each row
    weights: Array  # f32[B] what to divide by; a function of the batch alone, never of outputs
    # A number, or a function of the step (an optax schedule). None: a metric, which is logged and
    # is no part of the loss.
    scale: Any = _static(default=1.0)
    labels: Labels | None = None
    # f32[B] summed squares of the log-partition, by the same weights: `z_loss` times it is added to
    # the loss of a run that asks for it (Chowdhery et al. 2022, PaLM, section 5).
    squared_log_partition: Array | None = None


class PromptForm(NamedTuple):
    """How the training of an objective makes a text a prompt.

    The prompt is `before`, the text and `after`, read both ways unless `causal`. The answer begins
    with `ids.bos` and `start`. T5's span corruption, and GPT's language modelling:

        PromptForm("infill", after=(ids.eos,))
        PromptForm("continue", causal=True)
    """

    # What the model then does: "continue", "complete", "infill", "middle", "restore", "respond",
    # "mask", "unmask", "embed", "classify" or "tag" (`inference.trained.MODES`).
    mode: str
    before: tuple[int, ...] = ()  # ids before the text, such as a mode token or [CLS]
    after: tuple[int, ...] = ()  # ids after it
    start: tuple[int, ...] = ()
    causal: bool = False  # the answer continues the text: nothing is read both ways
    # Of "infill": "together", one answer names every blank by its sentinel; "in turn", each blank
    # has an answer of its own, after its sentinel; "masks", the same, where blanks are mask tokens.
    blanks: str = "together"
    shift: int = 0  # slots from a mask to where its token is predicted
    head: str | None = None  # that answers; None: the vocabulary projection, of "embed" no head
    pooling: str = "mean"  # of "embed": over the "first" slot of a text or the "mean" of all


class Lengths(Protocol):
    """The slots that one document takes, from its tokens alone."""

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
    """A row of text to the features that a model is trained on.

    Written for rows of one document, it is lifted to packed rows by `each_document`.
    """

    def __call__(
        self, key, row: Row, partner: Row, lengths: dict[str, int], max_documents: int, /
    ) -> dict[str, Array]:
        """Corrupts one row.

        Args:
          key: the row's own random key.
          row: the row.
          partner: another row of the batch, for those that need text from elsewhere.
          lengths: slots of each stream, as planned for the whole row.
          max_documents: most documents that the row may hold; a Python int, and so static.

        Returns:
          {column: i32[...]} of exactly these lengths; `objectives.features` names the columns.
          Documents stay apart: the features of one are its own segment.
        """


class Loss(Protocol):
    """The terms of the loss of a batch."""

    def __call__(self, outputs: Outputs, batch: dict[str, Array], /) -> dict[str, Term]:
        """Weighs what a model gave.

        Args:
          outputs: of the model, for the batch.
          batch: the arranged features (`objectives.layouts`), each with a leading axis of rows.

        Returns:
          {name: term}.
        """


class Objective(NamedTuple):
    """A pre-training objective: a few pure functions, built by the function named after it."""

    lengths: Lengths
    corrupt: Corrupt
    loss: Loss
    # What the loss asks of the model: names of heads, and how many classes each tells apart. None:
    # the ids of the vocabulary, or no classes.
    heads: Mapping[str, int | None] = VOCABULARY
    rows: str = "stream"  # what rows it is made for: one of `ROWS`
    closes_documents: bool = False  # it marks where documents end; a stream need not
    prompt_forms: tuple[PromptForm, ...] = ()  # of models that it trained, the default one first
    sentinels: int | None = None  # how many it may use, where `lengths` counts them
    members: tuple = ()  # Member(name, objective, rate), … of a mixture
    couples_rows: bool = False  # the loss is no sum over rows


Builder = Callable[[TokenIds], Objective]  # an objective before it has a vocabulary


class Member(NamedTuple):
    """One member of a mixture."""

    name: str
    objective: Objective
    rate: Any  # share of rows, relative to the others: a number, or a function of the step


def members_of(objective: Objective) -> tuple[Member, ...]:
    """The members of a mixture; a plain objective is its own only member."""
    return objective.members or (Member("all", objective, 1.0),)


def joint_rows(kinds: Iterable[str]) -> str:
    """What rows suit objectives that ask for rows of these kinds: those of the most demanding.

    >>> joint_rows(["stream", "document"])
    'document'

    Raises ValueError for documents of parts and documents with labels, which no corpus gives both.
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
    """The heads of several objectives together.

    Raises ValueError where two of them want another number of classes of one head.
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
    """The column of a row beyond its tokens that an objective reads: "parts", "labels" or None."""
    return objective.rows if objective.rows in ("parts", "labels") else None


def batched(objective: Objective, lengths: dict[str, int], max_documents: int = 1) -> Callable:
    """`(keys_B, rows_B) -> features_B`: the one entry to corruption, on the device and on the host.

    Args:
      lengths: slots of each stream, as in `RowGroup.features`.
      max_documents: most documents that a row may hold.

    The partner of row 2k is row 2k+1 and the other way round, so a batch has an even number of
    rows; no row looks at any other, so sharding the batch adds no communication.

    Raises ValueError for a `corrupt` that takes other arguments, or more sentinels than there are;
    when it is called or traced, for an odd number of rows, a missing column, or rows of more tokens
    than any member has slots for.
    """
    _check_arguments(objective.corrupt)
    _check_sentinels(objective, lengths)

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


def _check_sentinels(objective: Objective, lengths: dict[str, int]) -> None:
    needed, there = lengths.get("sentinels", 0), objective.sentinels
    if there is not None and needed > there:
        raise ValueError(
            f"Rows need {needed} sentinels, the vocabulary has {there}: give TokenIds more, shorten "
            "the rows, lower noise_density, or raise mean_span_length."
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


def _swap_neighbours(x_B):
    x_B = jnp.asarray(x_B)
    return x_B.reshape((-1, 2) + x_B.shape[1:])[:, ::-1].reshape(x_B.shape)
