"""The corpus of DNA, RNA and protein sequences in FASTA and FASTQ files."""

import functools
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..constraints import AtLeastTwo, Count, Natural, Share, checked
from ..data.corpus import Corpus, Document, DocumentStream, StreamOf
from ..data.documents import choose_held_out
from ..data.finding import listed, versions_of
from ..data.reading import (
    SEQUENCE_SUFFIXES,
    Bad,
    RawDocument,
    decoded,
    is_sequence_file,
    lines,
    malformed,
    opened,
    raw_documents,
    valid_documents,
)
from ..data.records import RecordStream
from ..data.token_store import HELDOUT, TRAIN
from .alphabets import Alphabet, alphabet_named
from .sequence_pieces import other_strand, overlapping_windows, pieces, shared_letters
from .text import FileSplit, counted, found_files, skew_warning, with_heldout
from .text_readers import LeftOut
from .tokenizing import SplitText, corpus_of, encode_documents, text_of_files, tokenized
from .vocabularies import Factory, Vocabulary, VocabularySource
from .vocabularies.tokenization import Tokenizer
from .vocabularies.training_sample import MAX_SAMPLE_CHARACTERS, first_texts
from .weighted_texts import encode_weighted

# (records, whether to choose the held-out records) -> the chosen records
Choice = Callable[[Iterable[RawDocument], bool], Iterable[RawDocument]]


@checked
def sequence_files(
    run_dir: str,
    *,
    files: str | Sequence[str],
    alphabet: str,
    vocabulary: Factory,
    window: Count | None = None,
    overlap: Natural = 0,
    reverse_complement: bool = False,
    lowercase_weight: Share = 1.0,
    heldout_files: str | Sequence[str] | None = None,
    heldout_records: str | int | Sequence[str | int] | None = None,
    heldout_clusters: str | None = None,
    heldout_every: AtLeastTwo = 20,
    seed: int = 0,
) -> Corpus:
    """DNA, RNA or protein sequences in FASTA or FASTQ files, also as .gz, .bgz or .zst.

        training.Run.corpus = @corpora.sequence_files
        corpora.sequence_files.files = "genomes/*.fa.gz"
        corpora.sequence_files.alphabet = "dna"
        corpora.sequence_files.vocabulary = @vocabularies.letters

    A record is a document. Its runs of N are left out. The letters between them are pieces of the
    document, which are shuffled like documents. All pieces of a record are in the same split. The
    text is tokenized once, and the tokens are stored in the run directory.

    Args:
        files: paths, glob patterns or bucket URLs ("gs://…"), as a list or separated by commas.
        alphabet: "dna", "rna" or "protein" (`corpora.alphabets`), or your own uppercase letters.
        window: largest number of letters of a piece, or None for pieces of any length.
        overlap: number of letters that a window shares with the window before it.
        reverse_complement: whether half of the pieces are read as their other strand. The strand of
            a piece is drawn again in each epoch. Held-out text is not changed.
        lowercase_weight: how much the loss on lowercase letters counts. Genomes have repeats in
            lowercase (soft-masked). With 1, documents have no weights of tokens.
        heldout_files: paths or patterns of the held-out files, such as other species.
        heldout_records: ids or names of the held-out records, such as chromosomes, which may be
            numbers.
        heldout_clusters: path of a TSV file with a representative and a member in each line, as
            MMseqs2 writes it. One cluster in `heldout_every` is held out with all of its members.
        heldout_every: without the three settings above, one record in `heldout_every` is held out,
            as in `text_files`. If the last part of a single record is held out, windows and
            overlapping k-mers that share letters with both parts are left out.

    Raises ValueError for settings that exclude each other, for a vocabulary without the letters of
    the alphabet, for a file of another format, and for a held-out name without a record. Raises
    `data.reading.MalformedLine`, which names the file, the record and the position, for a record
    that cannot be read or is in no cluster. Raises FileNotFoundError for a pattern without files.
    """
    letters = alphabet_named(alphabet)
    if overlap >= (window or 1):
        raise ValueError(
            f"Got corpora.sequence_files.overlap = {overlap} and window = {window}, expected an "
            "overlap that is less than the window."
        )
    if reverse_complement and not letters.complements:
        raise ValueError(
            f"Got corpora.sequence_files.reverse_complement for the alphabet {alphabet!r}, which "
            "has no complements, expected 'dna' or 'rna': leave it out."
        )
    setting, choice = _held_out_choice(
        heldout_files, heldout_records, heldout_clusters, heldout_every
    )
    paths = _sequence_paths(run_dir, files, heldout_files)
    cut = {"window": window, "overlap": overlap, "lowercase_weight": lowercase_weight}
    sequences = _Sequences(paths, choice, letters, cut)
    settings: list[Any] = [alphabet, *cut.values(), heldout_records]
    if heldout_clusters is not None:
        settings += [heldout_every, *versions_of([heldout_clusters])]
    splits = paths if choice is None else (TRAIN, HELDOUT)
    texts = {split: sequences.text(split, settings) for split in splits}
    vocab = vocabulary(run_dir, VocabularySource(sequences.sample, version=texts[TRAIN].version))
    _check_letters(vocab, letters)
    tokens = tokenized(run_dir, texts, vocab)
    split = FileSplit(paths, heldout_every, "text", "error")
    tokens, held_out = with_heldout(
        tokens,
        split,
        overlapping_windows(window, overlap),
        shared_letters(vocab.tokenizer, letters),
    )
    if choice is not None:
        held_out = f"chosen by {setting}"
    what = f"Sequences of {counted(paths[TRAIN])}"
    corpus = corpus_of(what, tokens, vocab, held_out=held_out, seed=seed)
    if setting is None:
        corpus = corpus._replace(summary=corpus.summary + skew_warning(tokens, heldout_every))
    if not reverse_complement:
        return corpus
    read = functools.partial(_either_strand, vocab.tokenizer, letters, seed)

    def open_shard(shard: int, num_shards: int) -> DocumentStream:
        return StreamOf(corpus.open_shard(shard, num_shards), read)

    return corpus._replace(open_shard=open_shard)


