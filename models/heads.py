"""Heads other than the vocabulary projection: small modules from hidden states to a loss's inputs.

Each takes hidden states [..., E]. The vocabulary projection is in `models.transformer`, since it
may share the embedding.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from .activations import ACTIVATIONS
from .config import Config
from .linear import linear, weights
from .norms import Norm
from .sharding import constrain, num_shards, partitioned


class Projection(NamedTuple):
    """A head over classes in parts: its logits are `finish(states @ kernel)`, float32."""

    states: jax.Array  # [..., E] in the compute dtype
    kernel: jax.Array  # [E, V] in the compute dtype
    finish: Callable  # from products float32 [..., V]: a bias, a scale, a softcap
    row_shards: int = 1  # shards in which a mesh has the rows, the first axis of the states
    slot_shards: int = 1  # and the slots, the second

    def logits(self):
        """Returns float32 [..., V]."""
        return self.finish(
            jnp.tensordot(self.states, self.kernel, 1, preferred_element_type=jnp.float32)
        )


def projection(states, embedding_VxE, finish: Callable) -> Projection:
    """Returns the projection [..., E] -> [..., V] by token embeddings, which may be sharded."""
    kernel_ExV = _gathered(embedding_VxE.T)
    slot_shards = 1
    if states.ndim == 3 and (slot_shards := num_shards("length", states.shape[1])) > 1:
        states = constrain(states, "batch", "length", None)
    row_shards = num_shards("batch", states.shape[0])
    return Projection(states, kernel_ExV, finish, row_shards, slot_shards)


@jax.custom_vjp
def _gathered(kernel_ExV):
    # Before the loss takes it piece by piece: in that loop XLA would gather it for every piece.
    return constrain(kernel_ExV, None, "vocab")


_gathered.defvjp(
    lambda kernel_ExV: (_gathered(kernel_ExV), None),
    lambda _, d_kernel_ExV: (constrain(d_kernel_ExV, "embed", "vocab"),),
)


class ClassificationHead(nn.Module):
    """Logits of a text's or a pair's classes from one hidden state: float32 [..., classes].

    A layer, such as BERT's pooler, and a linear classifier (Devlin et al. 2019). One class is a
    regression.

    `layer`: as `classifier_layer` of `models.config.Config`.
    """

    classes: int
    layer: str
    config: Config

    @nn.compact
    def __call__(self, hidden):
        c = self.config
        if self.layer == "none":
            return _classifier(self.classes, c.dtype, use_bias=False)(hidden)
        if self.layer == "normed":
            pooled = _normed_layer(c, hidden)
        else:
            activation = {"tanh": jnp.tanh, **ACTIVATIONS}[self.layer]
            pooled = activation(dense(c.emb_dim, c.dtype, name="pooler")(hidden))
        return _classifier(self.classes, c.dtype)(pooled)


class EmbeddingHead(nn.Module):
    """The embedding of a text from its first hidden state: float32 [..., E].

    A layer with tanh, as SimCSE has it (Gao et al. 2021, arXiv:2104.08821).
    """

    dtype: str

    @nn.compact
    def __call__(self, hidden):
        layer = dense(hidden.shape[-1], self.dtype, name="layer")
        return jnp.tanh(layer(hidden)).astype(jnp.float32)


class LogitScale(nn.Module):
    """A learned factor for similarities, independent of the hidden states: float32 [].

    Starts at 1 / 0.07 and is clipped at 100 (Radford et al. 2021, CLIP, arXiv:2103.00020), without
    clipping its gradient, so that it can fall again.
    """

    @nn.compact
    def __call__(self, hidden):
        init = partitioned(nn.initializers.constant(math.log(1 / 0.07)))
        log_scale = jnp.asarray(self.param("log_scale", init, ()))
        excess = jnp.maximum(log_scale - math.log(100.0), 0.0)
        return jnp.exp(log_scale - jax.lax.stop_gradient(excess))


class ReplacedHead(nn.Module):
    """The logit that a token was replaced: float32 [..., 1] (Clark et al. 2020, ELECTRA)."""

    config: Config

    @nn.compact
    def __call__(self, hidden):
        c = self.config
        activation = ACTIVATIONS[self.config.mlp_activations[0]]
        layer = dense(c.emb_dim, c.dtype, name="layer")
        return _classifier(1, c.dtype)(activation(layer(hidden)))


class TokenClassificationHead(nn.Module):
    """Logits of the classes of each token: float32 [..., classes] (Devlin et al. 2019)."""

    config: Config

    @nn.compact
    def __call__(self, hidden):
        c = self.config
        if c.classifier_layer == "normed":
            hidden = _normed_layer(c, hidden)
        return _classifier(c.num_classes, c.dtype)(hidden)


class Unembedding(nn.Module):
    """A vocabulary projection beside the usual one, of the same hidden states.

    Its rows are its own, also where the usual one shares the embedding.
    """

    config: Config

    @nn.compact
    def __call__(self, hidden) -> Projection:
        c = self.config
        init = partitioned(weights(c, 1, 0), "vocab", "embed")
        embedding_VxE = self.param("embedding", init, (c.vocab_size, c.emb_dim))
        return projection(hidden.astype(c.dtype), embedding_VxE.astype(c.dtype), lambda x: x)


class LatentDynamics(nn.Module):
    """Predicts each slot's next hidden state from its own and the token that is read next.

    An MLP of three layers on both, normed, is added to the state (NextLat, arXiv:2511.05963).
    """

    config: Config

    @nn.compact
    def __call__(self, state_BxTxE, following_BxTxE):
        c = self.config
        E = self.config.emb_dim
        x = Norm(c, name="norm")(jnp.concatenate([state_BxTxE, following_BxTxE], -1))
        for k, width in enumerate((2 * E, E, E)):
            x = ACTIVATIONS["gelu"](x) if k else x
            x = linear(self, f"layer_{k}", x, (width, E), ("embed", None))
        return state_BxTxE + x


TRANSFORMERS = ("encoder", "decoder", "encoder_decoder")  # the builders with one `Transformer`


class Head(NamedTuple):
    """A head as one record: what it gives, which models can have it, and the module that is it."""

    name: str
    about: str  # its output for a hidden state
    builders: tuple[str, ...]  # those of `models` whose models can have it
    # From the model's settings to a module that takes hidden states; None: the network has its own.
    build: Callable[[Config], nn.Module] | None = None
    has_classes: bool = False  # it has `Config.num_classes` outputs
    over_vocabulary: bool = False  # its module returns a `Projection` onto the vocabulary
    # For a head that is a hidden state of the stack: from the model's settings to a module that
    # takes the stack's states and the embedding of each slot's next token, both [B, T, E].
    build_state: Callable[[Config], nn.Module] | None = None


HEADS: dict[str, Head] = {}


def register(head: Head) -> None:
    """Makes a head known to the builders that it names, or replaces the head of this name."""
    HEADS[head.name] = head


def heads_of(builder: str) -> tuple[str, ...]:
    """Returns the heads that models of a builder can have; of a decoder also "ahead_2", ….

    >>> heads_of("electra")
    ('generator', 'replaced')
    """
    return tuple(name for name, head in HEADS.items() if builder in head.builders)


def classifiers() -> tuple[str, ...]:
    """Returns the heads whose number of classes is the model's `num_classes`."""
    return tuple(name for name, head in HEADS.items() if head.has_classes)


