"""Runs that stand for trained ones: a model, and what it is said to have been trained on."""

import types
from collections.abc import Callable

import jax
import numpy as np

from pretrax import objectives
from pretrax.comparison.yardsticks.subject import Subject
from pretrax.data.corpus import Corpus
from pretrax.inference import Trained
from pretrax.training.devices.mesh import make_mesh
from pretrax.training.step import Recipe


def subject_of(one: Trained, constant: bool = False, corpus: Callable | None = None) -> Subject:
    """A run as yardsticks read it; `constant`: its states are zeros, whatever it reads."""
    if constant:
        one = one._replace(params=jax.tree.map(np.zeros_like, one.params))
    subject = Subject("runs/x")
    subject.trained, subject.fields = one, {"corpus": corpus}
    return subject


def subject_with_noise(
    one: Trained, name: str, corpus: Corpus | None = None, **settings
) -> Subject:
    """A subject with as much of its plan as the noise of this objective takes."""
    objective = getattr(objectives, name)(one.ids, **settings)
    facts = {"objective": objective, "model": one.model, "ids": one.ids}
    subject = subject_of(one)
    subject.plan = types.SimpleNamespace(
        corpus=corpus or Corpus(one.ids, None, None),
        recipe=Recipe(**dict.fromkeys(Recipe._fields[:5]) | facts),
        mesh=make_mesh(devices=jax.devices()[:1]),
    )
    subject.saved = types.SimpleNamespace(params=one.params)
    return subject
