import json
import resource

import numpy as np
import pytest

from pretrax.data import token_arrays
from pretrax.data.corpus import Piece, checked_for, in_parts
from pretrax.data.records import RecordStream, Shuffled
from pretrax.data.token_array_files import open_token_array, write_token_array
from pretrax.data.token_arrays import ArrayRecords, heldout_documents, split_heldout, token_array
from pretrax.objectives import TokenIds, causal_lm, text_to_text
from pretrax.objectives.contract import NO_LABEL
from tests.training.tiny import text_of

IDS = TokenIds(size=300, text=(3, 260), mask=260, sentinels=(299, 298), modes=(("R", 270),))


def documents(n=50, longest=40):
    """Documents of different lengths; the first two tokens say which one it is."""
    rng = np.random.default_rng(0)
    return [
        np.concatenate(
            [[3 + i // 200, 3 + i % 200], rng.integers(3, 260, rng.integers(0, longest))]
        )
        for i in range(n)
    ]


@pytest.fixture
def array(tmp_path):
    write_token_array(tmp_path / "array", documents(), IDS)
    return open_token_array(tmp_path / "array")


def stream_of(array, shard=0, num_shards=1, seed=0, **settings):
    return RecordStream(Shuffled(ArrayRecords(array, **settings), seed), shard, num_shards)


def read(stream, n):
    return [stream.next_document().tokens.tolist() for _ in range(n)]


def document(array, i):
    return array.tokens[array.starts[i] : array.ends[i]]


def test_what_is_written_is_read(tmp_path):
    given = documents()
    written = write_token_array(
        tmp_path / "a", [given[0], [], *given[1:]], IDS, about=lambda empty: {"empty": empty}
    )
    assert written == (50, sum(map(len, given)), 1)
    array = open_token_array(tmp_path / "a")
    assert array.tokens.dtype == np.uint16 and isinstance(array.tokens, np.memmap)
    assert array.ids == IDS and array.about == {"empty": 1}
    assert (array.documents, array.size) == written[:2]
    for i, expected in enumerate(given):
        np.testing.assert_array_equal(document(array, i), expected)
    large = IDS._replace(size=100_000, sentinels=(99_999,))
    write_token_array(tmp_path / "a", given[:3], large)  # replaces it
    array = open_token_array(tmp_path / "a")
    assert array.tokens.dtype == np.int32 and array.documents == 3
    assert [p.name for p in tmp_path.iterdir()] == ["a"]  # nothing temporary is left


def test_not_every_document_is_held_out(array):
    with pytest.raises(ValueError, match="heldout_every must be at least 2, got 1"):
        split_heldout(array, every=1)


def test_nothing_is_left_of_an_array_that_fails(tmp_path):
    def broken():
        yield np.array([5, 6])
        raise RuntimeError("disk")

    with pytest.raises(RuntimeError):
        write_token_array(tmp_path / "a", broken(), IDS)
    with pytest.raises(ValueError, match="Document 1 for .* the first is 299 at 1"):
        write_token_array(tmp_path / "a", [np.array([5]), np.array([5, 299])], IDS)
    with pytest.raises(ValueError, match="labels of float64, expected integers"):
        write_token_array(tmp_path / "a", [Piece(np.array([5]), True, labels=[0.5])], IDS)
    assert write_token_array(tmp_path / "a", [[]], IDS) == (0, 0, 1)
    assert not list(tmp_path.iterdir())


def test_the_order_is_the_same_for_ever(array):
    """Pinned: a NumPy that draws otherwise would break every checkpoint's data position."""
    firsts = [document[1] - 3 for document in read(stream_of(array, seed=1), 8)]
    assert firsts == [2, 41, 20, 19, 21, 0, 1, 27]


def test_a_position_in_other_data_is_refused(array, tmp_path):
    stream = stream_of(array)
    write_token_array(tmp_path / "other", documents()[:-1], IDS)
    other = open_token_array(tmp_path / "other")
    for changed in (stream_of(other), stream_of(array, seed=1)):
        for go_on in (changed.restore, lambda state: changed.reshard([state])):  # noqa: B023
            with pytest.raises(ValueError, match="other data"):
                go_on(stream.state())
    with pytest.raises(ValueError, match="an earlier version of pretrax"):
        stream.restore({"epoch": 0, "position": 3, "fingerprint": 1})


def test_long_documents_are_read_in_pieces(tmp_path, monkeypatch):
    long = np.arange(50_000) % 250 + 3
    write_token_array(tmp_path / "a", [long, [7, 7]], IDS)
    array = open_token_array(tmp_path / "a")
    uncut = {}, {"uncut": 5000}, {"uncut": 60_000}
    longest = [max(map(len, read(stream_of(array, **each), 200))) for each in uncut]
    assert longest == [2000, 7143, 50_000]  # shorter where there are few
    monkeypatch.setattr(token_arrays, "PIECES", 3)
    pieces = read(stream_of(array), 5)
    assert sorted(map(len, pieces)) == [2, 12_500, 12_500, 12_500, 12_500]
    held = [len(piece.tokens) for piece in heldout_documents(array, 10**6)]
    assert max(held) <= 2048 and sum(held) == 50_002
    assert [len(piece.tokens) for piece in heldout_documents(array, 3000)] == held[:2]


def test_only_the_last_piece_of_a_document_ends_it(tmp_path):
    long = np.arange(50_000) % 250 + 3
    write_token_array(tmp_path / "a", [long, [7, 7]], IDS)
    array = open_token_array(tmp_path / "a")
    stream = stream_of(array)
    epoch = [stream.next_document() for _ in range(26)]
    for pieces in (epoch, heldout_documents(array, 10**6)):
        last = [piece.tokens.tolist() for piece in pieces if piece.ends]
        assert len(pieces) > len(last) == 2 and [7, 7] in last
        assert all(long.tolist()[-len(tokens) :] == tokens for tokens in last if len(tokens) > 2)
    text = text_of(stream_of(array), 50_004, end=1)  # an epoch
    assert np.sum(text == 1) == 2


def test_pieces_are_written_and_held_out_as_such(tmp_path):
    given = [([5, 6], False), ([], False), ([7], False), ([], True), ([], False), ([8], True)]
    write_token_array(tmp_path / "a", [Piece(np.array(t, int), ends) for t, ends in given], IDS)
    array = open_token_array(tmp_path / "a")
    assert array.closed.tolist() == [False, True, True]
    train, heldout = split_heldout(array)
    assert train.closed.tolist() == [False, True] and heldout.closed.tolist() == [True]
    write_token_array(tmp_path / "a", [[5, 6], [7], [8]], IDS)  # the same but for the ends
    assert open_token_array(tmp_path / "a").closed.all()
    write_token_array(tmp_path / "c", [[5, 6, 7], [8]], IDS)
    train, heldout = split_heldout(open_token_array(tmp_path / "c"), every=3)  # cuts the first one
    assert (train.size, heldout.size) == (2, 2)
    assert train.closed.tolist() == [False] and heldout.closed.tolist() == [True, True]
    np.save(tmp_path / "a" / "closed.npy", [True])
    with pytest.raises(ValueError, match=r"closed.npy: got bool\[1\], expected bool\[3\]"):
        open_token_array(tmp_path / "a")
    write_token_array(
        tmp_path / "b", [Piece(np.array([5 + i]), i % 2 == 1) for i in range(40)], IDS
    )
    train, heldout = split_heldout(open_token_array(tmp_path / "b"))
    assert heldout.closed.all() and train.closed.sum() == 18


@pytest.mark.parametrize("column", ["parts", "labels"])
def test_columns_are_written_and_read_beside_the_tokens(tmp_path, column):
    each = [(np.arange(n) % 200 + 3, np.arange(n) % 7 - 1) for n in (4, 9, 2)]
    pieces = [Piece(tokens, True, **{column: values}) for tokens, values in each]
    write_token_array(tmp_path / "a", pieces, IDS)
    array = open_token_array(tmp_path / "a")
    stream = stream_of(array)
    for read in ([stream.next_document() for _ in range(3)], heldout_documents(array, 99, 3)):
        for piece in read:
            values = getattr(piece, column)
            assert values.dtype == np.int32 and (piece.parts is None) != (piece.labels is None)
            np.testing.assert_array_equal(values, (piece.tokens - 3) % 7 - 1)
    for wrong in (Piece(np.array([5]), True), Piece(np.array([5]), True, **{column: [1, 2]})):
        with pytest.raises(ValueError, match=f"Document 3 .*expected .*{column}"):
            write_token_array(tmp_path / "b", [*pieces, wrong], IDS)
    np.save(tmp_path / "a" / f"{column}.npy", np.zeros(3, np.int32))
    with pytest.raises(ValueError, match=rf"{column}.npy: got int32\[3\], expected int32\[15\]"):
        open_token_array(tmp_path / "a")


@pytest.mark.parametrize("n", [1, 2, 19, 20, 50])
def test_heldout_is_apart_and_nothing_is_lost(tmp_path, n):
    given = documents(n)
    write_token_array(tmp_path / "a", given, IDS)
    train, heldout = split_heldout(open_token_array(tmp_path / "a"))
    parts = [
        np.concatenate([document(part, i) for i in range(part.documents)])
        for part in (train, heldout)
    ]
    whole = np.concatenate(given)
    assert train.size + heldout.size == len(whole) and heldout.size > 0
    if n < 20:  # the end of the text
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        assert heldout.size == len(whole) - int(len(whole) * 0.95)
    else:
        assert heldout.documents == n // 20
        np.testing.assert_array_equal(document(heldout, 0), given[19])
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.sort(whole))


def test_documents_with_labels_are_not_cut_and_have_known_classes(tmp_path):
    labels = np.array([1, 2, 3, NO_LABEL])
    given = [
        Piece(np.arange(5, 9), True, labels=labels),
        Piece(np.arange(7, 9), True, labels=[1, 0]),
    ]
    for name, pieces in (("a", given), ("h", given[:1])):
        write_token_array(tmp_path / name, pieces, IDS)
    plain = token_array("unused", path=str(tmp_path / "a"), heldout_path=str(tmp_path / "h"))
    assert plain.longest == 4
    four, three = (causal_lm(IDS)._replace(num_classes=n) for n in (4, 3))
    known = checked_for(four, plain)
    stream = known.train(0, 1)
    assert {tuple(stream.next_document().tokens) for _ in given} == {(5, 6, 7, 8), (7, 8)}
    from_one = checked_for(three, plain)
    with pytest.raises(
        ValueError, match="Got the label 3, expected a class of 0 … 2: count .* from 0"
    ):
        from_one.heldout(9)
    with pytest.raises(ValueError, match="Got the label 3"):
        stream = from_one.train(0, 1)
        [stream.next_document() for _ in given]


def test_documents_of_more_parts_than_an_objective_reads_are_refused(tmp_path):
    given = [in_parts([5, 6], [7]), in_parts([5], [6], [7], [8])]
    for name, pieces in (("a", given), ("h", given[:1])):
        write_token_array(tmp_path / name, pieces, IDS)
    plain = token_array("unused", path=str(tmp_path / "a"), heldout_path=str(tmp_path / "h"))
    answers = text_to_text(IDS)
    assert len(checked_for(answers, plain).heldout(9)) == 1
    stream = checked_for(answers, plain).train(0, 1)
    with pytest.raises(ValueError, match="a document of 4 parts, expected at most 2.*dialogue"):
        [stream.next_document() for _ in given]
    stream = checked_for(answers._replace(num_parts=None), plain).train(0, 1)
    assert {stream.next_document().tokens.size for _ in given} == {3, 4}


def test_token_array_edge(tmp_path):
    write_token_array(tmp_path / "a", documents(), IDS)
    write_token_array(tmp_path / "h", documents(5), IDS)
    corpus = token_array("unused", path=str(tmp_path / "a"), heldout_path=str(tmp_path / "h"))
    assert corpus.ids == IDS and len(corpus.heldout(10**6)) == 5
    assert "50 documents" in corpus.summary and "5 documents" in corpus.summary
    np.save(tmp_path / "bare.npy", np.concatenate(documents()).astype(np.int64))
    corpus = token_array("unused", path=str(tmp_path / "bare.npy"), ids=IDS)
    stream, ((held, held_ends, *_),) = corpus.train(0, 1), corpus.heldout(9)
    train, train_ends, *_ = stream.next_document()
    assert train.dtype == held.dtype == np.int32
    assert len(train) + len(held) == sum(map(len, documents()))
    assert (train_ends, held_ends) == (False, True)  # one document, cut in two
    other = IDS._replace(mask=None)
    write_token_array(tmp_path / "o", documents(5), other)
    with pytest.raises(ValueError, match="other token ids"):
        token_array("unused", path=str(tmp_path / "a"), heldout_path=str(tmp_path / "o"))


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (np.array([[5, 6]]), r"tokens.npy: got an array of shape \(1, 2\)"),
        (np.array([5.0]), "tokens.npy: got float64, expected integers"),
        (np.array([], np.int32), "tokens.npy: got no tokens"),
        (np.array([5, 300]), r"tokens.npy: got ids 5…300, expected 0…299"),
        (np.array([5, -1]), "tokens.npy: got ids -1…5"),
        (np.array([5, 1, 6, 260]), r"2 of 4 ids are special ids, the first is 1 at 1"),
        (np.array(["a"]), "tokens.npy: got <U1, expected integers"),
        (b"hello", "not a NumPy .npy file"),
    ],
)
def test_arrays_that_cannot_be_read(tmp_path, tokens, said):
    path = tmp_path / "tokens.npy"
    if isinstance(tokens, bytes):
        path.write_bytes(tokens)
    else:
        np.save(path, tokens)
    with pytest.raises(ValueError, match=said):
        open_token_array(path, IDS)


