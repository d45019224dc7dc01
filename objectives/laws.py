"""Laws that every objective must keep, checked on small rows of random text.

Before a run, `check_objective` checks the laws that the run depends on for a user's objective.
`pretrax check` checks all laws and prints a table. The tests check all built-in objectives. A law
is a function that raises `Broken` with a message about the violation.
"""

import functools
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import layouts
from .contract import BatchLoss, Objective, Row, Term, check_facts, members_of
from .corrupted_batches import batched
from .layouts import Layout
from .losses import predicting_stack, token_loss
from .mixtures import joint_lengths
from .static_lengths import packed_lengths
from .streams import (
    STREAMS,
    check_features,
    per_document_streams,
    slots_of,
    streams_named,
    streams_of,
    unknown_name,
)
from .token_ids import TokenIds
from .token_weights import in_units

# Document lengths of each row, in tokens. Noise degenerates in the shortest documents.
DOCUMENTS = ((1,), (2,), (3,), (50,), (1, 2, 3, 20), (3, 1, 1, 2), (30, 17), (2, 40, 1, 5))
RAW_LENGTH = 56  # tokens of a row, including padding
# Lengths of the documents whose slots are counted. Short documents are drawn often, since few draws
# of a random objective take all of the slots that `lengths` plans.
COUNTED = (*range(1, 65), *(1, 2, 3, 4) * 64)
PROGRAMS = 256  # size of each cache of compiled programs
LABELS = 2  # number of classes in the labels of example rows
MORE_PADDING = 37
MORE_SLOTS = 9

_NOT_A_STREAM = ("sentinels", "both")
_TO_LIFT = "Write the function for one document, and lift it with objectives.each_document."


class Broken(ValueError):
    """An objective breaks a law."""


class LawExamples(NamedTuple):
    """An objective and example rows for it: every set of documents for every member."""

    objective: Objective
    ids: TokenIds
    keys: jax.Array
    rows: Row  # with NumPy arrays
    documents: list[list[list[int]]]  # the documents of each row
    lengths: dict[str, int]
    max_documents: int


# --- examples -----------------------------------------------------------------------------------


def text_row(
    ids: TokenIds,
    document_lengths: Sequence[int],
    raw_length: int,
    seed: int = 0,
    member: int = 0,
    rows: str = "stream",
    parts: int = 2,
) -> tuple[Row, list[list[int]]]:
    """Returns a row of random text in NumPy arrays, and its documents as lists.

    For the kind "parts", documents have random parts; for "labels", tokens have random labels.
    """
    random = np.random.default_rng([seed, *document_lengths])
    documents = [random.integers(*ids.text, n).tolist() for n in document_lengths]
    tokens = np.full(raw_length, ids.pad, np.int32)
    segments = np.zeros(raw_length, np.int32)
    used = sum(document_lengths)
    tokens[:used] = np.concatenate(documents)
    segments[:used] = np.repeat(np.arange(len(documents)) + 1, document_lengths)
    row = Row(tokens, segments, np.int32(member))
    if rows == "parts":
        cuts = [np.sort(random.integers(0, n + 1, parts - 1)) for n in document_lengths]
        document_parts = [
            np.searchsorted(c, np.arange(n), "right") for c, n in zip(cuts, document_lengths)
        ]
        numbers = np.zeros_like(tokens)
        numbers[:used] = np.concatenate(document_parts)
        row = row._replace(parts=numbers)
    elif rows == "labels":
        row = row._replace(labels=random.integers(0, LABELS, raw_length).astype(np.int32))
    return row, documents


def examples(
    objective: Objective,
    ids: TokenIds,
    raw_length: int = RAW_LENGTH,
    seeds: int = 2,
    parts: int = 2,
) -> LawExamples:
    """Returns rows with the lengths `DOCUMENTS`, with several seeds and for every member."""
    rows, documents = zip(
        *(
            text_row(ids, lengths, raw_length, seed, member, objective.facts.rows.kind, parts)
            for member in range(len(members_of(objective)))
            for seed in range(seeds)
            for lengths in DOCUMENTS
        )
    )
    planned = [packed_lengths(objective, lengths) for lengths in (*DOCUMENTS, (raw_length,))]
    return LawExamples(
        objective=objective,
        ids=ids,
        keys=jax.random.split(jax.random.key(7), len(rows)),
        rows=jax.tree.map(lambda *x: np.stack(x), *rows),
        documents=list(documents),
        lengths=joint_lengths(planned),
        max_documents=max(map(len, DOCUMENTS)),
    )


