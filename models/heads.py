"""Heads: small modules that map hidden states [..., E] to the inputs of a loss.

The main vocabulary projection is in `models.transformer`, since it may share the embedding.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from .activations import ACTIVATIONS
from .config import Config, numbered
from .linear import linear, weights
from .norms import Norm
from .sharding import constrain, num_shards, partitioned


class Projection(NamedTuple):
    """The parts of a projection onto classes, whose logits are `finish(states @ kernel)`, float32.

    A loss can compute the logits piece by piece.
    """

    states: jax.Array  # [..., E] in the compute dtype
    kernel: jax.Array  # [E, V] in the compute dtype
    finish: Callable  # products float32 [..., V] -> logits; adds a bias, a scale or a softcap
    row_shards: int = 1  # number of shards of the rows, the first axis of the states
    slot_shards: int = 1  # number of shards of the slots, the second axis of the states

    def logits(self):
        """Returns float32 [..., V]."""
        return self.finish(
            jnp.tensordot(self.states, self.kernel, 1, preferred_element_type=jnp.float32)
        )


def projection(states, embedding_VxE, finish: Callable) -> Projection:
    """Returns the projection [..., E] -> [..., V] onto token embeddings, which may be sharded."""
    kernel_ExV = _gathered(embedding_VxE.T)
    slot_shards = 1
    if states.ndim == 3 and (slot_shards := num_shards("length", states.shape[1])) > 1:
        states = constrain(states, "batch", "length", None)
    row_shards = num_shards("batch", states.shape[0])
    return Projection(states, kernel_ExV, finish, row_shards, slot_shards)


@jax.custom_vjp
def _gathered(kernel_ExV):
    # The kernel is gathered once, since XLA would otherwise gather it for every piece of a loss.
    return constrain(kernel_ExV, None, "vocab")


_gathered.defvjp(
    lambda kernel_ExV: (_gathered(kernel_ExV), None),
    lambda _, d_kernel_ExV: (constrain(d_kernel_ExV, "embed", "vocab"),),
)


class ClassificationHead(nn.Module):
    """Logits of the classes of a text, a pair or a token: float32 [..., classes].

    The head is a layer, such as BERT's pooler, and a linear classifier
    (Devlin et al. 2019), or with one class a regression.
    """

    classes: int
    layer: str | None  # a value of `Config.classifier_layer`; None for the classifier alone
    config: Config

    @nn.compact
    def __call__(self, hidden):
        c = self.config
        if self.layer == "none":
            return _classifier(self.classes, c.dtype, use_bias=False)(hidden)
        if self.layer == "normed":
            hidden = _normed_layer(c, hidden)
        elif self.layer is not None:
            activation = {"tanh": jnp.tanh, **ACTIVATIONS}[self.layer]
            hidden = activation(dense(c.emb_dim, c.dtype, name="pooler")(hidden))
        return _classifier(self.classes, c.dtype)(hidden)


class EmbeddingHead(nn.Module):
    """The embedding of a text from its first hidden state: float32 [..., E].

    The head is a linear layer with tanh, as in SimCSE (Gao et al. 2021, arXiv:2104.08821).
    """

    dtype: str

    @nn.compact
    def __call__(self, hidden):
        layer = dense(hidden.shape[-1], self.dtype, name="layer")
        return jnp.tanh(layer(hidden)).astype(jnp.float32)


class LogitScale(nn.Module):
    """A learned factor of similarities, which does not depend on the hidden states: float32 [].

    It starts at 1 / 0.07 and is clipped at 100 (Radford et al. 2021, CLIP, arXiv:2103.00020), with
    an unclipped gradient so that it can fall again.
    """

    @nn.compact
    def __call__(self, hidden):
        init = partitioned(nn.initializers.constant(math.log(1 / 0.07)))
        log_scale = jnp.asarray(self.param("log_scale", init, ()))
        excess = jnp.maximum(log_scale - math.log(100.0), 0.0)
        return jnp.exp(log_scale - jax.lax.stop_gradient(excess))


class NumberHead(nn.Module):
    """One number for each state: float32 [..., 1], by a layer and a linear map.

    Clark et al. 2020 (ELECTRA) read the logit that a token was replaced with it.
    """

    config: Config

    @nn.compact
    def __call__(self, hidden):
        c = self.config
        activation = ACTIVATIONS[self.config.mlp_activations[0]]
        layer = dense(c.emb_dim, c.dtype, name="layer")
        return _classifier(1, c.dtype)(activation(layer(hidden)))


class Unembedding(nn.Module):
    """A second vocabulary projection of the same hidden states.

    It has separate parameters, even if the usual vocabulary projection shares the embedding.
    """

    config: Config

    @nn.compact
    def __call__(self, hidden) -> Projection:
        c = self.config
        init = partitioned(weights(c, 1, 0), "vocab", "embed")
        embedding_VxE = self.param("embedding", init, (c.vocab_size, c.emb_dim))
        return projection(hidden.astype(c.dtype), embedding_VxE.astype(c.dtype), lambda x: x)


class ImplicitToken(nn.Module):
    """Predicts the next token's hidden state in a shallow layer, from a slot's last state.

    It is a gated MLP of four times the width, without biases (NITP, arXiv:2605.24956, section G.2).
    """

    config: Config

    @nn.compact
    def __call__(self, state_BxTxE, following_BxTxE):
        c = self.config
        width = _MLP_WIDTH_FACTOR * c.emb_dim
        gate_BxTxM = dense(width, c.dtype, name="gate", use_bias=False)(state_BxTxE)
        value_BxTxM = dense(width, c.dtype, name="value", use_bias=False)(state_BxTxE)
        out = dense(c.emb_dim, c.dtype, ("mlp", "embed"), name="out", use_bias=False)
        return out(ACTIVATIONS["silu"](gate_BxTxM) * value_BxTxM)


class BeliefState(nn.Module):
    """Joins the states of a prefix and of a suffix into a state [..., E] that predicts tokens.

    It is a linear layer with LeakyReLU on both states [..., 2 E]. Without a suffix, the prefix's
    state [..., E] is padded with zeros.
    """

    config: Config

    @nn.compact
    def __call__(self, states):
        c = self.config
        if states.shape[-1] == c.emb_dim:
            states = jnp.concatenate([states, jnp.zeros_like(states)], axis=-1)
        return nn.leaky_relu(dense(c.emb_dim, c.dtype, ("embed", None), name="layer")(states))


class LatentDynamics(nn.Module):
    """Predicts the next slot's hidden state from a slot's state and the next slot's token.

    An MLP of three layers reads the normed state and token embedding. Its output is added to the
    state (NextLat, arXiv:2511.05963).
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


