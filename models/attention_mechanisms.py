"""`Mechanism`: how a model's attention is computed, one record for each name of `Config.attention`.

    # my_attention.py
    register(
        Mechanism("sigmoid", "each key weighed alone", attend=attend, attend_cached=attend_cached)
    )

    models.decoder(32000, attention="sigmoid", …)

A file in `models/kernels/` registers the mechanisms it has, as your own file can. "plain" is
registered in `models.attention`. `Config` refuses settings that a mechanism does not support, and a
training run refuses devices that it does not support.

Letters: B rows, T queries, S keys, H query heads, G key heads (G divides H), d width of a head.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax


class Mechanism(NamedTuple):
    """An attention mechanism: what it computes, and what it supports.

    `attend` computes training, evaluation and the first call of decoding; JAX must be able to
    differentiate it. `attend_cached` computes the later calls of decoding, and must give the same
    values. Both return the outputs [B, T, H, d] in the dtype of the values, and the logs of the
    softmax's denominators f32[B, H, T], or None without `log_sum`.

        attend(q_BxTxHxd, k_BxSxGxd, v_BxSxGxd, intervals_Bx2xT, bias, softcap)
        attend_cached(q_BxTxHxd, k_BxGxSxd, v_BxGxSxd, intervals_Bx2xT, bias_BxHxTxS, softcap)

    Query t attends to the keys from intervals[b, 0, t] up to, and without, intervals[b, 1, t].
    Queries are scaled already. `bias` and `softcap` are None unless the model has them.
    """

    name: str  # the value of `Config.attention`
    about: str  # how it differs from the other mechanisms
    attend: Callable[..., tuple[jax.Array, jax.Array | None]]
    attend_cached: Callable[..., tuple[jax.Array, jax.Array | None]]

    # Whether it computes softmax attention, in whatever way, as all models of Hugging Face and T5X
    # do. Models with any other mechanism are not converted to them.
    is_softmax: bool = False
    # The form in which `attend` takes T5's bias on scores: "slots", f32[H, T, S]; "distances",
    # f32[H, 2 * MAX_DISTANCE + 1], by key slot - query slot (`positions.RelativeBias`); None: it
    # takes no bias.
    bias: Literal["slots", "distances"] | None = None
    softcap: bool = False  # whether it caps scores, as `Config.attention_softcap` says
    windows: bool = True  # whether intervals may begin after the first key of a document
    # Whether it returns log sums, which merge attention over two sets of keys.
    log_sum: bool = False
    dtypes: tuple[str, ...] = ("float32", "bfloat16")  # values of `Config.dtype`
    platforms: tuple[str, ...] = ()  # platforms that train with it, as JAX names them; (): all

    # (settings of the model, device) -> None; raises ValueError for a device of these platforms
    # that cannot train with it.
    check_device: Callable[[Any, jax.Device], None] = lambda config, device: None
    # Number of slots -> how many to add to each row before the first layer, for speed.
    padding: Callable[[int], int] = lambda slots: 0
    # Number of slots -> whether arrays [H, d, B T] are faster for it than [B, T, H, d].
    slots_last: Callable[[int], bool] = lambda slots: False
    bias_multiple: int = 1  # with a bias, the slots of a shard must be a multiple of this number


MECHANISMS: dict[str, Mechanism] = {}


def register(mechanism: Mechanism) -> None:
    """Makes a mechanism available to all models, or replaces the mechanism of this name."""
    MECHANISMS[mechanism.name] = mechanism


def check_outputs(mechanism: Mechanism, attended: Any, q_BxTxHxd: jax.Array) -> None:
    """Raises ValueError unless a mechanism returned outputs and log sums of the right shapes."""
    shape = q_BxTxHxd.shape
    rows, queries, heads, _ = shape
    expected = (shape, (rows, heads, queries) if mechanism.log_sum else None)
    is_pair = isinstance(attended, tuple) and len(attended) == 2
    found = tuple(map(_shape, attended)) if is_pair else _shape(attended)
    if found == expected or (is_pair and not mechanism.log_sum and found[0] == shape):
        return
    raise ValueError(
        f"The attention mechanism {mechanism.name!r} returned arrays of the shapes {found}, "
        f"expected a pair of the shapes {expected}: outputs of the shape of the queries, and log "
        f"sums (log_sum={mechanism.log_sum}). Change its functions."
    )


def _shape(x: Any) -> Any:
    """Returns the shape of an array; the shapes in a tuple; None for None."""
    if isinstance(x, tuple):
        return tuple(map(_shape, x))
    return getattr(x, "shape", x)