def _held_out_choice(
    files: str | Sequence[str] | None,
    records: str | int | Sequence[str | int] | None,
    clusters: str | None,
    every: int,
) -> tuple[str | None, Choice | None]:
    """Returns the setting that chooses the held-out records, and how it chooses among records.

    The choice is None for held-out files, and without a setting.
    """
    given = {"heldout_files": files, "heldout_records": records, "heldout_clusters": clusters}
    settings = [name for name, value in given.items() if value is not None]
    if len(settings) > 1:
        raise ValueError(
            f"Got corpora.sequence_files.{' and '.join(settings)}, expected one of these settings, "
            "since each of them chooses all held-out records."
        )
    choice: Choice | None = None
    if records is not None:
        choice = functools.partial(_by_name, _names(records))
    if clusters is not None:
        choice = functools.partial(_by_cluster, clusters, _held_out_members(clusters, every))
    return next(iter(settings), None), choice


def _sequence_paths(
    run_dir: str, files: str | Sequence[str], heldout_files: str | Sequence[str] | None
) -> dict[str, list[str]]:
    paths = found_files(run_dir, files, heldout_files)
    for path in itertools.chain.from_iterable(paths.values()):
        if not is_sequence_file(path):
            raise ValueError(
                f"Got {path}, expected FASTA or FASTQ ({', '.join(SEQUENCE_SUFFIXES)}), also as "
                ".gz, .bgz or .zst: convert or rename it, or use corpora.text_files for text."
            )
    return paths


class _Sequences(NamedTuple):
    """The files of a corpus of sequences, and how they are split and cut."""

    paths: dict[str, list[str]]  # the files of "train", and of "heldout" if they are other files
    choice: Choice | None  # None if whole files are held out, or documents after tokenizing
    alphabet: Alphabet
    cut: dict  # the settings of `pieces`

    def read(
        self,
        split: str,
        paths: Sequence[str],
        advance: Callable[[int], object],
        left_out: LeftOut,
        **settings,
    ) -> Iterator[RawDocument]:
        """Yields the pieces of a split in some of its files."""
        records: Iterable[RawDocument] = itertools.chain.from_iterable(
            valid_documents(raw_documents(path, "text", advance, text_in_parts=True))
            for path in paths
        )
        if self.choice is not None:
            records = self.choice(records, split == HELDOUT)
        return pieces(records, self.alphabet, left_out, **self.cut | settings)

    def text(self, split: str, settings: Sequence) -> SplitText:
        paths = self.paths.get(split, self.paths[TRAIN])
        return text_of_files(
            functools.partial(self.read, split, paths),
            paths,
            settings,
            encode_documents if self.cut["lowercase_weight"] == 1 else encode_weighted,
        )

    def sample(self) -> Iterator[str]:
        """Yields training text for a vocabulary, with the same limit for each file."""
        most = MAX_SAMPLE_CHARACTERS // len(self.paths[TRAIN])
        for path in self.paths[TRAIN]:
            cut = self.read(TRAIN, [path], lambda size: None, LeftOut(), lowercase_weight=1)
            yield from first_texts((piece.text for piece in cut), most)


