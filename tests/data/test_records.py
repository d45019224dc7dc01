"""The order of records depends only on the position, not on shards or resharding."""

import weakref

import numpy as np
import pytest

from pretrax.data.records import ALL, LANES, ROUND, RecordStream, Shuffled
from tests.data.stores import Numbers
from tests.refusals import refuses

SEVERAL_ROUNDS = (5, 3, 5, 1) * 50  # rounds of 128 blocks and 72 blocks


def numbers(stream, n):
    return [int(stream.next_document().tokens[0]) for _ in range(n)]


def unsharded(counts, n, seed=0):
    return numbers(RecordStream(Shuffled(Numbers(*counts), seed), 0, 1), n)


@pytest.mark.parametrize("shard, shards", [(1, 1), (-1, 2), (0, 0)])
def test_invalid_shard_raises(shard, shards):
    with refuses(ValueError, f"0…{shards - 1}", shard):
        RecordStream(Shuffled(Numbers(5), 0), shard, shards)


def test_each_epoch_is_a_different_permutation():
    for counts in [(5,), (5, 5, 2), SEVERAL_ROUNDS]:
        size = sum(counts)
        two_epochs = unsharded(counts, 2 * size)
        epochs = two_epochs[:size], two_epochs[size:]
        assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(size))
        assert list(range(size)) != epochs[0] != epochs[1]
        assert unsharded(counts, size, seed=1) != epochs[0]


def test_record_order_is_stable_across_versions():
    """The values are fixed, since another order would break the data positions of checkpoints."""
    assert unsharded(SEVERAL_ROUNDS, 6, seed=1) == [360, 387, 51, 53, 184, 4]
    assert unsharded((5, 4), 9, seed=1) == [2, 0, 1, 4, 5, 6, 7, 8, 3]


@pytest.mark.parametrize("num_shards", [1, 2, 3, 8, 1000])
def test_shards_interleave_positions_and_share_lanes(num_shards):
    """This holds even if there are more shards than records."""
    source = Numbers(*SEVERAL_ROUNDS)
    order = Shuffled(source, 0)
    shards = [RecordStream(order, shard, num_shards) for shard in range(num_shards)]
    n = 1500 // num_shards + 1
    found = [numbers(shard, 1)[0] for _ in range(n) for shard in shards]
    assert found == unsharded(SEVERAL_ROUNDS, n * num_shards)
    assert len(source.loaded) == len({tuple(blocks) for blocks in source.loaded})


@pytest.mark.slow
def test_resumed_stream_is_exact_and_loads_no_skipped_blocks():
    source = Numbers(*SEVERAL_ROUNDS)
    for shard, num_shards in ((0, 1), (2, 4)):
        expected = unsharded(SEVERAL_ROUNDS, 8000)[shard::num_shards]
        for stop in (0, 1, 700, 1399):
            stream = RecordStream(Shuffled(source, 0), shard, num_shards)
            numbers(stream, stop)
            resumed = RecordStream(Shuffled(source, 0), shard, num_shards)
            numbers(resumed, 3)
            resumed.restore({k: np.array(v) for k, v in stream.state().items()})
            source.loaded.clear()
            assert numbers(resumed, 7) == expected[stop : stop + 7]
            assert len(source.loaded) <= 2 * LANES  # without the lanes of earlier rounds


def test_resharding_reads_each_record_once():
    """This holds for any number of records read, and if the number of shards changes repeatedly."""
    rng = np.random.default_rng(0)
    order = Shuffled(Numbers(*SEVERAL_ROUNDS), 0)
    for _ in range(20):
        positions, states = [], None
        for num_shards in rng.integers(1, 9, 4):
            shards = [RecordStream(order, shard, num_shards) for shard in range(num_shards)]
            for shard, n in zip(shards, rng.integers(0, 40, num_shards)):
                if states is not None:
                    shard.reshard(states)
                    shard.restore(shard.state())
                for _ in range(n):
                    positions.append(shard.position)
                    shard.next_document()
            states = [shard.state() for shard in shards]
        last = RecordStream(order, 0, 1)
        last.reshard(states)
        while len(positions) <= max(positions, default=0):
            positions.append(last.position)
            last.next_document()
        assert sorted(positions) == list(range(len(positions)))


def test_unread_positions_after_reading():
    unread = ALL.after([3, 1])  # 0, 2, 4 and 1 were read
    assert (unread.first, unread.taken.tolist()) == (3, [4])
    assert [unread.position(i) for i in range(3)] == [3, 5, 6]


def loads_of(num_shards, shards):
    """Returns how often a process with these shards loads each block in an epoch, on average."""
    source = Numbers(*(5, 3, 5, 1) * ROUND)
    order = Shuffled(source, 0)
    streams = [RecordStream(order, shard, num_shards) for shard in shards]
    for _ in range(order.size // num_shards):
        for stream in streams:
            stream.next_document()
    return sum(map(len, source.loaded)) / len(source.counts)


def test_hosts_load_mostly_blocks_of_their_shards():
    """A host with a quarter of the shards reads about a quarter of the blocks, one round ahead."""
    assert loads_of(1, [0]) < 1.6
    loads_by_host = [loads_of(8, [2 * host, 2 * host + 1]) for host in range(4)]
    assert max(loads_by_host) < 0.45
    assert loads_of(3, [0]) > 1  # 3 does not divide the number of lanes


def test_finished_rounds_are_freed():
    order = Shuffled(Numbers(*[2] * 4 * ROUND), 0)
    stream = RecordStream(order, 0, 1)
    first = weakref.ref(order.round(0))
    numbers(stream, 3 * 2 * ROUND)
    assert first() is None


def test_prefetch_errors_are_raised_when_read():
    """Loading ahead does not raise the error."""

    class Damaged(Numbers):
        def load(self, blocks):
            if len(self.loaded) == 2 * LANES - 1:  # in the second round
                raise ValueError("damaged")
            return super().load(blocks)

    stream = RecordStream(Shuffled(Damaged(*SEVERAL_ROUNDS), 0), 0, 1)
    assert len(set(numbers(stream, 400))) == 400
    with refuses(ValueError, "damaged"):
        numbers(stream, 300)
