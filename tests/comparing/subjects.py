"""Runs that stand for trained ones: a model, and what it is said to have been trained on."""

from collections.abc import Callable

import jax
import numpy as np

from pretrax.comparing.yardsticks.subject import Subject
from pretrax.inference import Trained


def subject_of(one: Trained, constant: bool = False, corpus: Callable | None = None) -> Subject:
    """A run as yardsticks read it; `constant`: its states are zeros, whatever it reads."""
    if constant:
        one = one._replace(params=jax.tree.map(np.zeros_like, one.params))
    subject = Subject("runs/x")
    subject.trained, subject.fields = one, {"corpus": corpus}
    return subject