def quick_jit(f: Callable) -> Callable:
    """Compiles in half the time, for programs that run only a few times. Integers stay exact."""
    return jax.jit(f, compiler_options={"xla_backend_optimization_level": 0})


def _hashed(case: LawExamples, name: str) -> Any:
    """Returns a function of the objective, which must be hashable."""
    function = getattr(case.objective, name)
    try:
        hash(function)
    except TypeError:
        raise Broken(
            f"`{name}` is a {type(function).__name__} without a hash, expected a function or a "
            "hashable object: for a dataclass, set frozen=True."
        ) from None
    return function


@functools.lru_cache(maxsize=PROGRAMS)
def _compiled(corrupt: Any, lengths, max_documents):
    """Returns the compiled corruption; examples that differ only in rows share a program."""
    bare = Objective(lambda n: {}, corrupt, token_loss)  # the loss is not used
    bare = bare.with_facts(token_weights=True)  # only objectives with this fact get weights
    return quick_jit(batched(bare, dict(lengths), max_documents))


def corrupted(case: LawExamples, **changes) -> dict[str, np.ndarray]:
    """Returns the features of the examples, after changes such as `corrupted(case, rows=…)`."""
    case = case._replace(**changes)
    return jax.tree.map(np.asarray, _program(case)(case.keys, case.rows))


def _program(case: LawExamples) -> Any:
    return _compiled(_hashed(case, "corrupt"), tuple(case.lengths.items()), case.max_documents)


# --- laws ---------------------------------------------------------------------------------------


def lengths_never_decrease(case: LawExamples, longest: int = 600) -> None:
    """Lengths are Python ints for known streams, and never decrease."""
    before = case.objective.lengths(1)
    for name in before:
        if name not in STREAMS and name not in _NOT_A_STREAM:
            raise Broken(unknown_name("stream of `lengths`", name, (*STREAMS, *_NOT_A_STREAM)))
    for n in range(1, longest):
        now = case.objective.lengths(n)
        if now.keys() != before.keys():
            raise Broken(f"lengths({n}) has {sorted(now)}, lengths(1) has {sorted(before)}.")
        for name, slots in now.items():
            if type(slots) is not int:
                raise Broken(f"lengths({n})[{name!r}] is {slots!r}, expected a Python int.")
            if slots < before[name]:
                raise Broken(
                    f"lengths({n})[{name!r}] is {slots}, below the {before[name]} of "
                    f"lengths({n - 1})."
                )
        before = now


def features_are_known(case: LawExamples) -> None:
    """Features have the names, the shapes and the type that `lengths` plans."""
    try:
        batched(case.objective, case.lengths, case.max_documents)  # checks the arguments
        # The laws that need values run the same program, which is traced once.
        shapes = _program(case).eval_shape(case.keys, case.rows)
        row = {c: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for c, x in shapes.items()}
        del row["member"]
        check_features(row, case.lengths)
        missing = [s.name for s in streams_named(case.lengths) if s.columns[0] not in row]
        if missing:
            raise Broken(f"`lengths` plans slots for {missing}, but `corrupt` returns no features.")
    except ValueError as error:
        raise Broken(str(error)) from None


def ids_are_in_range(case: LawExamples) -> None:
    """Tokens are ids of the vocabulary, and slot numbers are slots of the inputs."""
    features = corrupted(case)
    size = case.ids.size
    slots = case.lengths.get("inputs", 0)
    for stream in streams_of(features):
        # A pool without inputs has slot 0.
        limits = {"id": size, "id + 1": size + 1, "slot": slots or int(stream.per_document)}
        if None in case.objective.facts.heads.values():
            limits["label"] = size
        for name, kind in stream.values.items():
            if kind in limits and features[name].size:
                low = features[name].min()
                high = features[name].max()
                if low < 0 or high >= limits[kind]:
                    raise Broken(f"{name} are {low} … {high}, expected 0 … {limits[kind] - 1}.")


