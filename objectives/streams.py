"""Streams: named parts of features, and how each layout arranges them.

    register_stream(Stream("types", ("inputs_types",), in_use="inputs_segments", arranged={…}))

`objectives.layouts` registers common streams. Register the stream of a single objective next to
that objective. An objective's `lengths` returns the number of slots of each of its streams, and its
`corrupt` returns their columns.
"""

import graphlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from ..constraints import near
from .contract import Array, Requirement

NOTHING: Mapping = MappingProxyType({})


class Layout(NamedTuple):
    """Maps an objective's lengths to a model's lengths, and its features to the model's batch.

    Attributes:
      lengths: function of an objective's lengths that returns the number of slots of the model's
        stacks, {"encoder": …, "decoder": …}. "predict" is the number of slots that reach the
        vocabulary projection, if not all do. "copies" is the number of noised copies of decoder
        slots, and "predicted_copies" the number of copies that reach the vocabulary projection.
      arrange: (features of one row, stack lengths, ids.bos, max_documents) -> the model's batch of
        the row.
    """

    lengths: Callable[[dict[str, int]], dict[str, int]]
    arrange: Callable


class StackRow(NamedTuple):
    """One row as a layout arranges it, for the functions of streams.

    In a single stack, the targets of a document follow its inputs. For an encoder-decoder, the
    fields after `lengths` are None.

    Attributes:
      stack: the layout: "encoder", "decoder" or "encoder_decoder".
      features: the objective's features; missing columns are i32[0].
      lengths: number of slots of each of the model's stacks.
      documents: `DocumentRanges` of the stack.
      input_documents: `DocumentRanges` of the stream `inputs`.
      segments: i32[T] segment ids of the stack's slots.
      place: (column of inputs, column of targets) -> i32[T], the column of the stack's slots.
      shift_right: column of targets -> the same column one slot later in each document, after bos:
        the decoder's inputs.
      input_slot: i32[I] the slot of each input in the stack.
    """

    stack: str
    features: dict[str, Array]
    lengths: dict[str, int]
    documents: Any = None
    input_documents: Any = None
    segments: Array = None
    place: Any = None
    shift_right: Any = None
    input_slot: Array = None

    def place_inputs(self, column: str) -> Array:
        """Returns a column of inputs arranged in the stack: i32[T], with 0 for targets."""
        return self.place(self.features[column], jnp.zeros_like(self.features["targets"]))

    def place_targets(self, column: str) -> Array:
        """Returns a column of targets arranged in the stack: i32[T], with 0 for inputs."""
        return self.place(jnp.zeros_like(self.features["inputs"]), self.features[column])


def unchanged(row: StackRow, batch: dict[str, Array]) -> dict[str, Array]:
    """Adds nothing, for a stream that the layout reads."""
    return {}


class Stream(NamedTuple):
    """A stream of features: columns of an objective with the same number of slots.

    The suffix of an array's name determines its use.

    Columns of features:

    - `…_segments` has segment ids, which are above 0 in the slots of a document. If documents are
      corrupted one by one, `packed_rows` adds an offset to the ids of each document.

    Arrays of the model's batch, which the functions in `arranged` return:

    - `…_weights`, [rows, slots], has loss weights. `mixtures` sets them to 0 in other members'
      rows.
    - `…_loss_weights` has integers. If rows have weights, the integers are thousandths, and
      `token_weights.in_units` makes them floats.
    - `…_segment_ids`, [rows, slots], is above 0 in slots with a token. The non-padding fraction and
      the weights of router terms count these slots.
    """

    name: str
    about: str  # description, for messages and the documentation
    columns: tuple[str, ...]
    # The column that is above 0 in used slots, or "". If the column belongs to another stream, such
    # as "targets_segments", both streams have the same slots.
    in_use: str = ""
    per_document: bool = False  # whether each document has a fixed number of slots
    # Kind of values of each column with token ids or numbers of input slots, whose ranges the laws
    # check. `packed_rows` adds the number of inputs of earlier documents to the numbers of slots. A
    # "label" is an id if the objective has a head over the vocabulary.
    values: Mapping[str, Literal["id", "id + 1", "label", "slot"]] = NOTHING
    # For each layout that supports the stream, a function (StackRow, batch) -> {name: array} whose
    # results are added to the model's batch or replace its columns.
    arranged: Mapping[str, Callable] = NOTHING
    # Names of streams whose functions run first, since this stream reads or replaces their columns.
    after: tuple[str, ...] = ()
    # Slots of additional arrays of a single stack: slots of the stack -> {name: slots}.
    more_slots: Callable[[int], dict[str, int]] | None = None
    # Layouts that replace the default layouts if the stream is present.
    replaced: Mapping[str, Layout] = NOTHING
    requires: tuple[Requirement, ...] = ()  # requirements on models that read the stream


STREAMS: dict[str, Stream] = {}


