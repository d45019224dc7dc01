"""A validation split: training text that is not trained on, the same for every shard."""

import numpy as np
import pytest

from pretrax import corpora
from pretrax.data.corpus import Corpus, Document
from pretrax.training.run_configuration import read_run
from tests.refusals import refuses
from tests.training import tiny


class Again(tiny.Stream):
    """A stream that repeats the documents 0 to 399. Document k is [k, k, k, k, k]."""

    def next_document(self):
        number = int(super().next_document().tokens[0])
        return Document(np.full(5, number % 400, np.int32))


def corpus(run_dir, stream=Again) -> Corpus:
    """Returns a corpus whose own held-out text has other documents."""
    return Corpus(tiny.IDS, stream, lambda n: [Document(np.full(n, 999, np.int32))])


def split(**settings) -> Corpus:
    return corpora.validation_split("", corpus=corpus, **settings)


def numbers(pieces) -> set[int]:
    return {int(piece.tokens[0]) for piece in pieces}


def test_training_reads_no_heldout_document():
    corpus = split(every=5)
    held = numbers(corpus.heldout(10**6))
    assert 40 < len(held) < 120  # One in five of the 400 documents is held out.
    streams = [corpus.open_shard(shard, 3) for shard in range(3)]
    trained = numbers(stream.next_document() for stream in streams for _ in range(400))
    assert not held & trained and trained | held == set(range(400))


def test_requested_number_of_documents_is_held_out():
    pieces = split().heldout(98)
    assert [piece.tokens.size for piece in pieces] == [5] * 20
    assert len(numbers(pieces)) == len(pieces) and 999 not in numbers(pieces)


def test_stream_resumes_at_its_position():
    corpus = split(every=3)
    stream, again = corpus.open_shard(0, 1), corpus.open_shard(0, 1)
    for _ in range(50):
        stream.next_document()
    again.restore(stream.state())
    follow = [[s.next_document().tokens.tolist() for _ in range(20)] for s in (stream, again)]
    assert follow[0] == follow[1]


def test_long_documents_are_cut_and_keep_their_columns():
    class Long(tiny.Stream):
        def next_document(self):
            number = int(super().next_document().tokens[0])
            column = np.full(3000, number, np.int32)
            return Document(column, parts=column % 2)

    one = corpora.validation_split("", corpus=lambda run_dir: corpus(run_dir, stream=Long))
    piece, *_ = one.heldout(2049)
    assert piece.tokens.size == piece.parts.size == 2048 and not piece.ends_document
    assert len(one.heldout(2049)) == 2


@pytest.mark.parametrize("every, which", [(20, "hold"), (2, "train")])
def test_too_few_documents_are_rejected(every, which):
    """The checksum of [0] is even, and the checksum of [1] is not a multiple of 20."""

    class One(tiny.Stream):
        def next_document(self):
            return Document(np.array([every == 20], np.int32))

    one = corpora.validation_split(
        "", corpus=lambda run_dir: corpus(run_dir, stream=One), every=every
    )
    with refuses(ValueError, which, "corpora.validation_split.every", every):
        one.heldout(10) if which == "hold" else one.open_shard(0, 1).next_document()


def test_validation_split_is_configurable_in_gin(tmp_path):
    lines = ["training.Run.corpus = @corpora.validation_split"]
    lines += ["corpora.validation_split.corpus = @corpora.python_library"]
    run = read_run(["runs/decoder.gin"], lines)
    assert run.corpus.settings["corpus"] == read_run(["runs/decoder.gin"]).corpus
