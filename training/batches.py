"""Rows for every step: cut from endless document streams, the same on any number of hosts.

Which member of a mixture a row belongs to is a function of its number alone, and each row takes
as many tokens as its member's raw length, so that no token is ever dropped and few slots are
padding. The stream of documents is split into logical shards; a process reads the shards whose
rows its devices hold. The position (what each shard has read, and what is left over of its last
document) is part of the training state.
"""

import io
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from objectives import Objective, Row, RowGroup, members_of
from training.data import DocumentStream, Piece
from training.mesh import batch_sharding

PERIOD = 840  # rows after which the order of members repeats; every count up to 8 divides it


class GroupSchedule(NamedTuple):
    """The rows of one row group in every step."""

    rows: int  # rows of this group in a step, over all processes
    members: np.ndarray  # i32[PERIOD]: member of the group's row number r is members[r % PERIOD]


def schedule(
    objective: Objective, groups: Sequence[RowGroup], batch_size: int, multiple: int
) -> tuple[GroupSchedule, ...]:
    """Shares `batch_size` rows out to the row groups by the rates of their members.

    Args:
      multiple: every group has a multiple of so many rows; at least 2, since rows come in pairs.

    Raises ValueError when the batch cannot be shared out so.
    """
    multiple = math.lcm(2, multiple)
    units, rest = divmod(batch_size, multiple)
    if rest or units < len(groups):
        raise ValueError(
            f"batch_size must be a multiple of {multiple} and at least "
            f"{multiple * len(groups)} ({multiple} rows for each of {len(groups)} row groups), "
            f"got {batch_size}: change batch_size, data_shards or the row groups."
        )
    rates = [member.rate for member in members_of(objective)]
    counts = largest_remainder([sum(rates[m] for m in group.members) for group in groups], units)
    return tuple(
        GroupSchedule(count * multiple, evenly([rates[m] for m in g.members], g.members))
        for count, g in zip(counts, groups)
    )


def largest_remainder(shares: Sequence[float], units: int) -> list[int]:
    """Whole numbers, each at least 1, that sum to `units` and are as near as can be to the shares.

    >>> largest_remainder([0.5, 0.3, 0.2], 8)
    [4, 2, 2]
    """
    ideal = np.array(shares) / np.sum(shares) * units
    counts = np.maximum(np.floor(ideal), 1).astype(int)
    while counts.sum() < units:
        counts[np.argmax(ideal - counts)] += 1
    while counts.sum() > units:
        counts[np.argmax(np.where(counts > 1, counts - ideal, -np.inf))] -= 1
    return counts.tolist()


def evenly(rates: Sequence[float], members: Sequence[int]) -> np.ndarray:
    """An order of PERIOD rows in which every member appears at its rate, spread out evenly."""
    rates = np.array(rates) / np.sum(rates)
    done = np.zeros(len(rates))
    order = np.empty(PERIOD, np.int32)
    for i in range(PERIOD):
        owed = np.argmax(np.round((i + 1) * rates - done, 9))
        done[owed] += 1
        order[i] = members[owed]
    return order


def with_end(piece: Piece, end_of_document: int | None) -> np.ndarray:
    """The piece's tokens, and after the last of a document `end_of_document`, if there is one.

    with_end(Piece([5, 6], True), 1) -> [5, 6, 1]
    with_end(Piece([5, 6], False), 1) -> [5, 6]
    """
    if not piece.ends or end_of_document is None:
        return piece.tokens
    return np.append(piece.tokens, np.int32(end_of_document))


