"""A synthetic task of DNA: genes with a grammar on both strands, and exact likelihoods.

Burge & Karlin 1997, "Prediction of Complete Gene Structures in Human Genomic DNA" (J. Mol. Biol.
268), find genes on both strands by a model of this kind. A gene here is a promoter, a spacer, a
start codon, codons that introns may interrupt, and a stop codon:

    TATAAT (4 to 7 letters) ATG … GT … AG … TAA

The genes of the other strand are the same model, reversed in time and with complementary letters. A
sequence and its reverse complement are therefore equally likely.
"""

import functools
from collections.abc import Mapping

import numpy as np

from ...constraints import Count, checked
from .hidden_markov import HiddenMarkov, hidden_markov, reversed_in_time
from .sequence_sites import SequenceWorld, sequence_task
from .task import SyntheticTask

ALPHABET = "ACGT"  # The complement of a letter has its number counted from the end.
PROMOTER = "TATAAT"
LENGTHS = (24, 128)  # shortest and longest sequence, in letters
_MOTIF = 0.88  # probability of each letter of the promoter
_STAY = 0.9  # probability that the text between genes continues
_GENE = 0.6  # probability that a gene follows the text between genes, and not the end
_BETWEEN = "between"
_FREE = ("spacer", "intron")  # beginnings of names of a gene's states whose letters are free
_CODING = ("codon",)  # beginnings of names of states that are neither free nor conserved
_REGIONS = {  # beginnings of names of the states of each region
    "intergenic": (_BETWEEN,),
    "promoter": ("promoter", "spacer"),
    "intron": ("donor", "intron", "acceptor"),
    "exon": ("start", "codon", "stop"),
}


@checked
def genes(*, seed: int, documents: Count = 20_000, sites: Count = 60) -> SyntheticTask:
    """DNA with genes on both strands, with questions about the most likely letter.

        corpora.synthetic_documents.task = @synthetic_tasks.genes

    The kinds of questions and sites are `conserved` for letters of promoters, start and stop codons
    and the ends of introns, and `free` for letters between genes, in spacers and within introns.
    The correct answer is the most likely letter given the rest of the sequence. The grammar is the
    same for every seed.

    Args:
      documents: number of training sequences; a twentieth more is held out.
      sites: number of sites of each kind.
    """
    return sequence_task(np.random.default_rng(seed), gene_world(), documents, sites)


@functools.cache
def gene_world() -> SequenceWorld:
    """Returns the model of sequences with any number of genes on both strands."""
    forward = gene()
    backward = reverse_complement(forward)
    size = len(forward.names_S)
    states = 1 + 2 * size
    transitions_SxS = np.zeros((states, states))
    transitions_SxS[0, 0] = _STAY
    for start, strand in ((1, forward), (1 + size, backward)):
        own = slice(start, start + size)
        transitions_SxS[0, own] = (1 - _STAY) * _GENE / 2 * strand.start_S
        transitions_SxS[own, own] = strand.transitions_SxS
        transitions_SxS[own, 0] = strand.end_S
    begins_S = np.eye(states)[0]
    uniform_1xA = np.full((1, len(ALPHABET)), 1 / len(ALPHABET))
    both = HiddenMarkov(
        names_S=(_BETWEEN, *forward.names_S, *backward.names_S),
        start_S=begins_S,
        transitions_SxS=transitions_SxS,
        end_S=(1 - _STAY) * (1 - _GENE) * begins_S,
        emissions_SxA=np.concatenate([uniform_1xA, forward.emissions_SxA, backward.emissions_SxA]),
    )
    return SequenceWorld(
        alphabet=ALPHABET,
        models=[both],
        kinds=[[*map(_kind, both.names_S)]],
        lengths=LENGTHS,
        regions=[[*map(_region, both.names_S)]],
    )


def gene() -> HiddenMarkov:
    """Returns the model of a gene on the forward strand, from its promoter to its stop codon."""
    promoter = [f"promoter{k}" for k in range(len(PROMOTER))]
    spacer = [f"spacer{k}" for k in range(7)]
    chain = [*promoter, *spacer[:4]]
    transitions: dict[str, Mapping[str, float]] = {
        "begin": {promoter[0]: 1},
        **{name: {following: 1} for name, following in zip(chain, chain[1:])},
        **{s: {following: 0.5, "startA": 0.5} for s, following in zip(spacer[3:], spacer[4:])},
        spacer[-1]: {"startA": 1},
        "startA": {"startT": 1},
        "startT": {"startG": 1},
        "startG": {"codon": 1},
        # No codon of the text is a stop codon: TAA, TAG or TGA.
        "codon": {"codon T": 0.25, "codon other": 0.75},
        "codon T": {"codon TA": 0.25, "codon TG": 0.25, "codon TY": 0.5},
        "codon TA": {"codon TAY": 1},
        "codon TG": {"codon TGB": 1},
        "codon TY": {"codon third": 1},
        "codon other": {"codon second": 1},
        "codon second": {"codon third": 1},
        **{name: {"after": 1} for name in ("codon TAY", "codon TGB", "codon third")},
        "after": {"codon": 0.75, "donorG": 0.1, "stopT": 0.15},
        "donorG": {"donorT": 1},
        "donorT": {"intron": 1},
        "intron": {"intron": 0.8, "acceptorA": 0.2},
        "acceptorA": {"acceptorG": 1},
        "acceptorG": {"codon": 1},
        "stopT": {"stop A": 2 / 3, "stop G": 1 / 3},
        "stop A": {"stop R": 1},
        "stop G": {"stop GA": 1},
        "stop R": {"end": 1},
        "stop GA": {"end": 1},
    }
    letters = {  # the letters of a state, equally likely
        **dict.fromkeys([*spacer, "intron", "codon second", "codon third"], "ACGT"),
        **{"startA": "A", "startT": "T", "startG": "G", "donorG": "G", "donorT": "T"},
        **{"acceptorA": "A", "acceptorG": "G", "stopT": "T", "stop A": "A", "stop G": "G"},
        **{"stop R": "AG", "stop GA": "A", "codon T": "T", "codon TA": "A", "codon TG": "G"},
        **{"codon TY": "CT", "codon TAY": "CT", "codon TGB": "CGT", "codon other": "ACG"},
    }
    motif = {name: _one_of(x, _MOTIF) for name, x in zip(promoter, PROMOTER)}
    return hidden_markov(transitions, motif | {name: _one_of(x) for name, x in letters.items()})


def reverse_complement(model: HiddenMarkov) -> HiddenMarkov:
    """Returns the model that reads the other strand: backwards, and with complementary letters."""
    model = reversed_in_time(model)
    return model._replace(emissions_SxA=model.emissions_SxA[:, ::-1])


def _one_of(letters: str, share: float = 1.0) -> np.ndarray:
    """Returns probabilities of which `share` belongs to these letters, and the rest to others."""
    chosen_A = np.array([letter in letters for letter in ALPHABET])
    rest_A = (1 - share) / max((~chosen_A).sum(), 1)
    return np.where(chosen_A, share / chosen_A.sum(), rest_A)


def _kind(state: str) -> str:
    if state.startswith(_CODING):
        return ""
    return "free" if state.startswith((_BETWEEN, *_FREE)) else "conserved"


def _region(state: str) -> str:
    return next(region for region, begins in _REGIONS.items() if state.startswith(begins))