def padding_does_not_count(case: LawExamples) -> None:
    """Only targets count in the loss, and slots in use come before unused slots."""
    features = corrupted(case)
    if "targets" in features:
        counted = (features["targets_weights"] != 0) & (features["targets_segments"] == 0)
        if counted.any():
            raise Broken(
                f"{counted.sum()} padding slots (targets_segments is 0) have targets_weights above "
                "0, expected 0."
            )
    for stream in ("inputs", "targets", "labels"):
        if stream in features:
            column = STREAMS[stream].in_use
            used = features[column] > 0
            if (np.diff(used.astype(int), axis=1) > 0).any():
                raise Broken(f"{column} has 0 before other values, expected all 0 at the end.")


def padding_gives_padding(case: LawExamples) -> None:
    """The features of a row of padding are all 0."""
    empty = jax.tree.map(np.zeros_like, case.rows)._replace(member=case.rows.member)
    for name, x in corrupted(case, rows=empty).items():
        if name != "member" and x.any():
            raise Broken(f"{name} of a row of padding has {x[x != 0][0]}, expected only 0.")


def more_slots_change_nothing(case: LawExamples) -> None:
    """More padding, more slots and room for more documents only add zeros at the end.

    This law also detects labels or targets for which `lengths` plans too few slots.
    """
    padding = ((0, 0), (0, MORE_PADDING))
    rows = jax.tree.map(lambda x: np.pad(x, padding) if x.ndim == 2 else x, case.rows)
    most = case.max_documents + 2
    per_document = per_document_streams()
    lengths = {
        name: slots // case.max_documents * most if name in per_document else slots + MORE_SLOTS
        for name, slots in case.lengths.items()
    }
    features = corrupted(case, rows=rows, lengths=lengths, max_documents=most)
    for name, x in corrupted(case).items():
        if name == "member":
            continue
        same, rest = np.split(features[name], [x.shape[1]], axis=1)
        if rest.any():
            row = int(np.flatnonzero(rest.any(1))[0])
            raise Broken(
                f"{name} needs more than the {x.shape[1]} slots that `lengths` plans for documents "
                f"of {list(map(len, case.documents[row]))} tokens: increase `lengths`, or return "
                "fewer values."
            )
        if (same != x).any():
            raise Broken(f"{name} changes if rows have more padding and more slots.")


def lengths_are_enough(case: LawExamples) -> None:
    """A document of n tokens takes at most `lengths(n)` slots."""
    for member in members_of(case.objective):
        plain = case._replace(objective=member.objective)
        for name, used in slots_used(plain, COUNTED).items():
            for n, slots in zip(COUNTED, used):
                planned = member.objective.lengths(n)[name]
                if slots > planned:
                    raise Broken(
                        f"A document of {n} tokens takes {slots} slots of {name}, but lengths({n}) "
                        f"plans {planned}."
                    )


def planned_slots_are_used(case: LawExamples) -> None:
    """For each stream, a document of some length uses all slots that `lengths` plans."""
    for member in members_of(case.objective):
        plain = case._replace(objective=member.objective)
        for name, used in slots_used(plain, COUNTED).items():
            planned = np.array([member.objective.lengths(n)[name] for n in COUNTED])
            if name not in per_document_streams() and (used < planned).all():
                k = int((planned - used).argmin())
                raise Broken(
                    f"No document of 1 to {max(COUNTED)} tokens takes all planned slots of {name}: "
                    f"lengths({COUNTED[k]}) plans {planned[k]}, but a document of {COUNTED[k]} "
                    f"tokens takes {used[k]}. Plan fewer slots."
                )