@pytest.mark.parametrize("name", ["tokens.npy", "offsets.npy"])
def test_an_array_that_was_changed_since_is_named(tmp_path, name):
    """As no length and no range of ids tells."""
    write_token_array(tmp_path / "a", documents(400), IDS)
    values = np.load(tmp_path / "a" / name)
    if name == "tokens.npy":
        values[4000:4100] = values[4000:4100][::-1].copy()
    else:
        values[5] += 1
    np.save(tmp_path / "a" / name, values)
    with pytest.raises(ValueError, match=f"{name} is not as it was written: its checksum differs"):
        open_token_array(tmp_path / "a")
    open_token_array(tmp_path / "a", check=False)


def test_folders_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_token_array(tmp_path / "missing")
    folder = tmp_path / "a"
    write_token_array(folder, documents(3), IDS)
    tokens = (folder / "tokens.npy").read_bytes()
    (folder / "tokens.npy").write_bytes(tokens[:-4])
    with pytest.raises(ValueError, match=r"tokens.npy: .*cut short"):
        open_token_array(folder)
    (folder / "tokens.npy").write_bytes(tokens)
    for offsets in ([0, 5], [0, 9, 4, 40], [1, 40]):
        np.save(folder / "offsets.npy", np.array(offsets))
        with pytest.raises(ValueError, match=r"offsets.npy: .*Write the array anew"):
            open_token_array(folder)
    np.save(folder / "offsets.npy", np.array(1.5))
    with pytest.raises(ValueError, match=r"expected int64\[documents \+ 1\]"):
        open_token_array(folder)
    (folder / "ids.json").write_text(json.dumps({"ids": {"sizes": 4}}))
    with pytest.raises(ValueError, match="ids.json: got"):
        open_token_array(folder)
    (folder / "ids.json").unlink()
    with pytest.raises(ValueError, match="Set `ids`"):
        open_token_array(folder)


@pytest.mark.parametrize("document", [np.full(5000, 3), np.full(1, 3)])
def test_a_full_disk_is_said(tmp_path, document):
    """By a limit on the size of a file, which the tokens exceed, or the offsets of many documents."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_token_array(tmp_path / "array", [document] * 2000, IDS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
