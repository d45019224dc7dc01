"""A synthetic task of protein families: profile hidden Markov models with exact likelihoods.

Krogh et al. 1994, "Hidden Markov Models in Computational Biology: Applications to Protein
Modeling" (J. Mol. Biol. 235): each column of a family has a state that emits its residue (match), a
state that emits further residues after it (insert), and a silent state that leaves it out (delete).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ...constraints import AtLeastTwo, Count, OpenShare, checked
from .hidden_markov import hidden_markov
from .sequence_sites import SequenceWorld, sequence_task
from .task import SyntheticTask

# Frequencies of residues in UniProtKB/Swiss-Prot, in percent, rounded from its release statistics.
BACKGROUND: Mapping[str, float] = {
    **{"A": 8.3, "C": 1.4, "D": 5.5, "E": 6.7, "F": 3.9, "G": 7.1, "H": 2.3, "I": 5.9, "K": 5.8},
    **{"L": 9.6, "M": 2.4, "N": 4.1, "P": 4.7, "Q": 3.9, "R": 5.5, "S": 6.6, "T": 5.4, "V": 6.9},
    **{"W": 1.1, "Y": 2.9},
}
# Sum of a column's Dirichlet parameters: small sums give nearly fixed columns, and large sums give
# columns that hardly differ from the background.
CONCENTRATIONS = (0.2, 3.0, 30.0)
MIXED = 0.05  # share of the background in each column, so that every residue may be learned
CONSERVED = 0.8  # least probability of the most likely residue of a conserved column
FREE = 0.35  # largest probability of the most likely residue of a free column


@checked
def proteins(
    *,
    seed: int,
    documents: Count = 20_000,
    families: Count = 16,
    columns: AtLeastTwo = 24,
    gap: OpenShare = 0.03,
    sites: Count = 60,
) -> SyntheticTask:
    """Proteins of families drawn from the seed, with questions about the most likely residue.

        corpora.synthetic_documents.task = @synthetic_tasks.proteins

    The kinds of questions and sites are `conserved` and `free`, by the column that emitted the
    residue. The correct answer is the most likely residue under the mixture of families, given the
    rest of the protein.

    Args:
      documents: number of training proteins; a twentieth more is held out.
      families: number of families, which are equally frequent.
      columns: number of columns of each family.
      gap: probability that residues are inserted after a column, and that a column is left out. A
        gap continues with a probability of 0.3.
      sites: number of sites of each kind.

    Proteins have at most a third more residues than a family has columns.

    Raises ValueError if the families are so few or short that they lack columns of a kind.
    """
    rng = np.random.default_rng(seed)
    world = protein_families(rng, families, columns, gap)
    if not all(any(kind in kinds for kinds in world.kinds) for kind in ("conserved", "free")):
        raise ValueError(
            f"Got {families} families of {columns} columns, without a conserved column or without "
            "a free column, expected both kinds: raise synthetic_tasks.proteins.columns."
        )
    return sequence_task(rng, world, documents, sites)


def protein_families(
    rng: np.random.Generator, families: int, columns: int, gap: float
) -> SequenceWorld:
    """Returns the profiles of families, whose columns differ in conservation."""
    background = np.array([*BACKGROUND.values()]) / 100
    models = []
    kinds = []
    for _ in range(families):
        concentrations = rng.choice(CONCENTRATIONS, columns)
        emissions = [
            (1 - MIXED) * rng.dirichlet(total * background) + MIXED * background
            for total in concentrations
        ]
        models.append(hidden_markov(*profile(emissions, background, gap)))
        kinds.append([_kind(row) for row in emissions] + [""] * (columns - 1))
    lengths = (3, columns * 4 // 3)
    return SequenceWorld("".join(BACKGROUND), models, kinds, lengths)


def profile(
    emissions: Sequence[np.ndarray], background: np.ndarray, gap: float, longer: float = 0.3
) -> tuple[dict[str, dict[str, float]], dict[str, np.ndarray]]:
    """Returns the tables of a family, for `hidden_markov`: match states, then insert states.

    Args:
      emissions: the probabilities f64[A] of each column's residues.
      background: the probabilities f64[A] of inserted residues.
      gap: probability that an insertion begins after a column, and that a column is left out.
      longer: probability that a gap continues.
    """
    last = len(emissions)
    transitions: dict[str, dict[str, float]] = {"begin": {"match1": 1 - gap, "delete1": gap}}
    for k in range(1, last):
        match, delete = f"match{k + 1}", f"delete{k + 1}"
        transitions[f"match{k}"] = {match: 1 - 2 * gap, f"insert{k}": gap, delete: gap}
        transitions[f"insert{k}"] = {match: 1 - longer, f"insert{k}": longer}
        transitions[f"delete{k}"] = {match: 1 - longer, delete: longer}
    transitions |= {f"match{last}": {"end": 1}, f"delete{last}": {"end": 1}}
    inserts = {f"insert{k}": background for k in range(1, last)}
    return transitions, {f"match{k}": row for k, row in enumerate(emissions, 1)} | inserts


def _kind(emissions_A: np.ndarray) -> str:
    largest = emissions_A.max()
    return "conserved" if largest >= CONSERVED else "free" if largest <= FREE else ""
