"""`Mechanism`: how a model computes attention, one record per value of `Config.attention`.

    # my_attention.py
    register_attention(Mechanism("sigmoid", attend, attend_cached))

    models.decoder(32000, attention="sigmoid", …)

`models/kernels/` and `models.attention` register the built-in mechanisms. `Config` rejects
unsupported settings, and a training run rejects unsupported devices.

Letters: B rows, T queries, S keys, H query heads, G key heads (G divides H), d width of a head.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax


class Mechanism(NamedTuple):
    """An attention mechanism: its functions, and what it supports.

    Training, evaluation and prefill use `attend`, which must be differentiable. Later decoding
    calls use `attend_cached`, which must compute the same function. Both return the outputs [B, T,
    H, d] in the dtype of the values, and the log-sum-exp (LSE) of the scores f32[B, H, T], or None
    without `returns_lse`.

        attend(q_BxTxHxd, k_BxSxGxd, v_BxSxGxd, intervals_Bx2xT, bias, softcap)
        attend_cached(q_BxTxHxd, k_BxGxSxd, v_BxGxSxd, intervals_Bx2xT, bias_BxHxTxS, softcap)

    Query t of row b attends to the keys intervals[b, 0, t] <= key < intervals[b, 1, t]. The queries
    are already scaled. `bias` and `softcap` are None unless the model has them.
    """

    name: str  # the value of `Config.attention`
    attend: Callable[..., tuple[jax.Array, jax.Array | None]]
    attend_cached: Callable[..., tuple[jax.Array, jax.Array | None]]

    # Whether it computes softmax attention. Only such models can be converted to Hugging Face.
    is_softmax: bool = False
    # The shape of T5's bias that `attend` takes. "slots": f32[H, T, S]. "distances":
    # f32[H, 2 * MAX_DISTANCE + 1], by key slot - query slot (`positions.RelativeBias`). None means
    # that the mechanism does not support a bias.
    bias: Literal["slots", "distances"] | None = None
    softcap: bool = False  # whether it supports `Config.attention_softcap`
    windows: bool = True  # whether intervals may begin after the first key of a document
    # Whether it returns the LSE, which is needed to combine attention over two sets of keys.
    returns_lse: bool = False
    dtypes: tuple[str, ...] = ("float32", "bfloat16")  # supported values of `Config.dtype`
    platforms: tuple[str, ...] = ()  # JAX's names of the platforms that train with it; (): all

    # (`Config`, device) -> None. Raises ValueError for a device of these platforms that cannot
    # train with the mechanism.
    check_device: Callable[[Any, jax.Device], None] = lambda config, device: None
    # Number of slots -> number of padding slots to add to each row, for speed.
    padding: Callable[[int], int] = lambda slots: 0
    # Number of slots -> whether the mechanism is faster with arrays [H, d, B T] than [B, T, H, d].
    slots_last: Callable[[int], bool] = lambda slots: False
    bias_multiple: int = 1  # with a bias, the slots of a shard must be a multiple of this number


MECHANISMS: dict[str, Mechanism] = {}


def register_attention(mechanism: Mechanism) -> None:
    """Registers a mechanism for all models, or replaces the mechanism of this name."""
    MECHANISMS[mechanism.name] = mechanism


def check_outputs(mechanism: Mechanism, attended: Any, q_BxTxHxd: jax.Array) -> None:
    """Raises ValueError unless a mechanism returned outputs and an LSE of the right shapes."""
    shape = q_BxTxHxd.shape
    rows, queries, heads, _ = shape
    expected = (shape, (rows, heads, queries) if mechanism.returns_lse else None)
    is_pair = isinstance(attended, tuple) and len(attended) == 2
    found = tuple(map(_shape, attended)) if is_pair else _shape(attended)
    if found == expected or (is_pair and not mechanism.returns_lse and found[0] == shape):
        return
    raise ValueError(
        f"The attention mechanism {mechanism.name!r} returned arrays of the shapes {found}, "
        f"expected a pair of the shapes {expected}: outputs of the shape of the queries, and the "
        f"LSE (returns_lse={mechanism.returns_lse}). Change its functions."
    )


def _shape(x: Any) -> Any:
    """Returns the shape of an array; the shapes in a tuple; None for None."""
    if isinstance(x, tuple):
        return tuple(map(_shape, x))
    return getattr(x, "shape", x)