def unembeddings() -> tuple[str, ...]:
    """Returns the heads that project onto the vocabulary beside the usual one."""
    return tuple(name for name, head in HEADS.items() if head.over_vocabulary)


for _head in (
    Head(
        name="vocabulary",
        about="logits of the ids of the vocabulary",
        builders=(*TRANSFORMERS, "masked_autoencoder"),
    ),
    Head(
        name="pair",
        about="logits of two classes of a pair of texts",
        builders=("encoder",),
        build=lambda c: ClassificationHead(2, "tanh", c),
    ),
    Head(
        name="stop",
        about="logits of two classes: whether anything is missing in a slot",
        builders=("encoder",),
        build=lambda c: ClassificationHead(2, "tanh", c),
    ),
    Head(
        name="order",
        about="a second projection onto the vocabulary: which tokens come sooner",
        builders=("decoder",),
        build=Unembedding,
        over_vocabulary=True,
    ),
    Head(
        name="summary",
        about="a second projection onto the vocabulary: which tokens come at all",
        builders=("decoder",),
        build=Unembedding,
        over_vocabulary=True,
    ),
    Head(
        name="next_latent",
        about="a prediction of the next slot's hidden state",
        builders=("decoder",),
        build_state=lambda c: LatentDynamics(c, name="dynamics"),
    ),
    Head(
        name="classes",
        about="logits of the classes of a text; the objective sets their number",
        builders=TRANSFORMERS,
        build=lambda c: ClassificationHead(c.num_classes, c.classifier_layer, c),
        has_classes=True,
    ),
    Head(
        name="token_classes",
        about="logits of the classes of each token; the objective sets their number",
        builders=("encoder", "decoder"),
        build=TokenClassificationHead,
        has_classes=True,
    ),
    Head(
        name="embedding",
        about="the embedding of a text",
        builders=("encoder", "two_towers"),
        build=lambda c: EmbeddingHead(c.dtype),
    ),
    Head(
        name="logit_scale",
        about="a learned factor for similarities, the same for all states",
        builders=("encoder", "two_towers"),
        build=lambda _: LogitScale(),
    ),
    Head(
        name="generator",
        about="logits of ELECTRA's generator over the vocabulary",
        builders=("electra",),
    ),
    Head(
        name="replaced",
        about="the logit that a token was replaced",
        builders=("encoder", "electra"),
        build=ReplacedHead,
    ),
    Head(
        name="restored",
        about="logits over the vocabulary of the decoder that restores a text from one state",
        builders=("masked_autoencoder",),
    ),
):
    register(_head)
