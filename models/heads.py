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
from .linear import weights
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
    kernel_ExV, slot_shards = _gathered(embedding_VxE.T), 1
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
        c, activation = self.config, ACTIVATIONS[self.config.mlp_activations[0]]
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


UNEMBEDDINGS = ("order", "summary")  # heads over the vocabulary beside the usual one
FURTHER_STATES = ("next_latent",)  # what objectives require as heads, and a stack returns
CLASSIFIERS = ("classes", "token_classes")  # heads of `Config.num_classes`

HEADS: dict[str, Callable[[Config], nn.Module]] = {
    "pair": lambda c: ClassificationHead(2, "tanh", c),
    "stop": lambda c: ClassificationHead(2, "tanh", c),
    "classes": lambda c: ClassificationHead(c.num_classes, c.classifier_layer, c),
    "token_classes": TokenClassificationHead,
    "embedding": lambda c: EmbeddingHead(c.dtype),
    "logit_scale": lambda _: LogitScale(),
    "replaced": ReplacedHead,
    "order": Unembedding,
    "summary": Unembedding,
}

# The heads that models of each builder can have; of a decoder also "ahead_2", "ahead_3", …
HEADS_OF: dict[str, tuple[str, ...]] = {
    "encoder": (
        "vocabulary",
        "pair",
        "stop",
        "classes",
        "token_classes",
        "embedding",
        "logit_scale",
        "replaced",
    ),
    "decoder": ("vocabulary", "order", "summary", "next_latent", "classes", "token_classes"),
    "encoder_decoder": ("vocabulary", "classes"),
    "electra": ("generator", "replaced"),
    "masked_autoencoder": ("vocabulary", "restored"),
    "two_towers": ("embedding", "logit_scale"),
}
TRANSFORMERS = ("encoder", "decoder", "encoder_decoder")  # the builders with one `Transformer`

# The output of each head for a hidden state.
MEANINGS: dict[str, str] = {
    "vocabulary": "logits of the ids of the vocabulary",
    "ahead_2": "hidden states for the token after the next; `ahead_3`, … for those after it",
    "order": "a second projection onto the vocabulary: which tokens come sooner",
    "summary": "a second projection onto the vocabulary: which tokens come at all",
    "next_latent": "a prediction of the next slot's hidden state",
    "pair": "logits of two classes of a pair of texts",
    "stop": "logits of two classes: whether anything is missing in a slot",
    "classes": "logits of the classes of a text; the objective sets their number",
    "token_classes": "logits of the classes of each token; the objective sets their number",
    "embedding": "the embedding of a text",
    "logit_scale": "a learned factor for similarities, the same for all states",
    "replaced": "the logit that a token was replaced",
    "generator": "logits of ELECTRA's generator over the vocabulary",
    "restored": "logits over the vocabulary of the decoder that restores a text from one state",
}


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
    if name in MEANINGS or name.startswith("ahead_") or not name.isidentifier():
        raise ValueError(
            f"Got {name!r} as the name of a head of your own, expected a Python name other than "
            f"{', '.join(MEANINGS)}."
        )
    if unknown := [one for one in builders if one not in TRANSFORMERS]:
        raise ValueError(f"Got the builders {unknown}, expected some of {list(TRANSFORMERS)}.")
    HEADS[name] = build
    for one in TRANSFORMERS:
        others = tuple(head for head in HEADS_OF[one] if head != name)
        HEADS_OF[one] = (*others, name) if one in builders else others


def builders_with(heads: Iterable[str]) -> list[str]:
    """Returns the builders whose models can have all of these heads, by their names in `models`.

    >>> builders_with({"pair": 2, "vocabulary": None})
    ['encoder']
    """
    named = {name for name in heads if not name.startswith("ahead_")}
    able = [builder for builder, known in HEADS_OF.items() if named <= set(known)]
    return able if named == set(heads) else [name for name in able if name == "decoder"]


def check_heads(heads: Iterable[str], own: Iterable[str] | None = None) -> None:
    """Raises ValueError for heads that no builder of `models` gives one model.

    `own`: the heads of the model that is to be trained, if it is known.
    """
    if builders_with(heads):
        return
    offered = "; ".join(f"{builder}: {', '.join(names)}" for builder, names in HEADS_OF.items())
    raise ValueError(
        f"The objective needs the heads {list(heads)}, and no model of pretrax has all of them "
        f"({offered}; of a decoder also ahead_2, ahead_3, …). Add a head of your own by "
        "models.add_head(NAME, BUILD) in the objective's module, change the objective's heads, or "
        "train a model of your own that has them."
        + (f" This model offers {tuple(own) or 'none of them'}." if own is not None else "")
    )


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