_MLP_WIDTH_FACTOR = 4  # width of `ImplicitToken`'s MLP, as a multiple of E
TRANSFORMERS = ("encoder", "decoder", "encoder_decoder")  # builders of a single `Transformer`
NUMBERED = ("ahead", "depth")  # kinds of a decoder's numbered heads


class Head(NamedTuple):
    """A kind of head: its output, the builders that support it, and how to build its module."""

    name: str
    about: str  # description of the head's output for a hidden state
    builders: tuple[str, ...]  # names of the builders of `models` that support the head
    # Model settings -> a module that takes hidden states. None if the network builds the head.
    build: Callable[[Config], nn.Module] | None = None
    settings: tuple[str, ...] = ()  # fields of `Config` that need this head
    has_classes: bool = False  # whether the head has `Config.num_classes` outputs
    over_vocabulary: bool = False  # whether the module returns a `Projection` onto the vocabulary
    # (model settings, name=`scope`) -> a module that takes the stack's states and the embeddings of
    # each slot's next token, both [B, T, E]. Set for a head that is a further hidden state of the
    # stack. `scope` is the name of the module's parameters within the stack.
    build_state: Callable[..., nn.Module] | None = None
    scope: str = ""
    # Model settings -> multiply-adds per slot. None: `models.builders.forward_flops` counts them,
    # or there are too few to matter.
    multiply_adds: Callable[[Config], int] | None = None
    # Whether the loss with this head also projects every slot of the encoder onto the vocabulary.
    projects_every_slot: bool = False
    # Whether the module's outputs for the stack's states replace the hidden states "top", from
    # which tokens are predicted. The stack's states then have the head's name.
    replaces_top: bool = False