def documents_stay_apart(case: LawExamples) -> None:
    """The features of a document do not depend on other documents of its row."""
    features = corrupted(case)
    for stream in ("inputs", "targets"):
        if stream in features:
            for row, documents in enumerate(case.documents):
                found = set(features[f"{stream}_segments"][row].tolist()) - {0}
                if len(documents) > 1 and found == {1}:
                    raise Broken(
                        f"In a row of {len(documents)} documents, all {stream} belong to "
                        f"segment 1. {_TO_LIFT}"
                    )
    several = [i for i, documents in enumerate(case.documents) if len(documents) > 1]
    last = np.max(case.rows.segments, axis=1, keepdims=True)
    in_last = (case.rows.segments == last) & (last > 1)
    first, end = case.ids.text
    other_tokens = first + (case.rows.tokens - first + 1 + (end - first) // 3) % (end - first)
    for parity in (0, 1):  # the partners stay unchanged
        mine = np.arange(len(last))[:, None] % 2 == parity
        tokens = np.where(in_last & mine, other_tokens, case.rows.tokens).astype(np.int32)
        changed = corrupted(case, rows=case.rows._replace(tokens=tokens))
        for row in (i for i in several if i % 2 == parity):
            _compare_earlier(case, row, features, changed)


def _compare_earlier(case: LawExamples, row: int, before, after) -> None:
    """Raises Broken if features of a document before the last one have changed."""
    n = len(case.documents[row])
    segments_of_one = max(case.objective.lengths(1).get("pools", 1), 1)
    for stream in streams_of(before):
        owner = slots_of(stream)
        if owner not in ("inputs", "targets", "labels"):
            continue
        for name in stream.columns:
            a, b = (stream_segments(x, owner, row) for x in (before, after))
            mine = (a > 0) & (a <= segments_of_one * (n - 1))
            if (a[mine] != b[mine]).any() or (before[name][row] != after[name][row])[mine].any():
                raise Broken(
                    f"{name} of a document depends on another document of its row, which has "
                    f"documents of {list(map(len, case.documents[row]))} tokens. {_TO_LIFT}"
                )


def stream_segments(features, stream: str, row: int) -> np.ndarray:
    """Returns i32[slots]: the segment of each input, target or label; 0 for unused slots."""
    if stream != "labels":
        return features[f"{stream}_segments"][row]
    counts = features["labels_weights"][row] > 0
    return np.where(counts, features["inputs_segments"][row][features["labels_slots"][row]], 0)


def rows_do_not_depend_on_their_batch(case: LawExamples) -> None:
    """A row has the same features in a batch and alone, and jit changes no bit."""
    whole = corrupted(case)

    @quick_jit
    def alone(key, row: Row, partner: Row):
        return case.objective.corrupt(key, row, partner, case.lengths, case.max_documents)

    for i in range(len(case.documents)):
        row, partner = (jax.tree.map(lambda x, j=j: x[j], case.rows) for j in (i, i ^ 1))
        for name, x in alone(case.keys[i], row, partner).items():
            if (np.asarray(x) != whole[name][i]).any():
                raise Broken(f"{name} of row {i} differs between the row in a batch and alone.")


def facts_are_known(case: LawExamples) -> None:
    """The objective's facts, rows, prompt forms and adaptation are of known kinds."""
    try:
        check_facts(case.objective)
    except ValueError as error:
        raise Broken(str(error)) from None


def segments_are_of_documents(case: LawExamples) -> None:
    """A document has one segment, or one segment for each of its pools."""
    features = corrupted(case)
    segments_per_document = max(case.objective.lengths(1).get("pools", 1), 1)
    for stream in ("inputs", "targets"):
        if stream in features:
            most = features[f"{stream}_segments"].max(1)
            for segments, documents in zip(most, case.documents):
                max_segments = segments_per_document * len(documents)
                if segments > max_segments:
                    raise Broken(
                        f"{stream}_segments has {segments} segments in a row of {len(documents)} "
                        f"documents, expected at most {max_segments}: a document has one segment "
                        "for each of its pools in `lengths`, or a single segment."
                    )


# --- laws of the loss ---------------------------------------------------------------------------


class AnyStates:
    """Every hidden state that a loss may read from a model."""

    def __init__(self, states, heads: Iterable[str]):
        self._states = states
        self._ahead = sum(head.startswith("ahead_") for head in heads)

    def __contains__(self, name: str) -> bool:
        return True

    def __getitem__(self, name: str):
        if name == "ahead":  # one array for each of several tokens ahead
            return jnp.broadcast_to(self._states, (self._ahead, *self._states.shape))
        if name == "replaced":  # whether a generator replaced each token
            return jnp.zeros(self._states.shape[:2], jnp.int32)
        return self._states


class _AnyOutputs(NamedTuple):
    """Model outputs whose heads are random projections of states."""

    hidden: Any  # AnyStates
    heads: Mapping[str, int | None]
    size: int  # size of the vocabulary

    def head(self, name: str, hidden):
        if name not in self.heads:
            raise Broken(
                f"The loss uses the head {name!r}, but `Facts.heads` has only {list(self.heads)}."
            )
        if name == "logit_scale":
            return jnp.float32(1.0)
        # Outputs of another head are as wide as the vocabulary: a matrix for all of them is large.
        read = hidden[..., :MAX_VALUES_READ]
        shape = read.shape[-1], self.heads[name] or self.size
        return read @ jax.random.normal(jax.random.key(3), shape)


STATE_WIDTH = 4  # width of a hidden state
MAX_VALUES_READ = 16  # number of a state's values that a head reads
LOSS_ROWS = 2  # rows of a batch for the loss
LONG_DOCUMENT = 15  # tokens of a document that is long enough to have text among its targets


def _few_rows(case: LawExamples) -> dict:
    return _batch_of(case, corrupted(case), [-2, -1])


def _batch_of(case: LawExamples, features: dict, chosen: Sequence[int]) -> dict:
    """Returns a batch of these rows, arranged for the first layout that supports their streams."""
    supporting = layouts.supporting_layouts([case.lengths])
    if not supporting:
        raise Broken(f"No layout supports the streams {list(case.lengths)} together.")
    layout = layouts.LAYOUTS[supporting[0]]
    stacks = layout.lengths(case.lengths)
    arrange = _arranging(layout, tuple(stacks.items()), case.ids.bos, case.max_documents)
    return jax.device_get(arrange({name: x[np.array(chosen)] for name, x in features.items()}))


@functools.lru_cache(maxsize=PROGRAMS)
def _arranging(layout: Layout, stacks, bos: int | None, max_documents: int):
    settings = dict(lengths=dict(stacks), bos=bos, max_documents=max_documents)
    return quick_jit(jax.vmap(functools.partial(layout.arrange, **settings)))


def _states(batch: dict) -> np.ndarray:
    """Returns random hidden states of the stack that predicts: f32[B, T, STATE_WIDTH]."""
    stack = predicting_stack(batch)
    shape = (*batch[f"{stack}_segment_ids"].shape, STATE_WIDTH)
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _terms(case: LawExamples, batch: dict, rows: int = LOSS_ROWS) -> dict[str, Term]:
    states = _states(batch)
    loss = _compiled_loss(
        _hashed(case, "loss"), tuple(case.objective.facts.heads.items()), case.ids.size
    )
    return loss(states[:rows], {name: x[:rows] for name, x in batch.items()})


@functools.lru_cache(maxsize=PROGRAMS)
def _compiled_loss(loss: Any, heads, size: int):
    def terms(states, batch) -> dict[str, Term]:
        outputs = _AnyOutputs(AnyStates(states, dict(heads)), dict(heads), size)
        batch_loss = loss(batch)
        if not isinstance(batch_loss, BatchLoss):
            raise Broken(f"The loss returns {type(batch_loss).__name__}, expected a BatchLoss.")
        return batch_loss.scored(outputs)

    return quick_jit(terms)


def check_shapes(terms: Mapping[str, Term], rows: int) -> None:
    """Raises Broken unless every term has one sum and one weight for each row."""
    for name, term in terms.items():
        for part in ("sums", "weights"):
            shape = jnp.shape(getattr(term, part))
            if shape != (rows,):
                raise Broken(
                    f"The loss term {name!r} has {part} of shape {list(shape)}, expected [{rows}]: "
                    "return one number for each row of the batch, summed over the row's slots."
                )


def loss_has_terms(case: LawExamples) -> None:
    """The loss has a sum and a weight for each row."""
    terms = _terms(case, _few_rows(case))
    if all(term.scale is None for term in terms.values()):
        raise Broken(f"The loss has the terms {list(terms)}, expected one with a scale.")
    check_shapes(terms, LOSS_ROWS)
    heads = case.objective.facts.heads
    for name, term in terms.items():
        if term.labels is not None and term.labels.head not in heads:
            raise Broken(
                f"The loss term {name!r} has labels for the head {term.labels.head!r}, expected "
                f"one of the objective's heads, {sorted(heads)}."
            )


def loss_is_a_sum_over_rows(case: LawExamples) -> None:
    """The loss of a row does not depend on the other rows, unless `couples_rows` is True."""
    if case.objective.facts.couples_rows:
        return
    batch = _few_rows(case)
    alone = _terms(case, batch, rows=1)
    for name, term in _terms(case, batch).items():
        if not np.allclose(term.sums[:1], alone[name].sums, 1e-3, 1e-3):
            raise Broken(
                f"The loss term {name!r} of a row changes if the batch has more rows: set "
                "couples_rows=True, or compute the loss of each row separately."
            )


def weights_reach_the_loss(case: LawExamples) -> None:
    """Tokens with a weight of 0 have no loss, if the objective uses token weights."""
    if not case.objective.facts.token_weights:
        return
    rows = case.rows._replace(weights=np.zeros_like(case.rows.tokens))
    # A special token counts if no text of its document is predicted, as in very short documents.
    long = [i for i, row in enumerate(case.documents) if min(map(len, row)) >= LONG_DOCUMENT]
    batch = _batch_of(case, corrupted(case, rows=rows), long[:LOSS_ROWS])
    for name, term in _terms(case, in_units(batch)).items():
        if term.scale is not None and np.any(term.sums):
            raise Broken(
                f"The loss term {name!r} counts tokens whose weight is 0: give their weights to "
                "the term, or set token_weights=False."
            )


def counts_are_sums(case: LawExamples) -> None:
    """An adaptation's counts are integers summed over rows, and its state keeps its structure."""
    adaptation = case.objective.adaptation
    if adaptation is None:
        return
    batch = _few_rows(case)
    heads = dict(case.objective.facts.heads)

    @quick_jit
    def counts(states, batch):
        outputs = _AnyOutputs(AnyStates(states, heads), heads, case.ids.size)
        return adaptation.measure(outputs, batch)

    states = _states(batch)
    whole = counts(states, batch)
    if not all(jnp.issubdtype(x.dtype, jnp.integer) for x in jax.tree.leaves(whole)):
        raise Broken(
            "The adaptation's counts are not integers, so their sums would depend on the devices: "
            "return integer counts, and divide in `update`."
        )
    alone = [
        counts(*jax.tree.map(lambda x, i=i: x[i : i + 1], (states, batch)))
        for i in range(LOSS_ROWS)
    ]
    added = jax.tree.map(lambda *x: sum(x), *alone)
    if not all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), whole, added))):
        raise Broken(
            "The adaptation's counts for several rows are not the sums of the counts for each row."
        )
    state = jax.eval_shape(adaptation.init)
    after = jax.eval_shape(adaptation.update, state, whole, jnp.int32(1))
    if after != state:
        raise Broken(
            f"The adaptation's update turns a state {state} into {after}, expected the same "
            "structure, shapes and types."
        )


