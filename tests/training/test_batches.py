"""Rows for every step: their order, members and position do not depend on how they are read."""

import functools
import io

import jax
import numpy as np
import pytest

from pretrax.data.packing import POOL, ShardReader
from pretrax.data.records import RecordStream, Shuffled
from pretrax.objectives import layouts, mixture, prefix_lm, row_groups, span_corruption, turns
from pretrax.training.batches import (
    PERIOD,
    Batches,
    GroupSchedule,
    balanced_order,
    group_schedules,
    largest_remainder,
)
from tests.data.stores import Numbers
from tests.refusals import refuses, warns
from tests.training import tiny
from tests.training.small_batches import assert_same, batches, setup, steps

EOS = 1


def test_shard_rows_start_with_the_oldest_pooled_document_and_lose_no_token():
    """The rows of a step are the blocks of the shards in order, one row group after another."""
    plan = setup(mark_document_ends=True)
    groups, schedules, shards = plan.recipe.groups, plan.schedules, 8
    taken = {shard: [] for shard in range(shards)}
    for step in steps(batches(plan, tiny.mesh_of(1)), 5):
        for shard in range(shards):
            for rows, scheduled, group in zip(step, schedules, groups):
                size = scheduled.rows // shards
                block = jax.tree.map(lambda x: x[shard * size : (shard + 1) * size], rows)  # noqa: B023
                for tokens, segments, member in zip(*block[:3]):
                    n = dict(zip(group.members, group.raw_lengths))[member]
                    np.testing.assert_array_equal(segments, np.arange(group.row_length) < n)
                    assert not tokens[n:].any()
                    taken[shard].append(tokens[:n])
    for shard in range(shards):
        stream, pool = tiny.Stream(shard, shards), []

        def read(stream=stream):
            piece = stream.next_document()
            return [*piece.tokens.tolist(), *[EOS] * piece.ends_document]

        for tokens in taken[shard]:
            pool += [read() for _ in range(POOL - len(pool))]
            text = pool.pop(0)
            while len(text) < tokens.size:
                text += read()
            assert text[: tokens.size] == tokens.tolist()
            if rest := text[tokens.size :]:
                pool.append(rest)


class LongStream(tiny.Stream):
    """A stream with the same documents, each 3,000 tokens long."""

    def next_document(self):
        piece = super().next_document()
        return piece._replace(tokens=np.full(3000, piece.tokens[0]))


@pytest.mark.parametrize("pool", [1, 256])
@pytest.mark.parametrize("packing", ["concatenate", "isolate", "whole", "single"])
def test_rows_of_a_step_come_from_different_documents(packing, pool, monkeypatch):
    monkeypatch.setattr("pretrax.data.packing.POOL", pool)
    plan = setup(packing=packing, data_shards=3)
    settings = {"data_shards": 3, "stream": LongStream}
    for step in steps(tiny.batches(plan, tiny.mesh_of(1), **settings), 20):
        seen = [set(row[row > 0].tolist()) for group in step for row in np.asarray(group.tokens)]
        assert len(seen) == 48
        assert len(set().union(*seen)) == sum(map(len, seen))  # no document is in two rows


