"""Streams: the named parts of features, and how each layout arranges them.

    register(Stream("types", ("inputs_types",), in_use="inputs_segments", arranged={…}))

A stream is registered where it lives: those that many objectives give are in `objectives.layouts`,
one that a single objective gives is next to that objective, and one of yours is in your own file.
An objective's `lengths` gives the slots of each of its streams, and its `corrupt` the columns.
"""

import difflib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp

from .model_requirements import Requirement

Array = Any  # a NumPy or JAX array
NOTHING: Mapping = MappingProxyType({})


class Layout(NamedTuple):
    """Maps the lengths and features of an objective to those of a model."""

    # an objective's lengths -> slots of the model's stacks, {"encoder": …, "decoder": …}; "copies",
    # noised ones of the decoder's slots, where it has some; and "predict", the slots that reach the
    # vocabulary projection, where those are fewer
    lengths: Callable[[dict[str, int]], dict[str, int]]
    # (features of one row, stack lengths, ids.bos, max_documents) -> features for the model
    arrange: Callable


class StackRow(NamedTuple):
    """One row as a layout arranges it: what the function of a stream is given.

    In a single stack a document's inputs are followed by its targets. The stacks of an
    encoder-decoder have one of the two each; in its layout the fields after `lengths` are None.
    """

    stack: str  # the layout: "encoder", "decoder" or "encoder_decoder"
    features: dict[str, Array]  # of the objective; columns that it does not give are i32[0]
    lengths: dict[str, int]  # slots of the model's stacks
    documents: Any = None  # `Documents` of the stack
    given: Any = None  # and of the stream `inputs`
    segments: Array = None  # i32[T] segment ids of the stack's slots
    # (columns of inputs, columns of targets) -> i32[T] of the stack's slots
    in_stack: Any = None
    # targets -> what the slots that predict them are given: each target one slot later
    shifted: Any = None
    input_slot: Array = None  # i32[I] the slot of each input in the stack

    def place_inputs(self, column: str) -> Array:
        """Returns a column of inputs by slots of the stack: i32[T], 0 in slots of targets."""
        return self.in_stack(self.features[column], jnp.zeros_like(self.features["targets"]))

    def place_targets(self, column: str) -> Array:
        """Returns a column of targets by slots of the stack: i32[T], 0 in slots of inputs."""
        return self.in_stack(jnp.zeros_like(self.features["inputs"]), self.features[column])


def unchanged(row: StackRow, batch: dict[str, Array]) -> dict[str, Array]:
    """Adds nothing: the function of a stream that the layout itself reads."""
    return {}


class Stream(NamedTuple):
    """A stream of features: the columns that an objective gives, of equally many slots."""

    name: str
    about: str  # what it gives, for messages and the documentation
    columns: tuple[str, ...]
    # The column that is above 0 in the slots in use; "": there is none. If the column is of another
    # stream, such as "targets_segments", the stream has one slot for each slot of that stream.
    in_use: str = ""
    per_document: bool = False  # every document of a row has separate slots, whatever its length
    # For each layout that has a place for the stream, what it adds to or changes of the model's
    # batch: (StackRow, batch) -> {name: array}, in the order in which streams were registered.
    arranged: Mapping[str, Callable] = NOTHING
    # Slots of more arrays of a single stack, from those of the stack: slots -> {name: slots}.
    more_slots: Callable[[int], dict[str, int]] | None = None
    # Layouts that arrange everything in their own way where the stream is there.
    replaced: Mapping[str, Layout] = NOTHING
    requires: tuple[Requirement, ...] = ()  # of the models that are given the stream


STREAMS: dict[str, Stream] = {}


def register(stream: Stream) -> Stream:
    """Makes a stream known to layouts, laws and SeqIO tasks, and returns it.

    The same stream may be registered again, as by a module that is loaded twice.

    Raises ValueError for a column that another stream has.
    """
    stream_of = stream_of_columns()
    for column in stream.columns:
        owner = stream_of.get(column, stream)
        if owner.name != stream.name:
            raise ValueError(
                f"The stream {stream.name!r} has the column {column!r}, which is one of the stream "
                f"{owner.name!r}: give it another name."
            )
    if stream.name in STREAMS and STREAMS[stream.name].columns != stream.columns:
        raise ValueError(
            f"There is a stream {stream.name!r} with the columns {STREAMS[stream.name].columns}, "
            f"got one with {stream.columns}: give it another name."
        )
    STREAMS[stream.name] = stream
    return stream


def stream_of_columns() -> dict[str, Stream]:
    """Returns the stream of each column, in the order of registration."""
    return {column: stream for stream in STREAMS.values() for column in stream.columns}


def slots_of(stream: Stream) -> str:
    """Returns the name of the stream that has the slots which this stream describes.

    >>> slots_of(STREAMS["types"]), slots_of(STREAMS["labels"])
    ('inputs', 'labels')
    """
    return stream_of_columns().get(stream.in_use, stream).name


def named(names) -> list[Stream]:
    """Returns the streams among some names, in the order of registration."""
    return [stream for name, stream in STREAMS.items() if name in names]


def present(features) -> list[Stream]:
    """Returns the streams of these features, in the order of registration."""
    return [stream for stream in STREAMS.values() if stream.columns[0] in features]


def per_document() -> set[str]:
    """Returns the streams of which every document of a row has separate slots."""
    return {name for name, stream in STREAMS.items() if stream.per_document}


def check_features(features: dict, lengths: dict[str, int]) -> None:
    """Raises ValueError for a row's features that differ from the planned `lengths`.

    Args:
      features: arrays, or their shapes and types.
    """
    stream_of = stream_of_columns()
    for name, x in features.items():
        if name not in stream_of:
            raise ValueError(unknown("feature", name, stream_of))
        slots = lengths.get(stream_of[name].name)
        if slots is None:
            raise ValueError(
                f"The feature {name!r} is of the stream {stream_of[name].name!r}, which `lengths` "
                "does not give slots."
            )
        if tuple(x.shape) != (slots,):
            raise ValueError(
                f"The feature {name!r} is of shape {list(x.shape)}, expected [{slots}]."
            )
        if x.dtype != jnp.int32:
            raise ValueError(f"The feature {name!r} is of {x.dtype}, expected int32.")
    for stream in named({stream_of[name].name for name in features}):
        missing = [name for name in stream.columns if name not in features]
        if missing:
            raise ValueError(
                f"The stream {stream.name!r} has features, and {missing} are not among them."
            )


def unknown(what: str, name: str, known) -> str:
    """Returns the message for an unknown name, with the nearest known one."""
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected some of {sorted(known)}."
    return f"There is no {what} named {name!r}: {hint}"


def complete(features: dict, lengths: dict[str, int]) -> dict:
    """Returns the features with streams of `lengths` that they lack added as padding."""
    blank = {
        column: jnp.zeros(lengths[stream.name], jnp.int32)
        for stream in named(lengths)
        for column in stream.columns
    }
    return blank | features
