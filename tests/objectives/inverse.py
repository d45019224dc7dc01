"""Inverses of objectives in plain Python, written from the papers and not from the code.

Each function takes the features of ONE corrupted document as lists of ids, and returns the
document. It also asserts everything that the objective guarantees about the features.
"""

from typing import NamedTuple

import numpy as np

from tests.objectives.vocabulary import IDS

INPUT_COLUMNS = (
    "inputs_types",
    "inputs_noise_levels",
    "inputs_self_conditioned",
    "noised",
    "noised_begins",
    "noised_ends",
    "noised_rates",
)
TARGET_COLUMNS = (
    "targets_positions",
    "targets_block_positions",
    "targets_stand_ins",
    "targets_bag_sizes",
    *(f"targets_bag_{k}" for k in range(2, 7)),
    "masks",
    "masks_positions",
    "masks_begins",
    "masks_ends",
    "masks_visible",
)


class Corrupted(NamedTuple):
    """The features of one corrupted document."""

    inputs: list[int]
    targets: list[int]
    labeled: list[tuple[int, int]]  # index into the inputs, and a token predicted there
    columns: dict[str, list[int]]  # inputs_types, noised, …, targets_positions, contexts_starts, …
    pools: list[tuple[int, int, int]]  # index into the inputs, label, weight

    @property
    def labels(self) -> dict[int, int]:
        """Returns the single token predicted at each index into the inputs."""
        assert len(dict(self.labeled)) == len(self.labeled), "two labels at one place"
        return dict(self.labeled)


def corrupted_documents(features) -> dict[int, Corrupted]:
    """Returns the corrupted documents of a row by segment, and asserts that they are contiguous."""
    empty = np.zeros(0, int)
    f = {key: np.asarray(value) for key, value in features.items()}
    given, written = (f.get(f"{name}_segments", empty) for name in ("inputs", "targets"))
    _assert_compact(f.get("inputs", empty), given)
    _assert_compact(f.get("targets", empty), written)
    for stream in ("labels", "pools"):
        weights = f.get(f"{stream}_weights", empty)
        for column in ("", "_labels"):
            rest = f.get(stream + column, empty)
            assert not rest[weights[: rest.size] == 0].any(), f"{stream}{column} that do not count"
        compact = (np.diff((weights > 0).astype(int)) <= 0).all()
        assert compact or stream == "pools", f"{stream} are not compact"
    documents = {}
    for d in sorted({*given[given > 0].tolist(), *written[written > 0].tolist()}):
        in_document, first = given == d, int((given < d)[given > 0].sum())

        def at(stream, column, in_document=in_document, first=first):
            live = f.get(f"{stream}_weights", empty) > 0
            places, values = f.get(f"{stream}_slots", empty), f.get(column, empty)
            return [
                (int(place) - first, int(value))
                for place, value in zip(places[live], values[live])
                if in_document[place]
            ]

        documents[d] = Corrupted(
            f["inputs"][in_document].tolist() if "inputs" in f else [],
            f["targets"][written == d].tolist() if "targets" in f else [],
            at("labels", "labels"),
            {name: f[name][in_document].tolist() for name in INPUT_COLUMNS if name in f},
            [
                (place, label, weight)
                for (place, label), (_, weight) in zip(
                    at("pools", "pools_labels"), at("pools", "pools_weights")
                )
            ],
        )
        for column in TARGET_COLUMNS:
            if column in f:
                documents[d].columns[column] = f[column][written == d].tolist()
        for stream, segments in (("contexts", written), ("inputs", given)):
            if f"{stream}_starts" in f:  # These are slots of the row.
                first = int(((segments < d) & (segments > 0)).sum())
                for name, before in (("positions", 0), ("starts", first), ("ends", first)):
                    column = f"{stream}_{name}"
                    row_slots = f[column][segments == d] - before
                    documents[d].columns[column] = row_slots.tolist()
    return documents


def _assert_compact(tokens, segments):
    live = segments[segments > 0]
    assert (segments[: live.size] > 0).all(), "padding between documents"
    assert (np.diff(live) >= 0).all(), "documents out of order"
    assert (tokens[live.size :] == 0).all(), "ids in the padding"


def undo_spans(document, mode: int | None = None):
    inputs, targets = _without_eos(document.inputs), _without_eos(document.targets)
    inputs = _without_mode(mode, inputs)
    number = {sentinel: i for i, sentinel in enumerate(IDS.sentinels)}
    spans: list[list[int]] = []
    for token in targets:
        if token in number:
            assert number[token] == len(spans), "targets: sentinels start at 0, in order"
            spans.append([])
        else:
            spans[-1].append(token)
    assert all(spans), "an empty span"
    document, next_span = [], 0
    for place, token in enumerate(inputs):
        if token in number:
            assert number[token] == next_span, "inputs: sentinels start at 0, in order"
            assert place > 0 and inputs[place - 1] not in number, "spans touch"
            document += spans[next_span]
            next_span += 1
        else:
            document.append(token)
    assert next_span == len(spans), "a span is missing"
    return document


def undo_split(document, mode: int | None = None):
    suffix = _without_eos(document.targets)
    assert suffix, "nothing to predict"
    return _without_mode(mode, _without_eos(document.inputs)) + suffix


def undo_copy(document):
    assert not document.inputs
    return document.targets


def undo_bags(document, bag_size: int):
    """Undoes token superposition: each slot has a bag, of which only the last may be smaller."""
    columns = document.columns
    assert not document.inputs
    rebuilt = []
    for slot, first in enumerate(document.targets):
        further = [columns[f"targets_bag_{k}"][slot] for k in range(2, bag_size + 1)]
        size = columns["targets_bag_sizes"][slot]
        assert size == bag_size or (1 <= size and slot + 1 == len(document.targets))
        assert not any(further[size - 1 :]), "tokens beyond the end of a bag"
        rebuilt += [first, *further[: size - 1]]
    return rebuilt


def _without_eos(tokens):
    assert tokens[-1] == IDS.eos, "end-of-sequence closes every stream of every document"
    return tokens[:-1]


def _without_mode(mode, tokens):
    if mode is None:
        return tokens
    assert tokens[0] == mode, "the mode token opens the inputs of every document"
    return tokens[1:]