def registered(names: Iterable[str]) -> list[Head]:
    """Returns the registered heads among these names; `numbered` heads are not registered.

    >>> [head.name for head in registered(("vocabulary", "ahead_2", "pair"))]
    ['vocabulary', 'pair']
    """
    return [HEADS[name] for name in names if name in HEADS]


def heads_of(builder: str) -> tuple[str, ...]:
    """Returns the names of the heads that a builder supports.

    A decoder also supports the `numbered` heads, which are not listed.

    >>> heads_of("electra")
    ('generator', 'replaced')
    """
    return tuple(name for name, head in HEADS.items() if builder in head.builders)


def is_numbered(head: str) -> bool:
    """Returns whether a head is a decoder's numbered head."""
    return any(numbered([head], kind) for kind in NUMBERED)


def classifiers() -> tuple[str, ...]:
    """Returns the names of the heads that have `num_classes` outputs."""
    return tuple(name for name, head in HEADS.items() if head.has_classes)


def _unembedding(name: str, use: str) -> Head:
    """Returns the head that is a second vocabulary projection of a decoder's states."""
    about = f"a second vocabulary projection, which {use}"
    return Head(name, about, builders=("decoder",), build=Unembedding, over_vocabulary=True)


_BUILT_IN = (
    Head(
        name="vocabulary",
        about="logits of the ids of the vocabulary",
        builders=(*TRANSFORMERS, "masked_autoencoder", "step_unrolled"),
        settings=(
            *("logits_via_embedding", "scale_logits", "logit_softcap"),
            *("vocabulary_layer", "vocabulary_activation", "vocabulary_bias"),
        ),
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
        projects_every_slot=True,  # `insertion_lm` compares slots by all their logits
    ),
    _unembedding("order", "ranks tokens by how soon they come"),
    _unembedding("summary", "predicts the tokens that come soon"),
    Head(
        name="next_latent",
        about="a prediction of the next slot's hidden state",
        builders=("decoder",),
        build_state=LatentDynamics,
        scope="dynamics",
        multiply_adds=lambda c: 4 * c.emb_dim**2,  # kernels of 2 E x E, and of E x E twice
    ),
    Head(
        name="belief",
        about="the joint state of a prefix and a suffix; for a prefix alone, it replaces the "
        "hidden states 'top'",
        builders=("decoder",),
        build=BeliefState,
        multiply_adds=lambda c: 2 * c.emb_dim**2,
        replaces_top=True,
    ),
    _unembedding("previous", "predicts the token before a suffix"),
    Head(
        name="implicit_token",
        about="a prediction of the next token's hidden state in a shallow layer",
        builders=("decoder",),
        build_state=ImplicitToken,
        scope="implicit_token",
        multiply_adds=lambda c: 3 * _MLP_WIDTH_FACTOR * c.emb_dim**2,
    ),
    Head(
        name="classes",
        about="logits of the classes of a text; the objective sets their number",
        builders=TRANSFORMERS,
        build=lambda c: ClassificationHead(c.num_classes, c.classifier_layer, c),
        settings=("num_classes", "classifier_layer"),
        has_classes=True,
    ),
    Head(
        name="token_classes",
        about="logits of the classes of each token; the objective sets their number",
        builders=("encoder", "decoder"),
        build=lambda c: ClassificationHead(
            c.num_classes, "normed" if c.classifier_layer == "normed" else None, c
        ),
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
        build=NumberHead,
    ),
    Head(
        name="gaps",
        about="the logarithm of the expected number of tokens that are missing after a slot",
        builders=("encoder",),
        build=NumberHead,
    ),
    Head(
        name="restored",
        about="logits over the vocabulary of the decoder that restores a text from one state",
        builders=("masked_autoencoder",),
    ),
    Head(
        name="denoised",
        about="logits over the vocabulary of the tokens whose noised embeddings the model reads",
        builders=("embedding_denoiser",),
    ),
    Head(
        name="unrolled",
        about="logits over the vocabulary of a second pass, which reads samples of the first",
        builders=("step_unrolled",),
    ),
)
BUILT_IN = frozenset(head.name for head in _BUILT_IN)  # users cannot replace these heads
HEADS = {head.name: head for head in _BUILT_IN}