def noise_is_drawn(case: LawExamples) -> None:
    """Another key gives other features."""
    other_keys = jax.random.split(jax.random.key(8), len(case.documents))
    other_features = corrupted(case, keys=other_keys)
    if not any((other_features[name] != x).any() for name, x in corrupted(case).items()):
        raise Broken("Two different keys give the same features, so nothing is random.")


def every_target_counts(case: LawExamples) -> None:
    """Targets other than padding have a weight of 1; other weights are 0 or 1."""
    features = corrupted(case)
    if "targets" in features:
        uncounted = (features["targets_weights"] > 0) != (features["targets_segments"] > 0)
        if uncounted.any():
            raise Broken(f"{uncounted.sum()} targets have a weight of 0, expected 1.")
        return
    for name, x in features.items():
        if name.endswith("_weights") and not np.isin(x, (0, 1)).all():
            raise Broken(f"{name} has the values {np.unique(x).tolist()}, expected only 0 and 1.")


# Without these laws, a run would silently train wrongly.
REQUIRED: dict[str, Callable[[LawExamples], None]] = {
    "facts are known": facts_are_known,
    "lengths never decrease": lengths_never_decrease,
    "features are as planned": features_are_known,
    "ids are in range": ids_are_in_range,
    "padding does not count": padding_does_not_count,
    "padding gives padding": padding_gives_padding,
    "more slots change nothing": more_slots_change_nothing,
    "segments are of documents": segments_are_of_documents,
    "documents stay apart": documents_stay_apart,
    "loss has terms": loss_has_terms,
    "loss is a sum over rows": loss_is_a_sum_over_rows,
    "counts are sums": counts_are_sums,
}
# A run with token weights also depends on this law.
WEIGHTED = {"weights reach the loss": weights_reach_the_loss}
LAWS = REQUIRED | {
    "lengths are enough": lengths_are_enough,
    "batch = loop": rows_do_not_depend_on_their_batch,
}
# Laws that most objectives keep; for the others, a failure is informative.
USUAL: dict[str, Callable[[LawExamples], None]] = {
    "planned slots are used": planned_slots_are_used,
    "noise is drawn": noise_is_drawn,
    "every target counts": every_target_counts,
    **WEIGHTED,
}


