"""Synthetic tasks of sequences of letters that hidden Markov models emit, with exact likelihoods.

The probability of a whole sequence with another letter at a site, divided by the probability of the
sequence, is also the ratio of the probabilities of both letters given the rest of the sequence. A
model that predicts masks and a model of whole sequences therefore have the same exact answer.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .hidden_markov import PADDING, HiddenMarkov, letter_log_likelihoods, sampled
from .task import SyntheticSite, SyntheticTask, drawn_texts

KINDS = ("conserved", "free")
CLASSIFIED = 60  # mean number of sequences of each model whose class is asked for
TAGGED = 400  # number of sequences whose regions are asked for
_BATCH = 4000  # sequences that are drawn at once
_DRAWS = 100  # largest number of sequences drawn for each one that is needed


class SequenceWorld(NamedTuple):
    """Equally likely hidden Markov models of sequences, such as families of proteins.

    Sequences outside of the range of lengths are drawn again. This divides the probabilities of all
    other sequences by the same number, so that ratios of probabilities stay exact.
    """

    alphabet: str
    models: Sequence[HiddenMarkov]
    kinds: Sequence[Sequence[str]]  # "conserved", "free" or "" for each state of each model
    lengths: tuple[int, int]  # numbers of letters of the shortest and of the longest sequence
    regions: Sequence[Sequence[str]] = ()  # for each state of each model, such as "exon"


def sequence_task(
    rng: np.random.Generator, world: SequenceWorld, documents: int, sites: int
) -> SyntheticTask:
    """Returns the synthetic task of a world.

    Args:
      documents: number of training sequences; a twentieth more is held out.
      sites: number of sites of each kind, each in a sequence of its own that is not a document.

    Raises ValueError if the models hardly draw sequences of these lengths or with such sites.
    """
    drawn = _drawn(rng, world, documents)
    train, heldout = drawn_texts(lambda: _text(world, next(drawn)[0]), documents)
    read = {*train}
    sequences: dict[str, list[tuple[np.ndarray, int]]] = {kind: [] for kind in KINDS}
    drawn = _drawn(rng, world, sites)
    while min(map(len, sequences.values())) < sites:
        letters, states, k = next(drawn)
        if _text(world, letters) in read:
            continue
        kind = min(KINDS, key=lambda kind: len(sequences[kind]))
        places = [p for p in range(1, len(letters) - 1) if world.kinds[k][states[p]] == kind]
        if places:
            sequences[kind].append((letters, int(rng.choice(places))))
    drawn_sites = [
        site
        for kind in KINDS
        for site in _sites(
            world, [x for x, _ in sequences[kind]], [p for _, p in sequences[kind]], kind
        )
    ]
    classes = []
    if len(world.models) > 1:
        others = _others(rng, world, read, CLASSIFIED * len(world.models))
        classes = [(_text(world, letters), str(k)) for letters, _, k in others]
    tags = []
    if world.regions:
        others = _others(rng, world, read, TAGGED)
        tags = [
            (_text(world, letters), _regions(world, states, k)) for letters, states, k in others
        ]
    return SyntheticTask(
        documents=train,
        heldout=heldout,
        questions=[site.question for site in drawn_sites],
        sites=drawn_sites,
        classes=classes,
        tags=tags,
    )


def write_sequences(name: str, rng: np.random.Generator, world: SequenceWorld, count: int) -> None:
    """Draws sequences and writes NAME.fasta, whose records have the ids 1, 2, ….

    For a world with regions, NAME.bed has the regions of each record. For a world of several
    models, NAME.tsv has a cluster for each model: each line has the first and another record of a
    cluster, as MMseqs2 writes them.

        write_sequences("genes", np.random.default_rng(0), gene_world(), 1000)
    """
    records = []
    regions = []
    clusters = []
    first: dict[int, int] = {}  # model -> its first record
    drawn = itertools.islice(_drawn(rng, world, count), count)
    for record, (letters, states, k) in enumerate(drawn, 1):
        records.append(f">{record}\n{''.join(_text(world, letters).split())}\n")
        clusters.append(f"{first.setdefault(k, record)}\t{record}\n")
        end = 0
        for region, run in itertools.groupby(_regions(world, states, k)):
            start = end
            end += len([*run])
            regions.append(f"{record}\t{start}\t{end}\t{region}\n")
    Path(f"{name}.fasta").write_text("".join(records))
    if world.regions:
        Path(f"{name}.bed").write_text("".join(regions))
    if len(world.models) > 1:
        Path(f"{name}.tsv").write_text("".join(clusters))


def _drawn(
    rng: np.random.Generator, world: SequenceWorld, needed: int
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yields (letters i[L], states i[L], number of the model) of sequences."""
    shortest, longest = world.lengths
    for _ in range(1 + _DRAWS * needed // _BATCH):
        counts = rng.multinomial(_BATCH, np.full(len(world.models), 1 / len(world.models)))
        batch = [
            (letters, states, k)
            for k, (model, count) in enumerate(zip(world.models, counts))
            for letters, states in sampled(rng, model, count, longest)
            if len(letters) >= shortest
        ]
        for k in rng.permutation(len(batch)):
            yield batch[k]
    raise ValueError(
        f"Got lengths of {shortest} to {longest} letters, but too few of the drawn sequences are "
        "that long, expected the lengths of most sequences: widen the range, or lower the number "
        "of sites."
    )


def _sites(
    world: SequenceWorld, sequences: Sequence[np.ndarray], places: Sequence[int], kind: str
) -> list[SyntheticSite]:
    before_BxL = _padded([letters[:place] for letters, place in zip(sequences, places)])
    after_BxL = _padded([letters[:place:-1] for letters, place in zip(sequences, places)])
    each = [letter_log_likelihoods(model, before_BxL, after_BxL) for model in world.models]
    log_p_BxA = np.logaddexp.reduce(each, axis=0) - np.log(len(each))
    return [
        _site(world, letters, place, log_p_A, kind)
        for letters, place, log_p_A in zip(sequences, places, log_p_BxA)
    ]


def _others(
    rng: np.random.Generator, world: SequenceWorld, read: set[str], count: int
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yields as `_drawn`, without the sequences that are read."""
    drawn = _drawn(rng, world, count)
    return itertools.islice((one for one in drawn if _text(world, one[0]) not in read), count)


def _regions(world: SequenceWorld, states: np.ndarray, k: int) -> list[str]:
    """Returns the region of each letter of a sequence, or nothing if the world has no regions."""
    return [world.regions[k][state] for state in states] if world.regions else []


def _padded(sequences: Sequence[np.ndarray]) -> np.ndarray:
    padded_BxL = np.full((len(sequences), max(map(len, sequences))), PADDING)
    for row, letters in zip(padded_BxL, sequences):
        row[: len(letters)] = letters
    return padded_BxL


def _site(world, sequence: np.ndarray, place: int, log_p_A: np.ndarray, kind: str) -> SyntheticSite:
    true_letter = int(sequence[place])
    order = [true_letter, *(k for k in range(len(world.alphabet)) if k != true_letter)]
    before, after = (_text(world, part) for part in (sequence[:place], sequence[place + 1 :]))
    return SyntheticSite(
        kind=kind,
        text=f"{before}<extra_id_0> {after}",
        answers=tuple(f" {world.alphabet[k]}" for k in order),
        log_likelihoods=tuple(log_p_A[order].tolist()),
    )


def _text(world: SequenceWorld, letters: np.ndarray) -> str:
    return " ".join([world.alphabet[k] for k in letters.tolist()])
