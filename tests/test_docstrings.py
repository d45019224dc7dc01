"""The examples in docstrings that begin with >>> give the results below them."""

import doctest
import functools
import importlib

import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import models, objectives
from pretrax.settings.partial import Partial
from tests.import_graph import MODULES
from tests.objectives.registry import IDS

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
# Names that examples use without an import, unless their module defines them.
NAMES = {
    **{name: getattr(objectives, name) for name in objectives.__all__},
    **{"Partial": Partial, "functools": functools, "ids": IDS, "jnp": jnp, "models": models},
    **{"np": np, "objectives": objectives},
}


@pytest.mark.parametrize(
    "name", [name for name, file in MODULES.items() if ">>> " in file.read_text("utf-8")]
)
def test_examples_give_what_they_say(name):
    module, report = importlib.import_module(name), []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for example in doctest.DocTestFinder().find(module, globs=NAMES | vars(module)):
        runner.run(example, out=report.append)
    result = runner.summarize(verbose=False)
    assert result.attempted and not result.failed, "".join(report)
