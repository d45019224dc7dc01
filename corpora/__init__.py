"""Corpora without TensorFlow. Each is a function that gin configures and that returns a `Corpus`.

    training.Run.corpus = @corpora.text_files
    corpora.text_files.files = "texts/*.txt"
    corpora.text_files.vocabulary = @vocabularies.trained

Most corpora store the vocabulary and the tokenized text in the run directory. Later commands need
nothing else, and a restarted run does not read the text again.
"""

from .dialogue_files import dialogues
from .generated import synthetic_documents
from .grain_datasets import grain_dataset
from .installed import installed_packages
from .labeled_files import labeled_text
from .library import docstring_pairs, python_library
from .planted import planted_passages
from .sequence_files import sequence_files
from .text import text_files
from .token_files import token_files
from .token_stores import token_store
from .validation import validation_split

__all__ = [
    "dialogues",
    "docstring_pairs",
    "grain_dataset",
    "installed_packages",
    "labeled_text",
    "planted_passages",
    "python_library",
    "sequence_files",
    "text_files",
    "token_files",
    "token_store",
    "validation_split",
    "synthetic_documents",
]