SHIPPED = frozenset(HEADS)  # which no head of a user replaces


def add_head(
    name: str, build: Callable[[Config], nn.Module], builders: Sequence[str] = TRANSFORMERS
) -> None:
    """Adds a head of your own, which models have whenever an objective asks for it by this name.

        models.add_head("capital", lambda config: nn.Dense(2))

    An objective then has `heads={"vocabulary": None, "capital": 2}`, and its loss calls
    `outputs.head("capital", states)`. Call this in the module of the objective, so that every
    command that opens a run adds the head too. To add a head again replaces it.

    Args:
      build: from the model's settings to a module of Flax that takes hidden states [..., E] and
        returns float32 [..., classes].
      builders: those of `models` whose models may have it.

    Raises ValueError for the name of a head that models have already, or an unknown builder.
    """
    if name in SHIPPED or name.startswith("ahead_") or not name.isidentifier():
        raise ValueError(
            f"Got {name!r} as the name of a head of your own, expected a Python name other than "
            f"{', '.join(sorted(SHIPPED))}."
        )
    if unknown := [one for one in builders if one not in TRANSFORMERS]:
        raise ValueError(f"Got the builders {unknown}, expected some of {list(TRANSFORMERS)}.")
    register(Head(name, about="added by `models.add_head`", builders=tuple(builders), build=build))


def builders_with(heads: Iterable[str]) -> list[str]:
    """Returns the builders whose models can have all of these heads, by their names in `models`.

    >>> builders_with({"pair": 2, "vocabulary": None})
    ['encoder']
    """
    named = {name for name in heads if not name.startswith("ahead_")}
    able = [builder for builder in _builders() if named <= set(heads_of(builder))]
    return able if named == set(heads) else [name for name in able if name == "decoder"]


def check_heads(heads: Iterable[str], own: Iterable[str] | None = None) -> None:
    """Raises ValueError for heads that no builder of `models` gives one model.

    `own`: the heads of the model that is to be trained, if it is known.
    """
    if builders_with(heads):
        return
    offered = "; ".join(f"{one}: {', '.join(heads_of(one))}" for one in _builders())
    raise ValueError(
        f"The objective needs the heads {list(heads)}, and no model of pretrax has all of them "
        f"({offered}; of a decoder also ahead_2, ahead_3, …). Add a head of your own by "
        "models.add_head(NAME, BUILD) in the objective's module, change the objective's heads, or "
        "train a model of your own that has them."
        + (f" This model offers {tuple(own) or 'none of them'}." if own is not None else "")
    )


def _builders() -> list[str]:
    return list(dict.fromkeys(one for head in HEADS.values() for one in head.builders))


def dense(features, dtype, axes=("embed", "mlp"), **settings):
    """Returns a linear layer whose kernel's axes are named."""
    kernel = partitioned(nn.initializers.lecun_normal(), *axes)
    bias = partitioned(nn.initializers.zeros, *axes[1:])
    return nn.Dense(features, dtype=dtype, kernel_init=kernel, bias_init=bias, **settings)


def _normed_layer(c: Config, hidden):
    """Returns ModernBERT's prediction head: a linear layer, the MLP's activation, a layer norm."""
    x = dense(c.emb_dim, c.dtype, name="pooler", use_bias=c.biases)(hidden)
    scale = partitioned(nn.initializers.ones, "embed")
    norm = nn.LayerNorm(c.norm_epsilon, c.dtype, use_bias=c.biases, scale_init=scale, name="norm")
    return norm(ACTIVATIONS[c.mlp_activations[0]](x))


def _classifier(features, dtype, **settings):
    layer = dense(features, dtype, ("embed", None), name="classifier", **settings)
    return lambda hidden: layer(hidden).astype(jnp.float32)