def check_objective(objective: Objective, ids: TokenIds, weighted: bool = False) -> None:
    """Raises ValueError for an objective that would silently train wrongly. Takes seconds.

    `weighted` is whether the documents of the run have token weights.
    """
    laws = REQUIRED | (WEIGHTED if weighted else {})
    for member in members_of(objective):
        owner = "The objective" if member.name == "all" else f"The member {member.name!r}"
        for name, law in laws.items():
            if reason := broken(law, member.objective, ids):
                raise ValueError(f"{owner} breaks a law ({name}): {reason}")


def broken(law: Callable[[LawExamples], None], objective: Objective, ids: TokenIds) -> str | None:
    """Returns why the objective breaks a law, or None. An exception also breaks the law."""
    try:
        law(examples(objective, ids))
    except Broken as error:
        return str(error)
    except Exception as error:  # a user's function may raise any exception
        return raised(error)
    return None


def raised(error: Exception) -> str:
    """Describes an exception, with the line of the user's function that raised it."""
    package_folder = str(Path(__file__).parent)
    lines = [
        f"{frame.filename}, line {frame.lineno}: "
        for frame in traceback.extract_tb(error.__traceback__)[1:]  # the first frame caught it
        if not frame.filename.startswith(package_folder) and "site-packages" not in frame.filename
    ]
    return f"{''.join(lines[-1:])}{type(error).__name__}: {error}"


