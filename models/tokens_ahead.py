"""Multi-token prediction: hidden states, or projections, for the tokens beyond the next one.

`Config.ahead` names the network. "parallel", "sequential" and "linear" compute hidden states for
the model's vocabulary projection. "projections" are heads that each have a separate projection. The
letters are those of `models.transformer`, and N predictions.
"""

import jax.numpy as jnp
from flax import linen as nn

from .config import Config
from .experts import ROUTING
from .heads import Projection, Unembedding
from .linear import STREAM, inner_dropout, project, weights
from .norms import Norm
from .sharding import partitioned


class TokensAhead(nn.Module):
    """Hidden states [N, B, T, E], with one module for each prediction.

    Each module maps a carry, the states of the last layer of the trunk and a layer's context to the
    carry of the next module and the states of its prediction.
    """

    config: Config
    layer: type  # layer of the stack: `transformer.Block`, which may be rematerialized

    @nn.compact
    def __call__(self, carry, x_BxTxE, context):
        c = self.config
        module, name, length = {
            "parallel": (LastLayer, "layers", c.num_ahead + 1),
            "sequential": (NextModule, "modules", c.num_ahead),
            "linear": (LinearHead, "modules", c.num_ahead),
        }[c.ahead]
        modules = _in_sequence(module, length, name, c, self.layer)
        _, states_NxBxTxE = modules(carry, x_BxTxE, context)
        if c.ahead == "parallel":
            states_NxBxTxE = Norm(c, name="final_norm")(states_NxBxTxE)
        return inner_dropout(self, states_NxBxTxE, (None, *STREAM))


class LastLayer(nn.Module):
    """A last layer for one of the next tokens, on a shared trunk (Gloeckle et al. 2024).

    At slot t, layer k predicts the token of slot t + k + 1. All layers share the norm and the
    vocabulary projection after them (arXiv:2404.19737, section 2).
    """

    config: Config
    layer: type

    @nn.compact
    def __call__(self, _, x_BxTxE, context):
        sparse = self.config.num_experts > 0
        layer = self.layer(self.config, False, False, sparse=sparse, name="layer")
        x_BxTxE, _ = layer(x_BxTxE, context)
        return None, x_BxTxE


class LinearHead(nn.Module):
    """A norm and a linear layer for one token beyond the next, on the states of the last layer.

    At slot t, head k predicts the token of slot t + k + 1. As in Medusa (arXiv:2401.10774), heads
    do not depend on each other. They share the vocabulary projection.
    """

    config: Config
    layer: type

    @nn.compact
    def __call__(self, _, x_BxTxE, context):
        c = self.config
        init = partitioned(weights(c), "embed", None)
        linear_ExE = self.param("linear", init, (c.emb_dim, c.emb_dim))
        return None, project(Norm(c, name="norm")(x_BxTxE), linear_ExE.astype(c.dtype))


class NextModule(nn.Module):
    """A module for one token beyond the next, on the previous module's states (DeepSeek-V3).

    At slot t it joins the previous module's state with the embedding of the token that the previous
    module predicts there, and applies one layer. The carry has these embeddings, shifted. The
    module shares the trunk's embedding and vocabulary projection (arXiv:2412.19437, section 2.2).
    """

    config: Config
    layer: type

    @nn.compact
    def __call__(self, carry, _, context):
        c = self.config
        x_BxTxE, embedded_BxTxE = carry
        state = Norm(c, name="state_norm")(x_BxTxE)
        token = Norm(c, name="embedding_norm")(embedded_BxTxE)
        join_init = partitioned(weights(c), "embed", None)
        join_2ExE = self.param("join", join_init, (2 * c.emb_dim, c.emb_dim))
        x_BxTxE = project(jnp.concatenate([state, token], -1), join_2ExE.astype(c.dtype))
        layer = self.layer(c, False, False, sparse=c.num_experts > 0, name="layer")
        x_BxTxE, _ = layer(x_BxTxE, context)
        return (x_BxTxE, shifted_left(embedded_BxTxE)), Norm(c, name="final_norm")(x_BxTxE)


class ProjectionAhead(nn.Module):
    """A norm and a separate vocabulary projection, for one of the tokens beyond the next.

    Its input is the states of the last layer, before the final norm. The heads share only these
    states.
    """

    config: Config

    @nn.compact
    def __call__(self, hidden) -> Projection:
        normed = Norm(self.config, name="norm")(hidden)
        return Unembedding(self.config, name="unembedding")(normed)


def shifted_left(embedded_BxTxE):
    """Returns the embedding of the next slot's token at each slot."""
    # Slots that wrap around or reach into another document are never labeled.
    return jnp.roll(embedded_BxTxE, -1, axis=1)


def _in_sequence(module, length, name, config, layer):
    """Returns a function that runs `length` modules: (carry, *args) -> (carry, [length, …])."""
    if config.scan_layers:
        return scanned(module, length, nn.broadcast, config.unroll_scan)(config, layer, name=name)
    modules = [module(config, layer, name=f"{name}_{k}") for k in range(length)]

    def run(carry, *args):
        outputs = []
        for run_module in modules:
            carry, output = run_module(carry, *args)
            outputs.append(output)
        return carry, jnp.stack(outputs)

    return run


def scanned(module, length, in_axes, unroll):
    """Returns the module repeated `length` times, with separate parameters for each repetition.

    Instead of a module's class, it also takes a function of a module and a carry.
    """
    return nn.scan(
        module,
        length=length,
        unroll=length if unroll else 1,
        in_axes=in_axes,
        variable_axes={"params": 0, ROUTING: 0},
        split_rngs={"params": True, "dropout": True},
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