def add_head(
    name: str, build: Callable[[Config], nn.Module], builders: Sequence[str] = TRANSFORMERS
) -> None:
    """Adds your own head, which models build if an objective lists it.

        models.add_head("capital", lambda config: nn.Dense(2))

    The objective then has `heads={"vocabulary": None, "capital": 2}`, and its loss calls
    `outputs.head("capital", states)`. Call `add_head` in the objective's module, which every
    command on a run imports. Adding a head again replaces it.

    Args:
      name: name of the head, a Python identifier.
      build: function from the model's `Config` to a Flax module that takes hidden states [..., E]
        and returns float32 [..., classes].
      builders: names of the builders of `models` that support the head.

    Raises:
      ValueError: The name belongs to a built-in head, `build` is not a function, or a builder is
        unknown.
    """
    if name in BUILT_IN or is_numbered(name) or not name.isidentifier():
        names = ", ".join([*sorted(BUILT_IN), *(f"{kind}_…" for kind in NUMBERED)])
        raise ValueError(
            f"Got {name!r} as the name of a head, expected a Python identifier other than {names}: "
            "choose another name."
        )
    if isinstance(build, nn.Module) or not callable(build):
        raise ValueError(
            f"Got {build!r} as the head {name!r}, expected a function of the model's settings that "
            "returns a module: lambda config: nn.Dense(2), and not nn.Dense(2)."
        )
    if unknown := [builder for builder in builders if builder not in TRANSFORMERS]:
        raise ValueError(
            f"Got the builders {unknown}, expected names from {list(TRANSFORMERS)}: leave out the "
            "others."
        )
    about = "added by `models.add_head`"
    HEADS[name] = Head(name, about, builders=tuple(builders), build=build)


def builders_with(heads: Iterable[str]) -> list[str]:
    """Returns the names of the builders in `models` that support all of these heads.

    >>> builders_with({"pair": 2, "vocabulary": None})
    ['encoder']
    """
    needed = {name for name in heads if not is_numbered(name)}
    builders = [name for name in _builders() if needed <= set(heads_of(name))]
    return [name for name in builders if name == "decoder" or needed == set(heads)]


def check_heads(heads: Iterable[str], model_heads: Iterable[str] | None = None) -> None:
    """Raises ValueError if no builder of `models` supports all heads that an objective needs."""
    if builders_with(heads):
        return
    supported = "; ".join(f"{name}: {', '.join(heads_of(name))}" for name in _builders())
    known = "" if model_heads is None else f" This model has the heads {(*model_heads,) or 'none'}."
    raise ValueError(
        f"The objective needs the heads {list(heads)}, and no model of pretrax has all of them "
        f"({supported}; a decoder also has ahead_2, ahead_3, … and depth_1 … depth_100). Add a "
        "head of your own with models.add_head(NAME, BUILD) in the objective's module, change the "
        f"objective's heads, or train a model of your own that has them.{known}"
    )


def _builders() -> list[str]:
    return list(dict.fromkeys(name for head in HEADS.values() for name in head.builders))


def dense(features, dtype, axes=("embed", "mlp"), **settings):
    """Returns a linear layer whose kernel has named axes."""
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
