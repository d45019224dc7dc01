"""Worlds: functions that draw text from a seed, and questions about it whose answers are known.

    training.Run.corpus = @corpora.world_documents
    corpora.world_documents.world = @worlds.reversal

The yardstick `world_questions` asks a run the questions of the world that it was trained on. One of
your own is one more function `(*, seed) -> World` (docs/own_world.md).
"""

from .digit_sums import arithmetic
from .key_values import recall
from .labelled_words import word_lists
from .level_grammar import grammar
from .nested_brackets import brackets
from .one_direction import reversal
from .path_star import star_graphs
from .rearranged_lists import rearranging
from .small_sudoku import sudoku
from .successive_states import processes
from .world import World, WorldPair, WorldQuestion

__all__ = [
    "World",
    "WorldPair",
    "WorldQuestion",
    "arithmetic",
    "brackets",
    "grammar",
    "processes",
    "rearranging",
    "recall",
    "reversal",
    "star_graphs",
    "sudoku",
    "word_lists",
]
