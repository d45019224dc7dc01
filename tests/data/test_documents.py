"""Documents in memory: cutting, held-out text and columns. Stores that one process writes."""

import errno
import resource

import numpy as np
import pytest

from pretrax.corpora import token_store
from pretrax.data import documents as documents_module
from pretrax.data.corpus import Document
from pretrax.data.documents import (
    document_count,
    heldout_documents,
    split_heldout,
    split_heldout_of_files,
    training_documents,
)
from pretrax.data.records import RecordStream, Shuffled, first_tokens
from pretrax.data.token_store import open_store
from pretrax.data.token_store_files import write_store
from pretrax.objectives import TokenIds
from pretrax.objectives.contract import NO_LABEL
from tests.refusals import refuses
from tests.training.tiny import text_of

IDS = TokenIds(size=300, text=(3, 260), mask=260, sentinels=(299, 298), modes=(("R", 270),))


def documents(n=50, longest=40):
    """Returns documents of different lengths. The first two tokens identify each document."""
    rng = np.random.default_rng(0)
    return [
        np.concatenate(
            [[3 + i // 200, 3 + i % 200], rng.integers(3, 260, rng.integers(0, longest))]
        )
        for i in range(n)
    ]


def written_documents(path, given):
    write_store(path, given, IDS, longest=None)
    return open_store(path).documents("train")


@pytest.fixture
def found(tmp_path):
    return written_documents(tmp_path / "store", documents())


def stream_of(found, seed=0, **settings):
    return RecordStream(Shuffled(training_documents(found, **settings), seed), 0, 1)


def heldout(found, n=10**6, *longest):
    return first_tokens([heldout_documents(found, *longest)], n)


def read(stream, n):
    return [stream.next_document().tokens.tolist() for _ in range(n)]


def test_written_store_is_read_back(tmp_path):
    given = documents()
    counts = write_store(
        tmp_path / "a", [given[0], [], *given[1:]], IDS, heldout=given[:2], about=lambda: {"x": 1}
    )
    assert counts["train"] == (50, sum(map(len, given)), 50) and counts["heldout"].documents == 2
    store = open_store(tmp_path / "a")
    assert store.ids == IDS and store.about == {"x": 1}
    found = store.documents("train")
    assert found.columns[0]["tokens"].dtype == np.uint16
    assert (len(found), found.tokens) == counts["train"][:2]
    for i, expected in enumerate(given):
        np.testing.assert_array_equal(found.document(i).tokens, expected)
    large = IDS._replace(size=100_000, sentinels=(99_999,))
    write_store(tmp_path / "a", given[:3], large)  # It is replaced.
    found = open_store(tmp_path / "a").documents("train")
    assert found.columns[0]["tokens"].dtype == np.int32 and len(found) == 3
    before = (tmp_path / "a").stat().st_ino
    write_store(tmp_path / "a", given[:3], large)  # The same store is kept for its readers.
    assert (tmp_path / "a").stat().st_ino == before
    assert [p.name for p in tmp_path.iterdir()] == ["a"]  # No temporary files are left.
    write_store("memory://of_one_process", given, IDS)
    assert len(open_store("memory://of_one_process").documents("train")) == 50


def test_holding_out_every_document_raises(found, tmp_path):
    with refuses(ValueError, "heldout_every", "2", "1"):
        split_heldout(found, every=1)
    with refuses(ValueError, "b/train", "1", "2"):
        split_heldout(written_documents(tmp_path / "b", [[5]]))


def test_failed_write_leaves_no_files(tmp_path):
    def broken():
        yield np.array([5, 6])
        raise RuntimeError("disk")

    with pytest.raises(RuntimeError):
        write_store(tmp_path / "a", broken(), IDS)
    with refuses(ValueError, "1", "299"):
        write_store(tmp_path / "a", [np.array([5]), np.array([5, 299])], IDS)
    with refuses(ValueError, "train"):
        write_store(tmp_path / "a", [[]], IDS)
    assert not list(tmp_path.iterdir())


def test_position_in_other_data_raises(found, tmp_path):
    stream = stream_of(found)
    assert stream.fingerprint == 4012727613  # fixed, like the order
    other = written_documents(tmp_path / "other", documents()[:-1])
    for changed in (stream_of(other), stream_of(found, seed=1)):
        for resume in (changed.restore, lambda state: changed.reshard([state])):  # noqa: B023
            with refuses(ValueError, "position", "seed"):
                resume(stream.state())
    with refuses(ValueError, "position", "seed"):
        stream.restore({"epoch": 0, "position": 3, "fingerprint": 1})


def test_long_documents_are_read_in_pieces(tmp_path, monkeypatch):
    long = np.arange(50_000) % 250 + 3
    found = written_documents(tmp_path / "a", [long, [7, 7]])
    settings_list = {}, {"uncut": 5000}, {"uncut": 60_000}
    longest = [max(map(len, read(stream_of(found, **settings), 200))) for settings in settings_list]
    assert longest == [2000, 7143, 50_000]  # Pieces are shorter if there are few documents.
    monkeypatch.setattr(documents_module, "PIECES", 3)
    pieces = read(stream_of(found), 5)
    assert sorted(map(len, pieces)) == [2, 12_500, 12_500, 12_500, 12_500]
    held = [len(piece.tokens) for piece in heldout(found)]
    assert max(held) <= 2048 and sum(held) == 50_002
    assert [len(piece.tokens) for piece in heldout(found, 3000)] == held[:2]


def test_only_the_last_piece_of_a_document_ends_it(tmp_path):
    long = np.arange(50_000) % 250 + 3
    found = written_documents(tmp_path / "a", [long, [7, 7]])
    stream = stream_of(found)
    epoch = [stream.next_document() for _ in range(26)]
    for pieces in (epoch, heldout(found)):
        last = [piece.tokens.tolist() for piece in pieces if piece.ends_document]
        assert len(pieces) > len(last) == 2 and [7, 7] in last
        assert all(long.tolist()[-len(tokens) :] == tokens for tokens in last if len(tokens) > 2)
    text = text_of(stream_of(found), 50_004, end=1)  # one epoch
    assert np.sum(text == 1) == 2


def test_document_pieces_are_written_and_held_out(tmp_path):
    given = [([5, 6], False), ([], False), ([7], False), ([], True), ([], False), ([8], True)]
    found = written_documents(
        tmp_path / "a", [Document(np.array(t, int), ends) for t, ends in given]
    )
    assert found.ends_document.tolist() == [False, True, True]
    train, held = split_heldout(found)
    assert train.ends_document.tolist() == [False, True] and held.ends_document.tolist() == [True]
    train, held = split_heldout(written_documents(tmp_path / "c", [[5, 6, 7], [8]]), every=3)
    assert (train.tokens, held.tokens) == (3, 1)
    # A single document is cut.
    single_document = [Document(np.array([5 + i]), i == 39) for i in range(40)]
    train, held = split_heldout(written_documents(tmp_path / "d", single_document))
    assert (train.tokens, held.tokens) == (38, 2)
    assert not train.ends_document.any() and held.ends_document.tolist() == [False, True]
    pieces = [Document(np.array([5 + i]), i % 2 == 1) for i in range(40)]
    train, held = split_heldout(written_documents(tmp_path / "b", pieces))
    assert held.ends_document.tolist() == [False, True] and train.ends_document.sum() == 19


@pytest.mark.parametrize("sizes", [[7, 3], [1, 900, 40], [30] * 19, [5, 80, 1] * 30])
def test_train_and_heldout_share_no_document(tmp_path, sizes):
    """Documents are in pieces of at most 3 tokens. All tokens of a document are the same."""
    pieces = [
        Document(np.full(min(3, size - at), 5 + i), at + 3 >= size)
        for i, size in enumerate(sizes)
        for at in range(0, size, 3)
    ]
    found = written_documents(tmp_path / "a", pieces)
    assert document_count(found) == len(sizes)
    train, held = split_heldout(found)
    numbers = [
        {int(side.document(i).tokens[0]) - 5 for i in range(len(side))} for side in (train, held)
    ]
    assert numbers[0] | numbers[1] == set(range(len(sizes))) and not numbers[0] & numbers[1]
    assert numbers[0] and numbers[1] and train.tokens + held.tokens == sum(sizes)
    assert document_count(held) == len(numbers[1])


def test_single_document_files_are_held_out_whole(tmp_path):
    large, small, several = (
        written_documents(tmp_path / str(i), given)
        for i, given in enumerate([[[5] * 90], [[6] * 10], [[7] * 4] * 40])
    )
    for files, sizes in [
        ([large], ([85], [5])),
        ([large, small], ([90], [10])),
        ([small, large], ([90], [10])),
        ([large, several], ([90, 152], [8])),
    ]:
        sides = split_heldout_of_files(files)
        assert tuple([file.tokens for file in side] for side in sides) == sizes


@pytest.mark.parametrize("column", ["parts", "labels"])
def test_columns_are_stored_with_tokens(tmp_path, column):
    columns = [(np.arange(n) % 200 + 3, np.arange(n) % 7 - 1) for n in (4, 9, 2)]
    pieces = [Document(tokens, **{column: values}) for tokens, values in columns]
    found = written_documents(tmp_path / "a", pieces)
    stream = stream_of(found)
    for read in ([stream.next_document() for _ in range(3)], heldout(found, 99, 3)):
        for piece in read:
            values = getattr(piece, column)
            assert values.dtype == np.int32 and (piece.parts is None) != (piece.labels is None)
            np.testing.assert_array_equal(values, (piece.tokens - 3) % 7 - 1)


@pytest.mark.parametrize("n", [1, 2, 19, 20, 50])
def test_heldout_split_loses_no_tokens(tmp_path, n):
    given = documents(n)
    given[0] = np.append(given[0], 9)
    train, held = split_heldout(written_documents(tmp_path / "a", given))
    parts = [
        np.concatenate([part.document(i).tokens for i in range(len(part))])
        for part in (train, held)
    ]
    whole = np.concatenate(given)
    assert train.tokens + held.tokens == len(whole) and held.tokens > 0
    if n == 1:  # the end of the text
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        assert held.tokens == len(whole) - int(len(whole) * 0.95)
    elif n < 20:  # the document whose size is closest to a twentieth
        assert len(train) == n - 1 and held.tokens in map(len, given)
    else:
        assert len(held) == n // 20
        np.testing.assert_array_equal(held.document(0).tokens, given[19])
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.sort(whole))


def test_documents_with_labels_are_not_cut(tmp_path):
    given = [
        Document(np.arange(5, 9), labels=[1, 2, 3, NO_LABEL]),
        Document(np.arange(7, 9), labels=[1, 0]),
    ]
    write_store(tmp_path / "a", given, IDS, heldout=given[:1])
    corpus = token_store("unused", stores=str(tmp_path / "a"))
    assert corpus.longest == 4 and corpus.columns == ("labels",)
    stream = corpus.open_shard(0, 1)
    assert {tuple(stream.next_document().tokens) for _ in given} == {(5, 6, 7, 8), (7, 8)}


@pytest.mark.parametrize(
    ("tokens", "values"),
    [
        (np.array([[5, 6]]), ["int64[1, 2]", "integers"]),
        (np.array([5.0]), ["float64[1]", "integers"]),
        (np.array([5, 300]), ["5…300", "0…299"]),
        (np.array([5, -1]), ["-1…5"]),
        (np.array([5, 1, 6, 260]), ["2 of 4", "1 at 1"]),
        (np.array(["a"]), ["<U1[1]", "integers"]),
    ],
)
def test_writing_invalid_tokens_raises(tmp_path, tokens, values):
    with refuses(ValueError, *values):
        write_store(tmp_path / "a", [tokens], IDS)


@pytest.mark.parametrize("document", [np.full(5000, 3), np.full(1, 3)])
def test_full_disk_raises_and_leaves_no_files(tmp_path, document):
    """Limits the size of files, which the tokens or the index of many documents exceed."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        with refuses(OSError, errno.EFBIG):
            write_store(tmp_path / "store", [document] * 4000, IDS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