def register_stream(stream: Stream) -> Stream:
    """Registers a stream with layouts, laws and SeqIO tasks, and returns it.

    Registering the same stream again is allowed, for example if a module is loaded twice.

    Raises ValueError if another stream has one of its columns, or the same name.
    """
    stream_of = stream_of_columns()
    for column in stream.columns:
        owner = stream_of.get(column, stream)
        if owner.name != stream.name:
            raise ValueError(
                f"The stream {stream.name!r} has the column {column!r}, which belongs to the "
                f"stream {owner.name!r}: give the column another name."
            )
    if stream.name in STREAMS and STREAMS[stream.name].columns != stream.columns:
        raise ValueError(
            f"A stream {stream.name!r} is registered with the columns "
            f"{STREAMS[stream.name].columns}, got {stream.columns}: give the new stream another "
            "name."
        )
    STREAMS[stream.name] = stream
    return stream


def register_target_stream(
    name: str, about: str, columns: tuple[str, ...], arrange: Callable, **fields: Any
) -> Stream:
    """Registers and returns a stream for decoders, with a slot for each target.

    Args:
      arrange: the function of `Stream.arranged` for decoders.
      fields: other fields of `Stream`.
    """
    arranged = {"decoder": arrange}
    stream = Stream(name, about, columns, in_use="targets_segments", arranged=arranged, **fields)
    return register_stream(stream)


def stream_of_columns() -> dict[str, Stream]:
    """Returns the stream of each column, in the order of registration."""
    return {column: stream for stream in STREAMS.values() for column in stream.columns}


def slots_of(stream: Stream) -> str:
    """Returns the name of the stream whose slots this stream describes, possibly itself.

    >>> slots_of(STREAMS["types"]), slots_of(STREAMS["labels"])
    ('inputs', 'labels')
    """
    return stream_of_columns().get(stream.in_use, stream).name


def streams_named(names) -> list[Stream]:
    """Returns the streams with these names, in the order of registration."""
    return [stream for name, stream in STREAMS.items() if name in names]


def streams_of(features) -> list[Stream]:
    """Returns the streams of these features, in the order of registration."""
    return [stream for stream in STREAMS.values() if stream.columns[0] in features]


def append_row(batch: Mapping[str, Array], name: str, values: Array) -> dict[str, Array]:
    """Returns {name: array} with `values` appended as a row; the array may not exist yet."""
    rows = values[None]
    return {name: jnp.concatenate([batch[name], rows]) if name in batch else rows}


def sorted_streams(streams: Sequence[Stream]) -> list[Stream]:
    """Returns streams in the order in which their functions run, see `Stream.after`.

    >>> [s.name for s in sorted_streams([STREAMS["noised"], STREAMS["orders"]])]
    ['orders', 'noised']
    """
    known = {stream.name: stream for stream in streams}
    before = {name: known.keys() & stream.after for name, stream in known.items()}
    return [known[name] for name in graphlib.TopologicalSorter(before).static_order()]


def per_document_streams() -> set[str]:
    """Returns the streams in which every document of a row has its own slots."""
    return {name for name, stream in STREAMS.items() if stream.per_document}


def check_features(features: dict, lengths: dict[str, int]) -> None:
    """Raises ValueError for a row's features that differ from the planned `lengths`.

    Args:
      features: arrays, or their shapes and types.
    """
    stream_of = stream_of_columns()
    for name, x in features.items():
        if name not in stream_of:
            raise ValueError(unknown_name("feature", name, stream_of))
        slots = lengths.get(stream_of[name].name)
        if slots is None:
            raise ValueError(
                f"The feature {name!r} belongs to the stream {stream_of[name].name!r}, for which "
                "`lengths` returns no slots: add the stream to `lengths`."
            )
        if tuple(x.shape) != (slots,):
            raise ValueError(
                f"The feature {name!r} has the shape {list(x.shape)}, expected [{slots}]."
            )
        if x.dtype != jnp.int32:
            raise ValueError(f"The feature {name!r} has the dtype {x.dtype}, expected int32.")
    for stream in streams_named({stream_of[name].name for name in features}):
        missing = [name for name in stream.columns if name not in features]
        if missing:
            raise ValueError(
                f"The features of the stream {stream.name!r} lack {missing}, expected all of "
                f"{list(stream.columns)}."
            )


def unknown_name(what: str, name: str, known) -> str:
    """Returns a message about an unknown name, with the nearest known name."""
    hint = near(name, known, f": expected some of {sorted(known)}.")
    return f"There is no {what} named {name!r}{hint}"


def with_missing_streams(features: dict, lengths: dict[str, int]) -> dict:
    """Returns the features, with missing streams of `lengths` added as padding."""
    blank = {
        column: jnp.zeros(lengths[stream.name], jnp.int32)
        for stream in streams_named(lengths)
        for column in stream.columns
    }
    return blank | features
