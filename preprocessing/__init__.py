"""From raw text to a token store: read, clean, filter, deduplicate, tokenize; the only datatrove.

    from pretrax import preprocessing
    preprocessing.Preparation.steps = [@filters.gopher_repetition, @duplicates.near_duplicates]

A `Preparation` is a value: a source, steps, an output and an executor, each a function with
settings. Its parts live in `sources`, `filters`, `duplicates`, `outputs` and `executors`, which
need the extra `prepare`.
"""

from .preparation import Preparation

__all__ = ["Preparation"]