class ShardReader:
    """Cuts the documents of one logical shard, one after another, into stretches of any length."""

    def __init__(self, stream: DocumentStream, end_of_document: int | None):
        self._stream = stream
        self._end = end_of_document
        self._left = np.zeros(0, np.int32)

    def take(self, n: int) -> np.ndarray:
        pieces, have = [self._left], self._left.size
        while have < n:
            pieces.append(with_end(self._stream.next_document(), self._end))
            have += pieces[-1].size
        tokens = np.concatenate(pieces)
        self._left = tokens[n:]
        return tokens[:n]

    def state(self) -> dict[str, np.ndarray]:
        return {"left": self._left} | {f"stream.{k}": v for k, v in self._stream.state().items()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        self._left = np.asarray(state["left"], np.int32)
        self._stream.restore(
            {k.removeprefix("stream."): v for k, v in state.items() if k != "left"}
        )


class Batches:
    """An endless iterator over steps: for every row group a `Row` batch, spread over the mesh."""

    def __init__(
        self,
        open_shard: Callable[[int, int], DocumentStream],
        groups: Sequence[RowGroup],
        schedules: Sequence[GroupSchedule],
        *,
        data_shards: int,
        mesh: Mesh,
        end_of_document: int | None = None,
    ):
        self._groups, self._schedules, self._shards = groups, schedules, data_shards
        self._sharding = batch_sharding(mesh)
        self._readers = {
            shard: ShardReader(open_shard(shard, data_shards), end_of_document)
            for shard in sorted(self._shards_of(jax.process_index()))
        }
        self.step = 0

    def __iter__(self):
        return self

    def __next__(self) -> tuple[Row, ...]:
        blocks = {shard: self._read(shard) for shard in self._readers}
        self.step += 1
        return tuple(
            Row(*(self._spread(parts, schedule.rows) for parts in _transposed(blocks, g)))
            for g, schedule in enumerate(self._schedules)
        )

    def state(self) -> dict[str, bytes]:
        """The position of every shard that this process is the first to hold, by file name."""
        earlier = set().union(*map(self._shards_of, range(jax.process_index())))
        mine = [s for s in self._readers if s not in earlier]
        return {f"shard_{s:05d}.npz": _to_bytes(self._readers[s].state()) for s in mine}

    def restore(self, step: int, read: Callable[[str], bytes]) -> None:
        """Goes on after `step` steps; `read(name)` gives what `state` had under that name."""
        for shard, reader in self._readers.items():
            reader.restore(_from_bytes(read(f"shard_{shard:05d}.npz")))
        self.step = step

    def _read(self, shard: int) -> list[Row]:
        """This shard's block of rows in every group."""
        rows = []
        for group, schedule in zip(self._groups, self._schedules):
            size = schedule.rows // self._shards
            # One row on after every full cycle, so that no shard serves the same members for ever.
            cycles = self.step // (PERIOD // math.gcd(schedule.rows, PERIOD))
            numbers = self.step * schedule.rows + cycles + shard * size + np.arange(size)
            members = schedule.members[numbers % PERIOD]
            lengths = dict(zip(group.members, group.raw_lengths))
            stretches = [self._readers[shard].take(lengths[m]) for m in members]
            rows.append(rows_of(stretches, members, group.row_length))
        return rows

    def _spread(self, blocks: dict[int, np.ndarray], rows: int) -> jax.Array:
        shape = (rows,) + next(iter(blocks.values())).shape[1:]

        def local(index):
            owners = self._owners(index[0], rows)
            joined = np.concatenate([blocks[shard] for shard in owners])
            start, stop, _ = index[0].indices(rows)
            before = owners[0] * (rows // self._shards)
            return joined[start - before : stop - before]

        return jax.make_array_from_callback(shape, self._sharding, local)

    def _shards_of(self, process: int) -> set[int]:
        shards = set()
        for schedule in self._schedules:
            placement = self._sharding.devices_indices_map((schedule.rows,))
            for device, (index,) in placement.items():
                if device.process_index == process:
                    shards |= set(self._owners(index, schedule.rows))
        return shards

    def _owners(self, index: slice, rows: int) -> range:
        """The shards in whose blocks these rows, of so many, lie."""
        size = rows // self._shards
        start, stop, _ = index.indices(rows)
        return range(start // size, -(-stop // size))


def _transposed(blocks: dict[int, list[Row]], group: int) -> list[dict[int, np.ndarray]]:
    """For each field of a row, the shards' blocks of it."""
    return [{shard: rows[group][f] for shard, rows in blocks.items()} for f in range(3)]


def rows_of(stretches: Sequence[np.ndarray], members, length: int) -> Row:
    """Rows padded to one length; each stretch of tokens is one segment, an empty one none."""
    tokens = np.zeros((len(stretches), length), np.int32)
    segments = np.zeros((len(stretches), length), np.int32)
    for i, stretch in enumerate(stretches):
        tokens[i, : stretch.size] = stretch
        segments[i, : stretch.size] = 1
    return Row(tokens, segments, np.asarray(members, np.int32))


def _to_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _from_bytes(data: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(data)) as arrays:
        return dict(arrays)
