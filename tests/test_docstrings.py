"""Examples in docstrings give the results below them, and fields of records are described."""

import doctest
import functools
import importlib
import inspect
import re

import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import inference, models, objectives
from pretrax.comparison import Comparison
from pretrax.settings.partial import Partial
from pretrax.training.hooks import AfterStep, Hook
from pretrax.training.run import Run
from pretrax.training.saved.result import Result
from tests.import_graph import MODULES
from tests.objectives.registry import IDS

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
# Names that examples use without an import, unless their module defines them.
NAMES = {
    **vars(objectives),
    **{"Partial": Partial, "functools": functools, "ids": IDS, "jnp": jnp, "models": models},
    **{"np": np, "objectives": objectives},
}


@pytest.mark.sampled
@pytest.mark.parametrize(
    "name", [name for name, file in MODULES.items() if ">>> " in file.read_text("utf-8")]
)
def test_docstring_examples_give_the_stated_results(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an example may write a file
    module, report = importlib.import_module(name), []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for example in doctest.DocTestFinder().find(module, globs=NAMES | vars(module)):
        runner.run(example, out=report.append)
    result = runner.summarize(verbose=False)
    assert result.attempted and not result.failed, "".join(report)


RECORDS = [
    *(objectives.Objective, objectives.Facts, objectives.Row, objectives.Rows, objectives.Term),
    *(objectives.Member, objectives.TokenIds),
    *(Run, Hook, AfterStep, Result, Comparison),
    *(inference.Options, inference.Decoding, inference.Trained),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_of_a_public_record_is_documented(record):
    """`help` and the API reference show the types and the defaults from the annotations."""
    described = inspect.getdoc(record).partition("Attributes:\n")[2]
    entries = dict(re.findall(r"^  (\w+)(?: \(.+?\))?: (\S.*)", described, re.MULTILINE))
    assert list(entries) == list(record.__annotations__)
