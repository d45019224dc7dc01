"""Subjects that stand for trained runs: a model, and the settings of its training."""

import types
from collections.abc import Callable, Sequence

import jax
import numpy as np

from pretrax import objectives
from pretrax.comparison.eval_metrics.subject import Subject
from pretrax.comparison.figures import Figure
from pretrax.corpora import synthetic_documents
from pretrax.data.corpus import Corpus
from pretrax.inference import Trained
from pretrax.settings.partial import Partial
from pretrax.training.devices.mesh import make_mesh
from pretrax.training.step import Recipe
from tests.inference.runs import trained


def with_constant_outputs(one: Trained) -> Trained:
    """Returns the model with zeros as parameters, so that its outputs are constant."""
    return one._replace(params=jax.tree.map(np.zeros_like, one.params))


def subject_of(one: Trained, constant: bool = False, corpus: Callable | None = None) -> Subject:
    """Returns a run as eval metrics read it.

    With `constant`, the states of its model are zeros for every input.
    """
    if constant:
        one = with_constant_outputs(one)
    subject = Subject("runs/x")
    subject.trained, subject.fields = one, {"corpus": corpus}
    return subject


def subject_of_world(
    builder: str, objective: str, task: Callable, constant: bool = False, seed: int = 0
) -> Subject:
    """Returns a run on a synthetic task whose corpus has not changed since."""
    corpus = Partial(synthetic_documents, task=task, seed=seed)
    subject = subject_of(trained(builder, objective), constant=constant, corpus=corpus)
    subject.plan = types.SimpleNamespace(corpus=None)
    return subject


def by_name(figures: Sequence[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


def subject_with_noise(
    one: Trained, name: str, corpus: Corpus | None = None, **settings
) -> Subject:
    """Returns a subject with the parts of a plan that the noise of this objective needs."""
    objective = getattr(objectives, name)(one.ids, **settings)
    facts = {"objective": objective, "model": one.model, "ids": one.ids}
    subject = subject_of(one)
    subject.plan = types.SimpleNamespace(
        corpus=corpus or Corpus(one.ids, None, None),
        recipe=Recipe(**dict.fromkeys(Recipe._fields) | facts),
        mesh=make_mesh(devices=jax.devices()[:1]),
    )
    subject.saved = types.SimpleNamespace(params=one.params)
    return subject