def _names(given: str | int | Sequence[str | int]) -> frozenset[str]:
    """Returns names that are separated by commas or in a list. gin reads chromosome 7 as a number.

    >>> sorted(_names("7, X")), sorted(_names((7, "X"))), sorted(_names(7))
    (['7', 'X'], ['7', 'X'], ['7'])
    """
    if isinstance(given, str):
        return frozenset(listed(given))
    return frozenset(map(str, [given] if isinstance(given, int) else given))


def _by_name(
    names: frozenset[str], records: Iterable[RawDocument], held_out: bool
) -> Iterator[RawDocument]:
    """Yields the records with these ids or names if `held_out`, and all others if not."""
    found = set[str]()
    for record in records:
        own = names & {record.fields["id"], record.fields["name"]}
        found |= own
        if bool(own) == held_out:
            yield record
    if held_out and (missing := sorted(names - found)):
        raise ValueError(
            f"Got corpora.sequence_files.heldout_records with {missing[0]!r}, expected the id or "
            "the name of a record of the files: correct it."
        )


def _by_cluster(
    path: str, members: dict[str, bool], records: Iterable[RawDocument], held_out: bool
) -> Iterator[RawDocument]:
    """Yields the records whose clusters are held out if `held_out`, and all others if not."""
    for record in records:
        known = [name for key in ("id", "name") if (name := record.fields[key]) in members]
        if not known:
            reason = f"record {record.fields['id']!r} is in no cluster of {path}"
            change = "Cluster all records, since its relatives may be held out."
            raise malformed(Bad(record.place, "malformed", reason), change)
        if members[known[0]] == held_out:
            yield record


def _held_out_members(path: str, every: int) -> dict[str, bool]:
    """Returns whether each member of a file of clusters is held out.

    Raises MalformedLine for a line without two columns and for a member of two clusters, and
    ValueError for fewer than two clusters.
    """
    representatives: dict[str, str] = {}
    with opened(path) as file:
        for number, _, line in lines(file):
            columns = decoded(line).rstrip("\r\n").split("\t")
            if len(columns) != 2 or not all(columns):
                reason = f"got {len(columns)} column{'s' * (len(columns) != 1)}, expected two: a "
                reason += "representative and a member"
                change = "Separate the two by a tab."
                raise malformed(Bad(f"{path}:{number}", "malformed", reason), change)
            representative, member = columns
            if representatives.setdefault(member, representative) != representative:
                reason = f"{member!r} is in the clusters of {representatives[member]!r} and "
                reason += f"{representative!r}, expected one cluster"
                raise malformed(Bad(f"{path}:{number}", "malformed", reason))
    sizes = Counter(representatives.values())
    if len(sizes) < 2:
        raise ValueError(
            f"Got {len(sizes)} clusters in {path}, expected at least 2: cluster at a higher "
            "identity, or leave out corpora.sequence_files.heldout_clusters."
        )
    is_held_out = choose_held_out(np.array([*sizes.values()]), every)
    held_out = dict(zip(sizes, is_held_out.tolist()))
    return {member: held_out[one] for member, one in representatives.items()}


def _check_letters(vocabulary: Vocabulary, alphabet: Alphabet) -> None:
    """Raises ValueError for a vocabulary of other letters."""
    tokenizer = vocabulary.tokenizer
    for letter in alphabet.known:
        (ids,) = tokenizer.encode_batch([letter * 64])
        if tokenizer.unknown is not None and tokenizer.unknown in ids:
            raise ValueError(
                f"Got a vocabulary without the letter {letter!r}, expected the letters of "
                "corpora.sequence_files.alphabet: set vocabularies.letters.alphabet to the same "
                "value, or choose another vocabulary."
            )


def _either_strand(
    tokenizer: Tokenizer, alphabet: Alphabet, seed: int, stream: RecordStream
) -> Document:
    """Returns the next document of a stream, or its other strand, drawn from its position."""
    key = f"{seed} {stream.position}".encode()
    document = stream.next_document()
    flips = hashlib.blake2b(key, digest_size=1).digest()[0] & 1
    return other_strand(tokenizer, alphabet, document) if flips else document
