"""DNA and protein sequences: files, pieces, splits, strands, and the letters of vocabularies."""

import functools
import gzip
import random
import shutil

import jax
import numpy as np
import pytest

from pretrax.corpora import sequence_files, vocabularies
from pretrax.corpora.alphabets import ALPHABETS, alphabet_named
from pretrax.corpora.sequence_pieces import pieces
from pretrax.corpora.text_readers import LeftOut
from pretrax.corpora.vocabularies import VocabularySource
from pretrax.data.packing import rows_of_documents, stacked
from pretrax.data.reading import (
    MalformedLine,
    RawDocument,
    fasta_and_fastq,
    raw_documents,
    valid_documents,
)
from pretrax.training.planning import plan_run
from pretrax.training.run_configuration import read_run
from pretrax.training.step import corrupt_and_arrange
from tests.refusals import refuses
from tests.training import tiny

FASTA = b"\xef\xbb\xbf>x one\r\nACGT\r\nacgtn\r\n\r\n>sp|P1|Y_HUMAN\ttwo\nMKV*\n>z\nAAA"
FASTQ = b"@x one\nACGT\n+\n@>II\n@y\nTT\n+y\nII\n\n"
LETTERS = {name: functools.partial(vocabularies.letters, alphabet=name) for name in ALPHABETS}


def file_of(folder, name, content):
    path = folder / name
    content = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(("gz", ".bgz")) else content)
    return str(path)


def fasta(records):
    return "".join(f">{name}\n{letters}\n" for name, letters in records.items())


def drawn(seed, count=40, size=300, letters="ACGT"):
    rng = random.Random(seed)
    return {f"r{i}": "".join(rng.choices(letters, k=size)) for i in range(count)}


def corpus_of(folder, files, alphabet="dna", run="run", **settings):
    settings = {"vocabulary": LETTERS[alphabet]} | settings
    return sequence_files(str(folder / run), files=files, alphabet=alphabet, **settings)


def first_epoch(corpus):
    stream = corpus.open_shard(0, 1)
    documents = []
    while stream.epochs < 1:
        documents.append(stream.next_document())
    return documents


def texts_of(corpus, documents):
    return sorted(corpus.codec.decode(document.tokens.tolist()) for document in documents)


@pytest.mark.parametrize("part", [1, 2, 3, 7, 20, 1 << 20])
@pytest.mark.parametrize("name", ["a.fa", "a.FASTA.gz", "a.faa.bgz"])
def test_fasta_is_read_in_parts_of_any_size(tmp_path, monkeypatch, name, part):
    monkeypatch.setattr(fasta_and_fastq, "SEQUENCE_PART", part)
    path = file_of(tmp_path, name, FASTA)
    records = [*valid_documents(raw_documents(path, "text"))]
    assert [record.text for record in records] == ["ACGTacgtn", "MKV*", "AAA"]
    assert [(record.at, record.line) for record in records] == [(0, 1), (1, 5), (2, 7)]
    assert [record.fields["id"] for record in records] == ["x", "P1", "z"]
    assert records[1].fields["name"] == "Y_HUMAN"
    parts = [*valid_documents(raw_documents(path, "text", text_in_parts=True))]
    assert "".join(one.text for one in parts) == "ACGTacgtnMKV*AAA"
    assert [one.at for one in parts if one.ends_document] == [0, 1, 2] and all(
        one.text for one in parts
    )


def test_fastq_records_are_read(tmp_path):
    records = [*valid_documents(raw_documents(file_of(tmp_path, "a.fq.gz", FASTQ), "text"))]
    assert [(one.text, one.line, one.fields["id"]) for one in records] == [
        ("ACGT", 1, "x"),
        ("TT", 5, "y"),
    ]


