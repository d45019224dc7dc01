"""The losses and statistics of the routers of sparse layers, as terms of a step."""

import jax
import jax.numpy as jnp

from ..models.experts import Routing, load_balance_loss, router_z_loss
from ..objectives import Term

ROUTER_TERMS = ("load_balance", "router_z", "busiest_expert", "unused_experts")


def router_terms(routing: Routing | None, batch: dict, balance: float, z: float) -> dict[str, Term]:
    """Returns the terms of a model's routers for a batch; {} for a model without experts.

    - `load_balance`: Switch's load-balancing loss. It is 1 if experts are balanced.
    - `router_z`: the router's z-loss.
    - `busiest_expert`: tokens of a layer's busiest expert, divided by an equal share. It is 1 if
      experts are balanced.
    - `unused_experts`: share of the experts that process no token of the batch.

    The values are means over layers, weighted by tokens. Each microbatch and each row group is
    balanced separately, and the step has their mean. The size of the loss therefore does not depend
    on their number. Larger microbatches leave experts more freedom (Qiu et al. 2025,
    arXiv:2501.11873).

    Args:
      routing: what the routers did. None: a model without experts.
      balance: weight of `load_balance` in the loss.
      z: weight of `router_z` in the loss.
    """
    if routing is None:
        return {}
    assigned_LxN = routing.assigned_BxN.sum(1)
    share_LxN = assigned_LxN / jnp.maximum(assigned_LxN.sum(1, keepdims=True), 1.0)
    values = {
        "load_balance": (load_balance_loss(routing), balance),
        "router_z": (router_z_loss(routing), z),
        "busiest_expert": (share_LxN.shape[1] * share_LxN.max(1).mean(), None),
        "unused_experts": (jnp.mean(assigned_LxN == 0), None),
    }
    tokens_B = _tokens(batch)
    return {n: Term(tokens_B, scale, sums=tokens_B * x) for n, (x, scale) in values.items()}


def router_weights(batch: dict) -> dict[str, jax.Array]:
    """Returns the weights f32[B] of all router terms, even if a model has no routers."""
    return dict.fromkeys(ROUTER_TERMS, _tokens(batch))


def _tokens(batch: dict) -> jax.Array:
    """Returns f32[B]: the number of tokens of each row, in all stacks."""
    segments = [batch[name] for name in batch if name.endswith("_segment_ids")]
    return jnp.sum(jnp.concatenate(segments, axis=1) > 0, axis=1, dtype=jnp.float32)
