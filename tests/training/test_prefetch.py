"""Prefetched batches: the same rows and positions, stalls, errors and the end."""

import contextlib
import threading
import time

import pytest

from pretrax.training.prefetch import MAX_PREFETCHED, Prefetcher
from tests.refusals import refuses
from tests.training import tiny
from tests.training.small_batches import assert_same, batches, setup, steps


class Slow:
    """Yields batches 0, 1, 2, …, of which every third takes `STALL` seconds.

    Reading one of them may fail.
    """

    STALL, STEP = 0.2, 0.12

    def __init__(self, damaged=None):
        self.read, self._damaged = 0, damaged

    def __next__(self):
        if self.read % 3 == 2:
            time.sleep(self.STALL)
        if self.read == self._damaged:
            raise OSError("shard 7 cannot be read")
        self.read += 1
        return (self.read - 1,)

    def position(self):
        return lambda read=self.read: read

    def progress(self):
        return {"data/read": self.read}


def prefetch(reader, number):
    return contextlib.closing(Prefetcher(reader, number))


def wait_until(is_reached):
    end = time.monotonic() + 60
    while not is_reached():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


def test_position_follows_returned_rows_not_prefetched_ones():
    one, mesh = setup(packing="whole"), tiny.mesh_of(1)
    plain, read = (batches(one, mesh) for _ in range(2))
    with prefetch(read, 9) as prefetcher:
        assert prefetcher.state() == plain.state()
        for _ in range(2):
            assert_same(steps(prefetcher, 1), steps(plain, 1))
        wait_until(lambda: read.step == plain.step + MAX_PREFETCHED)
        position = prefetcher.state()
        assert position == plain.state() != read.state()
        resumed = batches(one, mesh)
        resumed.restore(plain.step, position.__getitem__)
        expected = steps(plain, 4)
        assert_same(steps(prefetcher, 4), expected)
    assert_same(steps(resumed, 4), expected)


@pytest.mark.slow
def test_reader_stalls_are_hidden_by_prefetching():
    waited, n = [], 10
    with prefetch(Slow(), n) as prefetcher:
        for step in range(n):
            started = time.monotonic()
            assert next(prefetcher) == (step,)
            waited.append(time.monotonic() - started)
            assert prefetcher.state() == step + 1 == prefetcher.progress()["data/read"]
            time.sleep(Slow.STEP)
    assert sum(waited) < Slow.STALL  # one of the three


def test_reader_error_is_raised_with_its_batch():
    before = threading.active_count()
    with prefetch(Slow(damaged=1), 5) as prefetcher:
        next(prefetcher)
        with refuses(OSError, "shard 7"):
            next(prefetcher)
        assert prefetcher.state() == 1
    assert threading.active_count() == before


def test_nothing_is_read_beyond_the_last_step():
    before, reader = threading.active_count(), Slow()
    with prefetch(reader, 1) as prefetcher:
        next(prefetcher)
        time.sleep(0.05)
    assert reader.read == 1 and threading.active_count() == before


def test_prefetcher_closes_while_batches_wait():
    before, reader = threading.active_count(), Slow()
    with prefetch(reader, 100):
        wait_until(lambda: reader.read == MAX_PREFETCHED)
    assert reader.read == MAX_PREFETCHED and threading.active_count() == before


def test_prefetcher_restarts_from_a_restored_position():
    before, reader = threading.active_count(), Slow()
    with prefetch(reader, 3) as prefetcher:
        next(prefetcher)
        prefetcher.close()
        reader.read = 6
        prefetcher.start(2)
        assert prefetcher.state() == 6
        assert [next(prefetcher) for _ in range(2)] == [(6,), (7,)]
    assert reader.read == 8 and threading.active_count() == before