BAD = {  # name -> (alphabet, content, what the message names)
    "letter.fa": ("dna", ">x\nACGT\n>y\nACGTZZ\n", [":3", "'y'", "'Z'", "5"]),
    "sign.fa": ("dna", ">x\nACGT!!\n", [":1", "'x'", "'!'", "5"]),
    "protein.fa": ("dna", ">x\nACGMKVLAAG\n", [":1", "'x'", "'L'", "7", "protein"]),
    "rna.fna": ("dna", ">x\nACGUACGU\n", [":1", "'x'", "'U'", "4", "rna"]),
    "dna.faa": ("protein", ">x\n" + "ACGT" * 20 + "\n", [":1", "'x'", "60", "DNA"]),
    "later.faa": ("protein", ">x\nMKV\n>y\n" + "ACGT" * 15, [":3", "'y'", "60", "DNA"]),
    "reads.faa": ("protein", ">x\nACGTnAGGT\n" * 9, [":15", "'x'", "64", "DNA"]),
    "gap.faa": ("protein", ">x\n" + "N" * 99 + "ACGU" * 15, [":1", "'x'", "60", "RNA"]),
    "short.faa": ("protein", ">x\nACG\n>y\nTT\n", [":3", "'y'", "5", "DNA"]),
    "empty_record.fa": ("dna", ">x\n>y\nACGT\n", [":1", "'x'"]),
    "empty.fa": ("dna", "", ["FASTA"]),
    "no_header.fa": ("dna", "ACGT\n>x\nAC\n", ["'ACGT'", "'>'"]),
    "qualities.fq": ("dna", "@x\nACGT\n+\nIII\n", [":1", "'x'", "4", "3"]),
    "lines.fastq": ("dna", "@x\nACGT\n@y\nACGT\n", [":1", "'@'", "'+'"]),
    "cut.fa.gz": ("dna", gzip.compress(b">x\n" + b"ACGT" * 999)[:-9], ["gzip"]),
    "empty.fq.gz": ("dna", b"", ["gzip"]),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_sequence_file_is_named(tmp_path, name):
    alphabet, content, named = BAD[name]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    place = [path.name + value if value[:1] == ":" else value for value in named]
    with refuses(MalformedLine, path.name, *place):
        corpus_of(tmp_path, str(path), alphabet)


def test_proteins_with_dna_letters_are_accepted(tmp_path):
    peptides = {f"p{i}": "GATC" for i in range(12)}  # 56 letters with "q"
    others = {"alanines": "A" * 99, "p": "MK", "q": "ACGTACGT"}
    corpus = corpus_of(tmp_path, file_of(tmp_path, "a.faa", fasta(others | peptides)), "protein")
    assert len(first_epoch(corpus)) + len(corpus.heldout(999)) == 15


def expected_pieces(letters, window, overlap):
    """Returns the windows of each run of known letters, one by one."""
    found = []
    for run in letters.upper().split("N"):
        at = 0
        while run and (at == 0 or at + overlap < len(run)):
            found.append(run[at : at + window])
            at += window - overlap
    return found


@pytest.mark.parametrize("window, overlap", [(1, 0), (4, 0), (5, 2), (7, 6), (1000, 3)])
def test_pieces_do_not_depend_on_the_parts_of_a_record(window, overlap):
    rng = random.Random(window)
    for _ in range(60):
        letters = "".join(rng.choices("ACgtN", k=rng.randrange(1, 40)))
        cuts = sorted(rng.choices(range(len(letters)), k=3))
        parts = [letters[a:b] for a, b in zip([0, *cuts], [*cuts, len(letters)])]
        record = [RawDocument(part, fields={"id": "x"}, ends_document=False) for part in parts]
        record[-1] = record[-1]._replace(ends_document=True)
        cut = {"window": window, "overlap": overlap, "lowercase_weight": 0.1}
        got = [*pieces(record * 2, ALPHABETS["dna"], LeftOut(), **cut)]
        texts = [piece.text.text for piece in got]
        assert texts == expected_pieces(letters, window, overlap) * 2
        assert [i for i, piece in enumerate(got, 1) if piece.ends_document] == (
            [len(got) // 2, len(got)] if got else []
        )
        if overlap == 0:
            weights = np.concatenate([piece.text.weights for piece in got] or [[]])
            known = (letters * 2).replace("N", "")
            np.testing.assert_array_equal(weights < 1, [letter.islower() for letter in known])


def test_lowercase_letters_have_weights_and_whole_records_are_held_out(tmp_path):
    records = drawn(1) | {"masked": "acgtACGTNNNACGT"}
    path = file_of(tmp_path, "a.fa.bgz", fasta(records))
    corpus = corpus_of(tmp_path, path, window=50, lowercase_weight=0.1)
    assert corpus.columns == ("weights",)
    documents = first_epoch(corpus)
    assert max(document.tokens.size for document in documents) == 50
    (masked,) = [one for one in documents if one.tokens.size == 8]
    np.testing.assert_allclose(masked.weights, [0.1] * 4 + [1] * 4, rtol=1e-6)
    held_out = "".join(texts_of(corpus, corpus.heldout(10**6)))
    assert len(held_out) == 2 * 300  # Two of the 41 records are held out.
    whole = sorted(letters for letters in records.values() if letters[:50] in held_out)
    assert sum(map(len, whole)) == len(held_out)


def test_records_files_and_clusters_are_held_out(tmp_path):
    records = drawn(2)
    path = file_of(tmp_path, "a.fa", fasta(records))
    by_name = corpus_of(tmp_path, path, run="a", heldout_records="r3, r5")
    assert texts_of(by_name, by_name.heldout(10**6)) == sorted([records["r3"], records["r5"]])
    assert len(first_epoch(by_name)) == 38
    numbered = file_of(tmp_path, "n.fa", ">7\nAAAA\n>8\nCCCC\n>X\nGGGG\n")
    by_number = corpus_of(tmp_path, numbered, run="n", heldout_records=(7, "X"))
    assert texts_of(by_number, by_number.heldout(99)) == ["AAAA", "GGGG"]
    other = file_of(tmp_path, "b.fa", ">b\nACGT\n")
    by_file = corpus_of(tmp_path, path, run="b", heldout_files=other)
    assert texts_of(by_file, by_file.heldout(99)) == ["ACGT"] and len(first_epoch(by_file)) == 40
    families = {name: f"r{i // 4 * 4}" for i, name in enumerate(records)}
    rows = "".join(f"{family}\t{name}\n" for name, family in families.items())
    clusters = file_of(tmp_path, "clusters.tsv", rows)
    cut = {"window": 100, "heldout_clusters": clusters, "heldout_every": 5}
    by_cluster = corpus_of(tmp_path, path, run="c", **cut)
    names = {letters: name for name, letters in records.items()}
    family_of = {
        text[at : at + 100]: families[n] for text, n in names.items() for at in (0, 100, 200)
    }
    train = {family_of[text] for text in texts_of(by_cluster, first_epoch(by_cluster))}
    held_out = {family_of[text] for text in texts_of(by_cluster, by_cluster.heldout(10**6))}
    assert len(held_out) == 2 and len(train) == 8 and not train & held_out


@pytest.mark.parametrize("overlap", [0, 40, 80, 95])
def test_held_out_windows_of_a_record_share_no_letters_with_training(tmp_path, overlap):
    (letters,) = drawn(7, count=1, size=3000).values()
    path = file_of(tmp_path, "a.fa", fasta({"x": letters}))
    corpus = corpus_of(tmp_path, path, window=100, overlap=overlap)
    held_out = [letters.index(text) for text in texts_of(corpus, corpus.heldout(10**6))]
    train = texts_of(corpus, first_epoch(corpus))
    trained_end = max(letters.index(text) + len(text) for text in train)
    assert 2700 < trained_end <= min(held_out) < 2960


@pytest.mark.parametrize("window", [None, 400])
def test_held_out_k_mers_of_a_record_share_no_letters_with_training(tmp_path, window):
    """The cut is within a window of 400 letters."""
    (letters,) = drawn(7, count=1, size=3000).values()
    path = file_of(tmp_path, "a.fa", fasta({"x": letters}))
    k_mers = functools.partial(vocabularies.letters, alphabet="dna", k=6, overlapping=True)
    corpus = corpus_of(tmp_path, path, vocabulary=k_mers, window=window)
    (held_out,) = texts_of(corpus, corpus.heldout(10**6))
    train = texts_of(corpus, first_epoch(corpus))
    trained_end = max(letters.index(text) + len(text) for text in train)
    assert 2840 < trained_end == letters.index(held_out) < 2860


def test_record_with_too_few_overlapping_k_mers_is_rejected(tmp_path):
    path = file_of(tmp_path, "a.fa", fasta(drawn(8, count=1, size=20)))
    k_mers = functools.partial(vocabularies.letters, alphabet="dna", k=8, overlapping=True)
    corpus_of(tmp_path, path, vocabulary=k_mers)
    path = file_of(tmp_path, "b.fa", fasta(drawn(8, count=1, size=15)))
    with refuses(ValueError, 8, 7):  # 8 tokens, each sharing letters with the next 7
        corpus_of(tmp_path, path, run="short", vocabulary=k_mers)


def test_record_with_too_few_overlapping_windows_is_rejected(tmp_path):
    path = file_of(tmp_path, "a.fa", fasta(drawn(8, count=1, size=20)))
    with refuses(ValueError, "overlap", 10, 12):  # 10 windows, each overlapping the next 10
        corpus_of(tmp_path, path, window=11, overlap=10)


def test_invalid_heldout_settings_are_rejected(tmp_path):
    path = file_of(tmp_path, "a.fa", fasta(drawn(3, count=4)))
    clusters = file_of(tmp_path, "c.tsv", "r0\tr0\nr1\tr1\nr1\tr2\n")
    with refuses(ValueError, "heldout_records", "'chr9'"):
        corpus_of(tmp_path, path, heldout_records="r1, chr9")
    with refuses(MalformedLine, "a.fa:7", "'r3'", "c.tsv"):
        corpus_of(tmp_path, path, heldout_clusters=clusters)
    with refuses(ValueError, "heldout_records", "heldout_clusters"):
        corpus_of(tmp_path, path, heldout_records="r1", heldout_clusters=clusters)
    for content, place in (("r0\tr1\nr2\tr1\n", "c.tsv:2"), ("r0 r1\n", "c.tsv:1")):
        file_of(tmp_path, "c.tsv", content)
        with refuses(MalformedLine, place):
            corpus_of(tmp_path, path, heldout_clusters=clusters)
    for window in (9, None):
        with refuses(ValueError, "overlap", 9, "window", window):
            corpus_of(tmp_path, path, window=window, overlap=9)
    with refuses(ValueError, "reverse_complement", "'protein'"):
        corpus_of(tmp_path, path, "protein", reverse_complement=True)
    with refuses(ValueError, "'L'", "alphabet"):
        corpus_of(tmp_path, path, "protein", vocabulary=LETTERS["dna"])
    with refuses(ValueError, "a.txt", ".fa", ".fastq"):
        corpus_of(tmp_path, file_of(tmp_path, "a.txt", "text"))
    with refuses(ValueError, "'protien'", "protein"):
        alphabet_named("protien")


VOCABULARIES = {
    "letters": LETTERS["dna"],
    "k_mers": functools.partial(vocabularies.letters, alphabet="dna", k=3),
    "overlapping": functools.partial(vocabularies.letters, alphabet="dna", k=3, overlapping=True),
    "bpe": functools.partial(vocabularies.trained, size=600),
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_half_of_the_pieces_are_reverse_complements(tmp_path, name):
    records = drawn(4, count=60) | {"low": "acgtacgtaCCCCC"}
    path = file_of(tmp_path, "a.fa", fasta(records))
    settings = {"vocabulary": VOCABULARIES[name], "lowercase_weight": 0.1}
    corpus = corpus_of(tmp_path, path, reverse_complement=True, **settings)
    known = {text.upper(): text for text in records.values()}
    pair = str.maketrans("ACGTacgt", "TGCAtgca")
    known |= {text.upper(): text for text in [t.translate(pair)[::-1] for t in known.values()]}
    strands = []
    stream = corpus.open_shard(0, 1)
    for _ in range(3 * len(records)):
        if len(strands) == 70:
            state = stream.state()
        document = stream.next_document()
        text = known[corpus.codec.decode(document.tokens.tolist())]
        strands.append(text in records.values())
        if text.upper() != text and name in ("letters", "overlapping"):
            weights = np.array([0.1 if letter.islower() else 1.0 for letter in text])
            k = len(text) - len(document.tokens) + 1
            means = np.lib.stride_tricks.sliding_window_view(weights, k).mean(axis=1)
            np.testing.assert_allclose(document.weights, means, rtol=1e-3)
    assert 0.35 < np.mean(strands) < 0.65
    resumed = corpus.open_shard(0, 1)
    resumed.restore(state)
    again = [known[corpus.codec.decode(resumed.next_document().tokens)] for _ in range(50)]
    assert [text in records.values() for text in again] == strands[70:120]
    held_out = texts_of(corpus, corpus.heldout(10**6))
    assert {known[text] for text in held_out} <= {*records.values()}


def test_protein_ids_match_esm2(tmp_path):
    transformers = pytest.importorskip("transformers")
    letters = "LAGVSERTIDPKQNFYMHWCXBUZO.-"
    lines = ["<cls>", "<pad>", "<eos>", "<unk>", *letters, "<null_1>", "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(lines))
    published = transformers.EsmTokenizer(str(tmp_path / "vocab.txt"))
    (tmp_path / "run").mkdir()
    made = LETTERS["protein"](str(tmp_path / "run"), VocabularySource())
    ids = made.ids
    assert (ids.cls, ids.pad, ids.eos, ids.mask) == (
        published.cls_token_id,
        published.pad_token_id,
        published.eos_token_id,
        published.mask_token_id,
    )
    text = letters + "MKTAYIAKQR"
    expected = published(text, add_special_tokens=False)["input_ids"]
    assert made.tokenizer.encode_batch([text])[0].tolist() == expected
    assert [ids.cls, *expected, ids.sep] == published(text)["input_ids"]
    assert (
        made.codec.encode("MK<mask>") == published("MK<mask>", add_special_tokens=False).input_ids
    )


@pytest.mark.parametrize("k", [1, 2, 6])
@pytest.mark.parametrize("text", ["", "ACGTACGTACGTA", "ACGNNACGTTTTTTTTTTNACG", "ACXé<mask>"])
def test_letters_and_k_mers_match_the_tokenizers_library(tmp_path, k, text):
    import tokenizers

    made = vocabularies.letters(str(tmp_path), VocabularySource(), alphabet="dna", k=k).tokenizer
    other = tokenizers.Tokenizer.from_file(made.path)
    other.encode_special_tokens = True
    ids, spans = made.locate(text)
    assert ids.tolist() == made.encode_batch([text])[0].tolist() == other.encode(text).ids
    assert spans.tolist() == [[*span] for span in other.encode(text).offsets]
    if not {*text} - {*"ACGTN"}:
        assert made.decode(ids) == text


def test_dnabert_2_tokenizer_is_read(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    specials = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    made = Tokenizer(models.BPE(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    records = drawn(5)
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=specials, show_progress=False)
    made.train_from_iterator(records.values(), trainer)
    frame = {"single": "[CLS] $A [SEP]", "special_tokens": [("[CLS]", 1), ("[SEP]", 2)]}
    made.post_processor = processors.TemplateProcessing(**frame)
    made.save(str(tmp_path / "tokenizer.json"))
    from_file = functools.partial(vocabularies.from_file, path=str(tmp_path / "tokenizer.json"))
    path = file_of(tmp_path, "a.fa", fasta(records))
    corpus = corpus_of(tmp_path, path, vocabulary=from_file, reverse_complement=True)
    ids = corpus.ids
    assert (ids.cls, ids.sep, ids.pad, ids.mask, ids.text) == (1, 2, 3, 4, (5, 60))
    stream = corpus.open_shard(0, 1)
    tokens = np.concatenate([stream.next_document().tokens for _ in records])
    assert tokens.min() >= 5 and tokens.max() < 60
    read = made.encode(records["r0"], add_special_tokens=False)
    assert corpus.codec.encode(records["r0"]) == read.ids


@pytest.mark.slow
@pytest.mark.parametrize("name", ["protein_masked", "protein_diffusion"])
def test_proteins_of_a_row_do_not_attend_to_each_other(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    tiny.on_one_device(monkeypatch)
    file_of(tmp_path, "a.faa", fasta({f"p{i}": "MKTAYIAKQR" * 4 for i in range(40)}))
    plan = plan_run(read_run([f"runs/{name}.gin"], ["FILES='a.faa'"]))
    (group,) = plan.recipe.groups
    row, *_ = rows_of_documents(plan.corpus.heldout(999), plan.packing)
    rows = stacked([row], group.row_length)
    batch = corrupt_and_arrange(plan.recipe, group, jax.random.split(jax.random.key(0), 1), rows)
    segments = np.asarray(batch["encoder_segment_ids"][0])
    ((starts, ends),) = np.asarray(batch["encoder_key_intervals"])
    sizes = np.bincount(segments)[1:]
    framed = 42 if name == "protein_masked" else 40
    assert len(sizes) > 1 and {*sizes.tolist()} == {framed}  # no other end of a protein
    for i in np.flatnonzero(segments):
        assert {*segments[starts[i] : ends[i]]} == {segments[i]}


@pytest.mark.slow
def test_resumed_sequence_run_equals_an_uninterrupted_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file_of(tmp_path, "a.fa.gz", fasta(drawn(6, letters="ACGTacgtN")))
    settings = [
        *("--gin_file=runs/dna_masked.gin", "--files=a.fa.gz", "--steps=4"),
        *("--gin.training.Run.checkpoint_every=2", "--gin.training.Run.evaluate_every=4"),
        *("--gin.models.encoder.num_layers=1", "--gin.training.Run.log_every=1"),
    ]
    tiny.train_in_process([*settings, "--run_dir=whole"])
    whole = tiny.saved_arrays(tmp_path / "whole", 4)
    shutil.copytree("whole", "half")
    shutil.rmtree("half/checkpoints/4")
    (tmp_path / "half/result.json").unlink()
    capsys.readouterr()
    tiny.train_in_process([*settings, "--run_dir=half"])
    assert " 2" in capsys.readouterr().out
    tiny.assert_same(tiny.saved_arrays(tmp_path / "half", 4), whole)
