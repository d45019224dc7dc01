"""Multi-token prediction: hidden states, or projections, for the tokens beyond the next one.

`Config.ahead` names one of three networks for hidden states, "parallel", "sequential" and "linear",
which share the vocabulary projection of the model, or "projections", heads with a projection each.
Letters as in `models.transformer`; N predictions.
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
    """Hidden states [N, B, T, E] by one module for each prediction.

    Each module maps a carry, the states of the layer before it and a layer's context to the carry
    of the next module and its own states.
    """

    config: Config
    layer: type  # of the stack: `transformer.Block`, perhaps rematerialized

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

    Layer k predicts at slot t the token of slot t + k + 1; the norm and the vocabulary projection
    after it are shared (arXiv:2404.19737, section 2).
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

    Head k predicts at slot t the token of slot t + k + 1. As in Medusa (arXiv:2401.10774) no head
    depends on another; the vocabulary projection after them is shared.
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
    """A module for one token beyond the next, on the states of the one before (DeepSeek-V3).

    At slot t it joins the state of the module before it with the embedding of the token which that
    module predicts there, and applies one layer. The embeddings come shifted accordingly. Embedding
    and vocabulary projection are the trunk's (arXiv:2412.19437, section 2.2).
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
    """A norm and a vocabulary projection of its own, for one of the tokens beyond the next.

    It takes the states of the last layer, before the final norm. Nothing but these states is shared
    with the other heads.
    """

    config: Config

    @nn.compact
    def __call__(self, hidden) -> Projection:
        normed = Norm(self.config, name="norm")(hidden)
        return Unembedding(self.config, name="unembedding")(normed)


def shifted_left(embedded_BxTxE):
    """Returns at each slot the embedding of the next slot's token."""
    # Slots that wrap around, or reach into another document, are never labeled.
    return jnp.roll(embedded_BxTxE, -1, axis=1)


def _in_sequence(module, length, name, config, layer):
    """Returns (carry, *args) -> (carry, outputs [length, …]): `length` modules in sequence."""
    if config.scan_layers:
        return scanned(module, length, nn.broadcast, config.unroll_scan)(config, layer, name=name)
    modules = [module(config, layer, name=f"{name}_{k}") for k in range(length)]

    def one_after_another(carry, *args):
        outputs = []
        for each in modules:
            carry, output = each(carry, *args)
            outputs.append(output)
        return carry, jnp.stack(outputs)

    return one_after_another


def scanned(module, length, in_axes, unroll):
    """Returns the module repeated `length` times, with parameters of its own each."""
    return nn.scan(
        module,
        length=length,
        unroll=length if unroll else 1,
        in_axes=in_axes,
        variable_axes={"params": 0, ROUTING: 0},
        split_rngs={"params": True, "dropout": True},
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