def is_user_defined(objective: Objective) -> bool:
    """Returns whether a function of the objective or of a member comes from another package."""
    return not all(is_built_in(f) for m in members_of(objective) for f in m.objective[:3])


def is_built_in(function: Callable) -> bool:
    """Returns whether a function, its parts and the functions that it closes over are built in."""
    packages = set()
    visited = set()
    parts: list[Any] = [function]
    while parts:
        part = parts.pop()
        if id(part) in visited:  # a function may close over itself
            continue
        visited.add(id(part))
        if isinstance(part, functools.partial):  # and jax.tree_util.Partial
            parts += [part.func, *part.args, *part.keywords.values()]
        elif isinstance(part, list | tuple):  # including objectives
            parts += part
        elif callable(part):
            packages.add((getattr(part, "__module__", None) or "").partition(".")[0])
            parts += [c.cell_contents for c in getattr(part, "__closure__", None) or ()]
    return packages <= {"pretrax", "jax", "functools"}


def slots_used(
    case: LawExamples, lengths: Sequence[int], seed: int = 2, parts: int = 2
) -> dict[str, np.ndarray]:
    """Returns {stream: slots, "sentinels": ids} used by rows of one document of each length."""
    raw_length = max(lengths)
    kind = case.objective.facts.rows.kind
    rows = [
        text_row(case.ids, (n,), raw_length, i * (kind == "parts"), 0, kind, parts)[0]
        for i, n in enumerate(lengths)
    ]
    rows = jax.tree.map(lambda *x: np.stack(x), *rows)
    keys = jax.random.split(jax.random.key(seed), len(lengths))
    planned = case.objective.lengths(raw_length)
    features = corrupted(case._replace(keys=keys, rows=rows, lengths=planned, max_documents=1))
    used = {
        s.name: (features[s.in_use] > 0).sum(1)
        for s in streams_named(planned)
        if s.in_use in features
    }
    if "sentinels" in planned:
        number = np.zeros(case.ids.size, int)
        number[list(case.ids.sentinels)] = np.arange(len(case.ids.sentinels)) + 1
        written = np.concatenate([features[s] for s in ("inputs", "targets") if s in features], 1)
        used["sentinels"] = number[written].max(1)
    return used
