"""A bound on the likelihood of texts by the loss of a run's own objective under its noise.

Block diffusion, uniform diffusion and any-order models need it.
"""

import functools
from collections.abc import Sequence

import jax
import numpy as np
from jax import lax

from ....data.corpus import Document
from ....data.packing import Packing, empty_row, rows_of_documents, stacked
from ....training.devices.mesh import placed_on
from ....training.heldout_evaluation import plan_under
from ....training.step import corrupt_and_arrange
from ..subject import Subject

ROWS = 16  # number of rows whose noise is drawn at a time


def is_bounded_by_noise(subject: Subject) -> bool:
    """Returns whether only the noise of the objective itself gives a likelihood of text.

    Raises ValueError if this is so, but the loss of the objective is not a bound.
    """
    forms = subject.trained.prompt_forms
    modes = {form.mode for form in forms if form.predicted == "in place"}
    if not forms or modes - {"blocks", "denoise"}:
        return False
    if not subject.plan.recipe.objective.facts.bound:
        raise ValueError(
            "The loss does not bound the likelihood: expected an objective that is not a mixture, "
            "with a lowest_rate of at most 0.001 and highest_rate=1."
        )
    return True


def nats_by_noise(subject: Subject, texts: Sequence[np.ndarray], keys: jax.Array) -> np.ndarray:
    """Returns f64[draws, texts]: the bound on each text's nats, for each draw of noise.

    Texts of equal length with the same key have noise in the same places, so their difference
    varies little. An empty text has 0 nats. Raises ValueError for a text that is too long.
    """
    plan = subject.plan
    params = subject.saved.params
    objective = plan.recipe.objective
    bound = objective.facts.bound
    assert bound is not None  # see `is_bounded_by_noise`
    longest = max(2, *(text.size for text in texts))  # A row has at least two tokens.
    own_rows = plan_under(plan, objective, longest)
    recipe = own_rows.recipe
    (group,) = recipe.groups
    # An empty text does not have a row.
    live = np.flatnonzero([text.size for text in texts])
    pieces = [Document(text) for text in texts if text.size]
    packed = rows_of_documents(pieces, Packing("single", own_rows.packing.limits))

    def nats_of_row(params, key, row):
        batch = corrupt_and_arrange(recipe, group, key[None], jax.tree.map(lambda x: x[None], row))
        return objective.loss(batch).scored(recipe.model.apply(params, batch))[bound].sums.sum()

    @jax.jit
    def nats(params, keys, rows):
        nats_of_rows = jax.vmap(functools.partial(nats_of_row, params))
        return lax.map(lambda row_keys: nats_of_rows(row_keys, rows), keys)

    nats_of_texts = np.zeros((len(keys), len(texts)))
    with placed_on(plan.mesh):
        for i in range(0, len(packed), ROWS):
            packed_rows = packed[i : i + ROWS]
            used = len(packed_rows)
            # Pad the batch, so that all batches share one program.
            rows = stacked(packed_rows + [empty_row()] * (ROWS - used), group.row_length)
            row_keys = keys[:, live[np.minimum(np.arange(i, i + ROWS), len(live) - 1)]]
            nats_of_texts[:, live[i : i + used]] = nats(params, row_keys, rows)[:, :used]
    return nats_of_texts
