"""A comparison that is trained in seconds, and a yardstick of nothing but its parameters."""

import pathlib

import jax
import numpy as np

from pretrax.comparing.figures import LOWER, Figure
from tests.training import tiny

FILE = """
from __gin__ import dynamic_registration
from pretrax import comparing
from pretrax.comparing import budgets
from tests.comparing import small

DIRECTORY = {directory!r}
SEEDS = [0, 1]

comparing.Comparison.directory = %DIRECTORY
comparing.Comparison.question = "Does a larger step help?"
comparing.Comparison.base = [{base!r}, "DATA = '{data}'", "RUN_DIR = 'unused'"]
comparing.Comparison.variants = {{"small": [], "large/2": ["PEAK = 1e-2"]}}
comparing.Comparison.seeds = %SEEDS
comparing.Comparison.budget = @budgets.text_tokens
budgets.text_tokens.number = 1500
comparing.Comparison.yardsticks = [@small.norm]
"""


def write(folder: pathlib.Path, *lines: str) -> str:
    """Writes a comparison of four runs of six steps in a folder; returns the path of its file."""
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / "base.gin"
    base.write_text(tiny.CONFIG)
    data = tiny.write_array(folder / "data")
    text = FILE.format(directory=str(folder / "compared"), base=str(base), data=data)
    (folder / "small.gin").write_text(text + "\n".join(lines) + "\n")
    return str(folder / "small.gin")


def norm(subject, *, power: int = 2) -> list[Figure]:
    """The norm of the parameters, which every bit of training decides."""
    leaves = jax.tree.leaves(jax.device_get(subject.saved.params))
    total = sum(float(np.sum(np.abs(x).astype(np.float64) ** power)) for x in leaves)
    return [Figure("norm", total ** (1 / power), "units", LOWER)]
