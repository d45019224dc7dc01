"""Cuts the rows of every step from endless document streams, independent of the number of hosts.

A row's number determines its member of the mixture. Each row takes as much text as its member's
limits allow (`data.packing`), so no token is dropped and few slots are padding.

The stream of documents is split into logical shards, and each process reads the shards of its
devices' rows. The data position, a part of the training state, has the position in each shard, and
the pieces that wait for a row.
"""

import collections
import functools
import io
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from ..data.corpus import DocumentStream, Progress, state_within
from ..data.packing import Packing, ShardReader, stacked
from ..objectives import Member, Objective, Row, RowGroup, members_of
from ..objectives.contract import is_scheduled, value_at
from .devices.mesh import batch_sharding

PERIOD = 840  # period of the order of members, in rows: a multiple of 1 to 8


class GroupSchedule(NamedTuple):
    """The number of rows of one row group in every step, and their members."""

    rows: int  # number of rows of this group in a step, over all processes
    members: tuple[int, ...]  # indices of the members that share the rows
    rates: tuple  # rates of the members, see `objectives.Member`
    steps: int = 1  # number of steps of the run, for progress schedules
    separate_steps: bool = False  # whether all rows of a step belong to one member

    def order(self, step: int) -> np.ndarray:
        """Returns i32[PERIOD]: row number r of the group belongs to member order[r % PERIOD]."""
        rates = tuple(float(value_at(rate, step, self.steps)) for rate in self.rates)
        return balanced_order(rates, self.members)

    def share(self, member: int, step: int = 0) -> float:
        """Returns the member's share of the group's rows."""
        return float((self.order(step) == member).mean())

    def member_of_step(self, step: int) -> int:
        """Returns the member of all rows of a step.

        Raises ValueError if several members have rows.
        """
        members = sorted(set(self.order(step).tolist()))
        if len(members) > 1:
            raise ValueError(
                f"The members {members} share the rows of step {step}, expected one member, since "
                "the mixture has separate_steps=True: change the members' rates."
            )
        return members[0]

    def restricted_to(self, member: int) -> "GroupSchedule":
        """Returns the schedule in which one member has all rows."""
        return self._replace(members=(member,), rates=(1.0,), separate_steps=False)

    def step_shares(self) -> dict[int, float]:
        """Returns each member's share of the steps, if each step has one member.

        In a long run, evenly spaced steps are sampled.
        """
        counted = range(0, self.steps, max(self.steps // PERIOD, 1))
        counts = collections.Counter(map(self.member_of_step, counted))
        return {member: count / len(counted) for member, count in sorted(counts.items())}


def group_schedules(
    objective: Objective,
    groups: Sequence[RowGroup],
    batch_size: int,
    multiple: int,
    steps: int = 1,
) -> tuple[GroupSchedule, ...]:
    """Divides `batch_size` rows among the row groups by the rates of their members.

    Args:
      multiple: the rows of every group are a multiple of this number, and of 2, since rows come in
        pairs.

    Raises ValueError if the batch cannot be divided in this way.
    """
    multiple = math.lcm(2, multiple)
    units, rest = divmod(batch_size, multiple)
    if rest or units < len(groups):
        raise ValueError(
            f"batch_size must be a multiple of {multiple} and at least "
            f"{multiple * len(groups)} ({multiple} rows for each of {len(groups)} row groups), "
            f"got {batch_size}: change --gin.training.Run.batch_size, .data_shards or the row "
            "groups (.sequence_lengths)."
        )
    rates = [member.rate for member in members_of(objective)]
    if len(groups) > 1 and any(map(is_scheduled, rates)):
        raise ValueError(
            "The rates of the mixture follow a schedule, which needs a single row group, got "
            f"{len(groups)}: give one sequence length."
        )
    shares = [sum(value_at(rates[m], 0, steps) for m in group.members) for group in groups]
    counts = largest_remainder(shares, units) if len(groups) > 1 else [units]
    schedules = tuple(
        GroupSchedule(
            rows=count * multiple,
            members=group.members,
            rates=tuple(rates[m] for m in group.members),
            steps=steps,
            separate_steps=objective.facts.separate_steps,
        )
        for count, group in zip(counts, groups)
    )
    if not any(map(is_scheduled, rates)):
        for group_schedule, share in zip(schedules, shares):
            _check_shares(group_schedule, share / sum(shares), batch_size, members_of(objective))
    return schedules


def member_of_step(schedules: Sequence[GroupSchedule], step: int) -> int | None:
    """Returns the member of all rows of a step, or None if members may share the step."""
    # Rates that follow a schedule have a single row group.
    first = schedules[0]
    return first.member_of_step(step) if first.separate_steps else None


def _check_shares(
    schedule: GroupSchedule, planned: float, batch_size: int, members: Sequence[Member]
) -> None:
    """Raises ValueError for a constant rate so low that its member gets no rows.

    Warns if the share of rows of the row group or of a member differs from its rates. `planned` is
    the share that the rates give the row group.
    """
    actual = schedule.rows / batch_size
    if abs(actual - planned) > planned / 5:
        names = ", ".join(repr(members[number].name) for number in schedule.members)
        warnings.warn(
            f"The rates of {names} give a share of {planned:.2g} of all rows, but the row group "
            f"gets {schedule.rows} of {batch_size} rows ({actual:.2g}), since its rows are whole "
            "multiples. Raise batch_size, or let the members share a row group "
            "(.sequence_lengths).",
            stacklevel=2,
        )
    for number, rate in zip(schedule.members, schedule.rates):
        planned = rate / sum(schedule.rates)
        actual = schedule.share(number)
        got = f"The rate of {members[number].name!r} is {planned:.2g} of its row group's rows,"
        if not actual:
            raise ValueError(
                f"{got} expected at least 1 of {PERIOD}: raise it, or leave the member out."
            )
        if abs(actual - planned) > planned / 10:
            rounded = f"of which it gets {actual:.2g}: rates are rounded to whole rows of {PERIOD}."
            warnings.warn(f"{got} {rounded}", stacklevel=2)


def largest_remainder(shares: Sequence[float], units: int) -> list[int]:
    """Returns whole numbers, each at least 1, that sum to `units` and are closest to the shares.

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


@functools.lru_cache(maxsize=256)
def balanced_order(rates: tuple[float, ...], members: tuple[int, ...]) -> np.ndarray:
    """Returns an order of PERIOD rows in which every member appears evenly, at its rate.

    Raises ValueError if a rate is below 0 or no rate is above 0.
    """
    if min(rates) < 0 or not 0 < sum(rates) < math.inf:
        raise ValueError(
            f"Got the rates {list(rates)} for the mixture's members {list(members)}, expected "
            "none below 0 and some above: change the schedule of the rates."
        )
    shares = np.array(rates) / np.sum(rates)
    done = np.zeros(len(shares))
    order = np.empty(PERIOD, np.int32)
    for i in range(PERIOD):
        owed = np.argmax(np.round((i + 1) * shares - done, 9))
        done[owed] += 1
        order[i] = members[owed]
    return order


class Batches:
    """An endless iterator over steps, which yields the sharded rows of every row group."""

    def __init__(
        self,
        open_shards: Sequence[Callable[[int, int], DocumentStream]],
        groups: Sequence[RowGroup],
        schedules: Sequence[GroupSchedule],
        *,
        data_shards: int,
        mesh: Mesh,
        packing: Packing,
        member_sources: Sequence[int] = (),
    ):
        """Opens the streams of the shards that this process reads.

        Args:
          open_shards: one function (shard, number of shards) -> stream for each text.
          member_sources: the index of each member's text. Empty: all members read the first text.
        """
        self._groups = groups
        self._schedules = schedules
        self._shards = data_shards
        self._sources = member_sources or [0] * len(packing.limits)
        self._sharding = batch_sharding(mesh)
        rows_of_a_step = sum(schedule.rows for schedule in schedules) // data_shards

        def open_reader(open_shard: Callable, shard: int) -> ShardReader:
            stream = open_shard(shard, data_shards)
            return ShardReader(stream, packing, rows_of_a_step)

        # shard -> one reader for each text
        self._readers = {
            shard: [open_reader(open_shard, shard) for open_shard in open_shards]
            for shard in sorted(self._shards_of(jax.process_index()))
        }
        self.step = 0

    def __iter__(self):
        return self

    def __next__(self) -> tuple[Row, ...]:
        shard_rows = [self._read(shard) for shard in self._readers]
        self.step += 1
        return tuple(
            jax.tree.map(functools.partial(self._spread, schedule.rows), *blocks)
            for schedule, blocks in zip(self._schedules, zip(*shard_rows))
        )

    def state(self) -> dict[str, bytes]:
        """Returns the data position of the shards that this process saves, by file name."""
        return self.position()()

    def position(self) -> Callable[[], dict[str, bytes]]:
        """Returns a function that can return the current state at any later time.

        The returned function does the work.
        """
        positions = {
            shard: [reader.position() for reader in readers]
            for shard, readers in self._readers.items()
        }

        def state_of(shard: int) -> dict[str, np.ndarray]:
            arrays = {"data_shards": np.array(self._shards)}
            for source, position in enumerate(positions[shard]):
                arrays |= {f"{source}.{name}": x for name, x in position().items()}
            return arrays

        def state() -> dict[str, bytes]:
            earlier = set().union(*map(self._shards_of, range(jax.process_index())))
            return {_file(s): _to_bytes(state_of(s)) for s in positions if s not in earlier}

        return state

    def restore(self, step: int, read: Callable[[str], bytes]) -> None:
        """Continues after `step` steps. `read(name)` returns the file `name` of `state`.

        Raises ValueError for positions of another corpus. Also raises ValueError for another number
        of shards, if the corpus cannot be resharded.
        """

        def state_of(shard: int) -> dict[str, np.ndarray]:
            with np.load(io.BytesIO(read(_file(shard)))) as arrays:
                return dict(arrays)

        saved = int(state_of(0)["data_shards"])
        same = saved == self._shards
        states = {shard: state_of(shard) for shard in (self._readers if same else range(saved))}
        for shard, readers in self._readers.items():
            for source, reader in enumerate(readers):
                source_states = {
                    k: state_within(state, f"{source}.") for k, state in states.items()
                }
                if same:
                    reader.restore(source_states[shard])
                else:
                    reader.reshard(list(source_states.values()), shard, self._shards)
        self.step = step

    def skip(self, count: int) -> None:
        """Skips the batches of the next `count` steps."""
        step = self.step
        for _ in range(count):
            for shard in self._readers:
                self._read(shard)
            self.step += 1
        self.step = step

    def progress(self) -> dict[str, float]:
        """Returns each store's share of the tokens read, and its number of epochs.

        {"data/web/share": 0.7, "data/web/epochs": 0.02, "data/books/share": 0.3, …}

        These metrics of token stores cover the shards of this process since the run began.
        Documents that wait for a row do not count for epochs.
        """
        readers = [reader for shard in self._readers.values() for reader in shard]
        stores: dict[str, list[Progress]] = {}  # store -> progress of each shard
        for reader in readers:
            for name, progress in reader.progress().items():
                stores.setdefault(name, []).append(progress)
        total = sum(shard.tokens for shards in stores.values() for shard in shards)
        waiting = sum(reader.waiting_tokens() for reader in readers) if total else 0
        in_rows = max(1 - waiting / max(total, 1), 0)
        metrics = {}
        for name, shards in stores.items():
            tokens = sum(shard.tokens for shard in shards)
            metrics[f"data/{name}/share"] = tokens / max(total, 1)
            epochs = sum(shard.epochs for shard in shards) / len(shards)
            metrics[f"data/{name}/epochs"] = in_rows * epochs
        return metrics

    def _read(self, shard: int) -> list[Row]:
        rows = []
        readers = self._readers[shard]
        for reader in readers:
            reader.begin_step(self.step)
        for group, schedule in zip(self._groups, self._schedules):
            size = schedule.rows // self._shards
            # Numbers shift by one row after every cycle, so that members rotate over the shards.
            cycles = self.step // (PERIOD // math.gcd(schedule.rows, PERIOD))
            numbers = self.step * schedule.rows + cycles + shard * size + np.arange(size)
            members = schedule.order(self.step)[numbers % PERIOD].tolist()
            packed = [readers[self._sources[member]].row(member) for member in members]
            rows.append(stacked(packed, self._row_length(group, schedule)))
        return rows

    def _row_length(self, group: RowGroup, schedule: GroupSchedule) -> int:
        if not schedule.separate_steps:
            return group.row_length
        return group.raw_length(schedule.member_of_step(self.step))

    def _spread(self, rows: int, *blocks: np.ndarray) -> jax.Array:
        """Returns the rows of a step, sharded over the mesh, from the blocks of this process."""
        shape = (rows,) + blocks[0].shape[1:]
        by_shard = dict(zip(self._readers, blocks))

        def local(index):
            owners = self._owners(index[0], rows)
            joined = np.concatenate([by_shard[shard] for shard in owners])
            start, stop, _ = index[0].indices(rows)
            before = owners[0] * (rows // self._shards)
            return joined[start - before : stop - before]

        return jax.make_array_from_callback(shape, self._sharding, local)

    def _shards_of(self, process: int) -> set[int]:
        shards = set()
        for schedule in self._schedules:
            placement: Any = self._sharding.devices_indices_map((schedule.rows,))
            for device, (index,) in placement.items():
                if device.process_index == process:
                    shards |= set(self._owners(index, schedule.rows))
        return shards

    def _owners(self, index: slice, rows: int) -> range:
        """Returns the shards whose blocks contain the rows of `index`, out of `rows` rows."""
        size = rows // self._shards
        start, stop, _ = index.indices(rows)
        return range(start // size, -(-stop // size))


def _file(shard: int) -> str:
    return f"shard_{shard:05d}.npz"


def _to_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # the stub mistakes them for allow_pickle
    return buffer.getvalue()