def test_members_follow_their_rates_by_row_number():
    objective = mixture(tiny.IDS, {"span": (span_corruption, 5), "prefix": (prefix_lm, 2)})
    plan = tiny.plan(tiny.decoder(), objective, {"decoder": 32}, batch_size=24)
    members = [s[0].member for s in steps(batches(plan, tiny.mesh_of(1)), PERIOD // 24)]
    for step, got in enumerate(members):
        numbers = step * 24 + np.arange(24)
        np.testing.assert_array_equal(got, plan.schedules[0].order(0)[numbers % PERIOD])
        assert abs(np.mean(got == 0) - 5 / 7) <= 1 / 24  # in every step, as exactly as possible
    assert np.sum(np.concatenate(members) == 0) == PERIOD * 5 // 7


@pytest.mark.slow
def test_every_member_reads_every_shard():
    """This holds even if the members' period divides the rows of a step."""
    objective = mixture(tiny.IDS, {"span": (span_corruption, 3), "prefix": (prefix_lm, 1)})
    plan = tiny.plan(tiny.decoder(), objective, {"decoder": 32}, batch_size=16)
    seen = set()
    for (rows,) in steps(batches(plan, tiny.mesh_of(1)), PERIOD):
        seen |= {(int(member), row // 2) for row, member in enumerate(rows.member)}
    assert seen == {(member, shard) for member in (0, 1) for shard in range(8)}


@pytest.mark.parametrize(
    "shape, packing", [((8, 1, 1), "concatenate"), ((2, 2, 2), "whole"), ((1, 4, 2), "isolate")]
)
def test_mesh_does_not_change_the_rows(shape, packing):
    plan = setup(packing=packing)
    spread, alone = (batches(plan, mesh) for mesh in (tiny.mesh_of(*shape), tiny.mesh_of(1)))
    assert_same(steps(spread, 3), steps(alone, 3))


@pytest.mark.parametrize("packing", ["concatenate", "isolate", "whole", "single"])
def test_batches_resume_exactly_from_a_position(packing):
    one, mesh = setup(packing=packing, mark_document_ends=True), tiny.mesh_of(1)
    rows = batches(one, mesh)
    for n in (0, 1, 3):
        steps(rows, n)
        position, step = rows.state(), rows.step
        expected = steps(rows, 2)
        again = batches(one, mesh)
        steps(again, 1)  # at a different position before
        again.restore(step, position.__getitem__)
        assert_same(steps(again, 2), expected)
        assert again.step == step + 2


@pytest.mark.parametrize("packing", ["concatenate", "whole"])
def test_another_number_of_shards_continues_with_the_unread_documents(packing):
    """Every token has a different id, so lost and repeated tokens are found.

    This includes tokens that wait for a row.
    """
    records = Numbers(*[5] * 800, tokens=7)
    order = Shuffled(records, 0)
    plan = setup(packing=packing)
    rows, seen = None, []
    for num_shards, n in ((8, 3), (2, 4), (4, 3), (1, 6)):
        before, open_shard = rows, functools.partial(RecordStream, order)
        rows = tiny.batches(plan, tiny.mesh_of(1), stream=open_shard, data_shards=num_shards)
        if before is not None:
            rows.restore(before.step, before.state().__getitem__)
        seen += [g.tokens[g.segments > 0] for step in steps(rows, n) for g in step]
    seen.append(np.load(io.BytesIO(rows.state()["shard_00000.npz"]))["0.waiting.tokens"])
    alone = RecordStream(order, 0, 1)
    expected = [alone.next_document().tokens for _ in range(sum(map(len, seen)) // 7)]
    got, expected = np.bincount(np.concatenate(seen)), np.bincount(np.concatenate(expected))
    np.testing.assert_array_equal(got, expected)


SECOND = 30_000  # first id of the second text


def open_numbers(first: int, shard: int, num_shards: int) -> RecordStream:
    """A shard with documents of seven tokens, whose ids count up from `first`."""
    return RecordStream(Shuffled(Numbers(*[5] * 800, tokens=7, first=first), 0), shard, num_shards)


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["concatenate", "whole"])
def test_members_read_their_own_sources(packing):
    """This also holds after the position was saved, and after the number of shards changed."""
    plan = setup(packing=packing)
    settings = {
        "mesh": tiny.mesh_of(1),
        "packing": plan.packing,
        "member_sources": [0, 1, 1, 1, 1, 1, 0],
    }

    def opened(data_shards):
        shards = [functools.partial(open_numbers, first) for first in (0, SECOND)]
        groups = plan.recipe.groups, plan.schedules
        return Batches(shards, *groups, data_shards=data_shards, **settings)

    rows = opened(8)
    before = steps(rows, 3)
    again = opened(8)
    steps(again, 1)
    again.restore(3, rows.state().__getitem__)
    fewer = opened(2)
    fewer.restore(3, rows.state().__getitem__)
    after = steps(rows, 2)
    assert_same(steps(again, 2), after)
    seen = np.concatenate(
        [rows.tokens[rows.segments > 0] for step in before + steps(fewer, 5) for rows in step]
    )
    # nothing is read twice
    assert np.bincount(np.unique(seen, return_counts=True)[1])[2:].sum() == 0
    for step in before + after:
        for rows in step:
            live = rows.segments > 0
            is_second = rows.tokens[live] >= SECOND
            source = np.asarray(settings["member_sources"])[rows.member]
            np.testing.assert_array_equal(is_second, np.repeat(source, live.sum(axis=1)))


def test_skipped_batches_are_read_without_advancing_the_step():
    one, mesh = setup(), tiny.mesh_of(1)
    read, skipped = batches(one, mesh), batches(one, mesh)
    steps(skipped, 2)
    skipped.skip(3)
    steps(read, 5)
    assert skipped.state() == read.state() and skipped.step == 2


def test_packed_rows_of_a_shard_do_not_depend_on_other_shards():
    """Other readers do not matter: the order of the data is a function of the logical shard."""
    plan = setup(packing="whole", max_documents=3)
    taken = steps(batches(plan, tiny.mesh_of(1)), 4)
    assert max(rows.segments.max() for step in taken for rows in step) == 3
    for shard in (0, 5):
        reader = ShardReader(tiny.Stream(shard, 8), plan.packing)
        for step in taken:
            for rows, scheduled in zip(step, plan.schedules):
                size = scheduled.rows // 8
                block = jax.tree.map(lambda x: x[shard * size : (shard + 1) * size], rows)  # noqa: B023
                for tokens, segments, member in zip(*block[:3]):
                    row = reader.row(int(member))
                    padding = (0, tokens.size - row.tokens.size)
                    np.testing.assert_array_equal(tokens, np.pad(row.tokens, padding))
                    np.testing.assert_array_equal(segments, np.pad(row.segments, padding))


def test_process_reads_only_the_shards_of_its_rows(monkeypatch):
    """There are four data devices, and this process has the last two. Shards are 0 … 7."""
    one, mesh = setup(), tiny.mesh_of(4)
    opened = []

    class Device:
        def __init__(self, process_index):
            self.process_index = process_index

    class Sharding:
        def devices_indices_map(self, shape):
            quarter = shape[0] // 4
            return {Device(i // 2): (slice(i * quarter, (i + 1) * quarter),) for i in range(4)}

    def open_shard(shard, num_shards):
        opened.append(shard)
        return tiny.Stream(shard, num_shards)

    monkeypatch.setattr("pretrax.training.batches.batch_sharding", lambda mesh: Sharding())
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    process_batches = tiny.batches(one, mesh, stream=open_shard)
    assert opened == [4, 5, 6, 7]
    assert sorted(process_batches.state()) == [f"shard_{i:05d}.npz" for i in (4, 5, 6, 7)]


@pytest.mark.parametrize(
    "shares, units, expected",
    [
        ([0.5, 0.3, 0.2], 8, [4, 2, 2]),
        ([1], 5, [5]),
        ([1, 1, 1], 3, [1, 1, 1]),
        ([100, 1, 1], 4, [2, 1, 1]),
        ([1, 1], 5, [3, 2]),
        ([6, 1], 7, [6, 1]),
    ],
)
def test_largest_remainder_apportions_units(shares, units, expected):
    assert largest_remainder(shares, units) == expected


def test_balanced_order_keeps_members_within_one_row_of_their_rate():
    rates = np.array([3, 1, 2, 1])
    order = balanced_order(tuple(rates), (10, 20, 30, 40))
    assert order.shape == (PERIOD,)
    for rate, member in zip(rates / rates.sum(), (10, 20, 30, 40)):
        seen = np.cumsum(order == member)
        assert seen[-1] == round(rate * PERIOD)
        assert np.abs(seen - rate * np.arange(1, PERIOD + 1)).max() <= 1


def test_scheduled_rates_apportion_the_rows_of_each_step():
    def rising(step):
        return step / 10

    scheduled = GroupSchedule(rows=40, members=(3, 5), rates=(1.0, rising))
    for step, share in ((0, 0.0), (10, 0.5), (30, 0.75)):
        assert scheduled.share(5, step) == pytest.approx(share, abs=1 / PERIOD)
    with refuses(ValueError, "rates", [3]):
        GroupSchedule(40, (3,), (rising,)).order(0)


def test_turn_taking_members_alternate_in_the_read_rows():
    members = {"span": (span_corruption, turns(3, 0)), "prefix": (prefix_lm, turns(3, 1))}
    objective = mixture(tiny.IDS, members)
    plan = tiny.plan(tiny.decoder(), objective, {"decoder": 48}, data_shards=2)
    rows = steps(tiny.batches(plan, tiny.mesh_of(1), data_shards=2), 7)
    seen = [set(np.asarray(step[0].member).tolist()) for step in rows]
    assert seen == [{0}] * 3 + [{1}] * 3 + [{0}]
    with refuses(ValueError, "rates", 2):
        group_schedules(objective, plan.recipe.groups * 2, 16, 2)


def test_rows_are_apportioned_to_groups_by_rates():
    plan = setup()
    counts = [s.rows for s in plan.schedules]
    members = [len(g.members) for g in plan.recipe.groups]
    assert sum(counts) == 48 and all(count % 8 == 0 for count in counts)
    ideal = 48 * np.array(members) / 7
    assert np.abs(np.array(counts) - ideal).max() < 8


@pytest.mark.parametrize("batch_size", [0, 7, 8, 12, 20])
def test_batch_that_cannot_be_apportioned_is_rejected(batch_size):
    plan = setup()
    with refuses(ValueError, 8, 16, 2, batch_size, "--gin.training.Run.batch_size"):
        group_schedules(plan.recipe.objective, plan.recipe.groups, batch_size, 8)


def test_pairs_of_rows_stay_together_with_an_odd_number_of_shards():
    plan = setup()
    scheduled = group_schedules(plan.recipe.objective, plan.recipe.groups, 36, 3)
    assert all(s.rows % 6 == 0 for s in scheduled)


def test_rates_without_rows_are_rejected_and_inexact_rates_give_a_warning():
    def planned(rate):
        both = mixture(tiny.IDS, {"a": (span_corruption, rate), "b": (prefix_lm, 1)})
        groups = row_groups(both, layouts.decoder, tiny.IDS, [{"decoder": 32}])
        return group_schedules(both, groups, 8, 2)

    with refuses(ValueError, "b", "0.00033", "1", "840"):
        planned(3000)
    with warns(UserWarning, "'b'", 0.0017, 0.0012):
        planned(600)
    planned(100)


def test_row_group_that_differs_from_its_share_gives_a_warning():
    both = mixture(tiny.IDS, {"a": (span_corruption, 3), "b": (prefix_lm, 1)})
    groups = [
        group._replace(members=(number,))
        for number in range(2)
        for group in row_groups(both, layouts.decoder, tiny.IDS, [{"decoder": 32}])
    ]
    with warns(UserWarning, "'b'", 0.25, 4, 12, 0.33):
        group_schedules(both, groups, 12, 4)
    group_schedules(both, groups, 16, 4)
