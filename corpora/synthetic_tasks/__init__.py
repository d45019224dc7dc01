"""Synthetic tasks: functions that generate text, and questions with known answers, from a seed.

    training.Run.corpus = @corpora.synthetic_documents
    corpora.synthetic_documents.task = @synthetic_tasks.reversal

The eval metric `synthetic_questions` evaluates a run on the questions of its synthetic task. Your
own synthetic task is a function `(*, seed) -> SyntheticTask` (docs/synthetic_tasks.md).
"""

from .digit_sums import arithmetic
from .gene_grammar import genes
from .key_values import recall
from .labeled_words import word_lists
from .level_grammar import grammar
from .nested_brackets import brackets
from .one_direction import reversal
from .path_star import star_graphs
from .protein_families import proteins
from .rearranged_lists import rearranging
from .small_sudoku import sudoku
from .successive_states import processes
from .task import SyntheticPair, SyntheticQuestion, SyntheticSite, SyntheticTask

__all__ = [
    "SyntheticTask",
    "SyntheticPair",
    "SyntheticQuestion",
    "SyntheticSite",
    "arithmetic",
    "brackets",
    "genes",
    "grammar",
    "processes",
    "proteins",
    "rearranging",
    "recall",
    "reversal",
    "star_graphs",
    "sudoku",
    "word_lists",
]
