"""Plans runs of gin files without their corpus."""

import dataclasses
from unittest import mock

import numpy as np
from jax.sharding import AbstractMesh, AxisType

from pretrax.data.corpus import Corpus
from pretrax.objectives import TokenIds, TokenTexts, bitmap, check_token_ids
from pretrax.settings.partial import as_partial
from pretrax.training import planning
from pretrax.training.devices.mesh import AXES
from pretrax.training.run import Run
from tests.training import tiny

# T5's vocabulary, with UL2's mode tokens, sentinels and other special tokens above it.
IDS = check_token_ids(
    TokenIds(
        size=32137,
        text=(3, 32000),
        mask=32131,
        cls=32132,
        sep=32133,
        sentinels=tuple(range(32099, 31999, -1)) + tuple(range(32100, 32128)),
        modes=(("R", 32128), ("S", 32129), ("X", 32130)),
        fim=(32134, 32135, 32136),
        digits=tuple((10 + value, value) for value in range(10)),
        word_starts=bitmap(np.arange(32137) % 2),
        sentence_ends=bitmap(np.arange(32137) % 20 == 0),
        texts=TokenTexts(lambda: [f"{id:x}" for id in range(32137)]),
    )
)


def sizes_of_mesh(run: Run) -> tuple[int, ...]:
    settings = as_partial(run.mesh).settings
    return tuple(settings.get(axis, 1) for axis in AXES)


def planned(run: Run):
    """Returns the plan of a run with T5's ids, on an abstract mesh of the size that it names."""
    mesh = AbstractMesh(sizes_of_mesh(run), AXES, axis_types=(AxisType.Auto,) * len(AXES))
    objective = run.objective(IDS)
    classes = ("no", "yes") if objective.facts.rows.num_classes is not None else ()
    teacher = ("teacher",) if objective.facts.teacher else ()
    columns = (objective.facts.rows.kind, *teacher)
    corpus = Corpus(IDS, open_shard=None, heldout=None, columns=columns, classes=classes)
    run = dataclasses.replace(
        run,
        corpus=lambda run_dir: corpus,
        mesh=lambda: mesh,
        initial_run=None,
        evaluation_tasks=None,
    )
    # An abstract mesh has no devices to check.
    with mock.patch.object(planning, "check_attention"):
        return tiny.planned(run)
