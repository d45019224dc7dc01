"""Writes a `Run` as the config.gin of its directory, which `run_configuration` reads back."""

import os
from collections.abc import Mapping
from typing import Any

from ..settings import atomic_writes, run_directory
from ..settings.gin_writer import GinText, gin_text
from .run import Run, fields_of

# Fields that are written as macros, so that a short option can override them.
MACROS = {"run_dir": "RUN_DIR", "steps": "STEPS"}


def write_run(run: Run) -> tuple[str, ...]:
    """Writes `RUN/config.gin`; returns the fields that gin cannot express, see `gin_text`."""
    written = run_text(fields_of(run))
    file = os.path.join(run.run_dir, run_directory.CONFIG)
    atomic_writes.write_text(file, atomic_writes.sealed_text(written.text))
    return written.unnamed


def run_text(fields: Mapping[str, Any]) -> GinText:
    """Returns fields of a `Run` as a gin file.

    >>> from pretrax import models
    >>> from pretrax.settings.partial import Partial
    >>> print(run_text({"steps": 100, "model": Partial(models.decoder, emb_dim=64)}).text)
    from __gin__ import dynamic_registration
    <BLANKLINE>
    from pretrax import models
    from pretrax import training
    <BLANKLINE>
    STEPS = 100
    <BLANKLINE>
    training.Run.steps = %STEPS
    training.Run.model = @models.decoder
    <BLANKLINE>
    models.decoder.emb_dim = 64
    <BLANKLINE>
    """
    return gin_text(fields, Run, MACROS)
