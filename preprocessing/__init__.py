"""Prepares a token store from raw text: reads, cleans, filters, deduplicates and tokenizes it.

    from pretrax import preprocessing
    preprocessing.Preparation.steps = [@filters.gopher_repetition, @duplicates.near_duplicates]

A `Preparation` has a source, steps, an output and an executor, each a function with settings, from
`sources`, `filters`, `duplicates`, `outputs` and `executors`, which need the extra `prepare`. No
other package uses datatrove.
"""

from .preparation import Preparation

__all__ = ["Preparation"]
