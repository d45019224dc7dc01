"""Corpora without TensorFlow: functions that gin binds and that return a `Corpus`.

    training.Run.corpus = @corpora.text_files
    corpora.text_files.files = "data/*.txt"
    corpora.text_files.vocabulary = @vocabularies.trained

Each takes the run directory, and a factory of `tasks.vocabularies` for the vocabulary. It keeps the
vocabulary and the tokenised text there, so that a later verb needs nothing but the directory, and a
second start reads no text again. Those of SeqIO tasks are `tasks.seqio_corpora`.
"""

from pretrax.tasks.corpora.dialogue_files import dialogues
from pretrax.tasks.corpora.labelled_files import labelled_text
from pretrax.tasks.corpora.library import docstring_pairs, python_library
from pretrax.tasks.corpora.text import text_files
from pretrax.tasks.corpora.token_files import token_files
from pretrax.tasks.corpora.token_stores import token_store

__all__ = [
    "dialogues",
    "docstring_pairs",
    "labelled_text",
    "python_library",
    "text_files",
    "token_files",
    "token_store",
]
