"""Outputs of a model whose heads are matrices, for the losses of objectives."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from pretrax.models.heads import Projection


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LinearOutputs:
    """Hidden states by name, and a matrix for each head.

    Without matrices, states are the logits of the vocabulary.
    """

    hidden: dict[str, Any]
    matrices: dict[str, Any] | None = None
    z_loss: float = dataclasses.field(default=0.0, metadata={"static": True})
    term_factors: dict[str, Any] | None = None

    def head(self, name, states):
        if self.matrices is None:
            assert name == "vocabulary"
            return states
        return states @ self.matrices[name]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ProjectedOutputs(LinearOutputs):
    """The same outputs with heads in parts, as models have them."""

    def projection(self, name, states):
        return Projection(states, jnp.asarray(self.matrices[name]), lambda x: x)
