"""`attention.attend` as kernels for TPUs and GPUs, without arrays [T, S] in memory.

    out, lse = attend(q, k, v, intervals, bias_HxD)    # as `attention.attend`, with its gradients

The softmax runs over blocks of keys (Milakov and Gimelshein 2018, arXiv:1805.02867). The gradient
recomputes the probabilities from the saved LSE, once for queries and once for keys and values
(Dao 2023, arXiv:2307.08691). If a row has few keys, TPUs recompute the probabilities only once.
Blocks of keys outside all intervals of a block of queries are skipped. Blocks inside all intervals
are computed without a mask.

The kernels are in `fused_attention_tpu` and `fused_attention_gpu`, and their shared code is in
`attention_blocks`.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from .. import attention, rematerialization
from ..attention_mechanisms import Mechanism, register_attention
from ..linear import on_slots_last
from ..positions import MAX_DISTANCE, bias_at
from ..sharding import mesh_axes, num_shards, platform, spec_of
from . import fused_attention_gpu, fused_attention_tpu

_KERNELS = {"tpu": fused_attention_tpu, "cuda": fused_attention_gpu}  # by XLA's names of platforms


def kernels_of(platform):
    """Returns the module with the kernels of a platform (by JAX's name), or None."""
    return _KERNELS.get("cuda" if platform == "gpu" else platform)


def check_device(config, device):
    """Raises ValueError for a TPU or GPU whose kernels cannot train a model with these settings.

    `config` is a `Config`, or None for a network of your own.
    """
    if device.device_kind.startswith(("TPU v2", "TPU v3")):
        raise ValueError(
            f"Got a model with attention='fused' on {device.device_kind}, expected TPU v4 or "
            "later, for which its kernels can be compiled: use attention='plain'."
        )
    size = config.head_dim * jnp.dtype(config.dtype).itemsize if config else 0
    widest = kernels_of(device.platform).MAX_HEAD_BYTES
    if size > widest:
        raise ValueError(
            f"Got head_dim={config.head_dim} and dtype={config.dtype!r}, {size} bytes per head, "
            f"expected at most {widest} bytes: the kernels of attention='fused' on "
            f"{device.platform} do not fit larger heads. Use dtype='bfloat16' or "
            "attention='plain'."
        )


def are_slots_last(slots):
    """Returns whether the kernels take arrays with slots last, [H, d, B T].

    The kernels for TPUs do, unless slots are sharded. Other operations on these arrays are then
    faster in the same layout.
    """
    # Sharded slots cannot be joined with the rows.
    return platform() == "tpu" and num_shards("length", slots) == 1


def padding(slots):
    """Returns the number of slots to add to a row before the first layer, to avoid later copies.

        padding(114)        # 14 on a TPU; otherwise every layer would pad its attention to 128

    The number is 0 if the platform is not a TPU, if the padding would be more than an eighth of the
    slots, or if a mesh shards the slots. A mesh that divides the number of slots may not divide the
    padded number.
    """
    more = fused_attention_tpu.padded_length(slots) - slots
    are_last = are_slots_last(slots) and are_slots_last(slots + more)
    return more if more <= slots // 8 and are_last else 0


def attend(q_BxTxHxd, k_BxSxGxd, v_BxSxGxd, intervals_Bx2xT, bias_HxD=None, softcap=None):
    """`attention.attend` with a bias by difference of slots, from `RelativeBias` without a length.

    Lengths are padded to whole blocks. The output of a query whose interval is empty is zero. On a
    platform without kernels, such as a CPU, or for heads that are too wide for the kernels, this
    computes `attention.attend`.

    On a mesh, each device computes its rows, queries and heads. Keys and values are gathered over
    shards of slots. If there are fewer key heads than devices, key heads are repeated. With a bias,
    queries are sharded only if the number of queries of a shard is a multiple of `TILE`.

    Raises ValueError for a bias of the wrong shape, and for heads that cannot be divided among the
    devices of the mesh.
    """
    if bias_HxD is not None and bias_HxD.shape[1] != 2 * MAX_DISTANCE + 1:
        raise ValueError(
            f"Got a bias of {bias_HxD.shape[1]} differences, expected {2 * MAX_DISTANCE + 1}: "
            f"from -{MAX_DISTANCE} to {MAX_DISTANCE} slots. Pass the result of `RelativeBias` "
            "without a length."
        )
    times = _repeats(q_BxTxHxd.shape[2], k_BxSxGxd.shape[2])
    k, v = (x if times == 1 else jnp.repeat(x, times, 2) for x in (k_BxSxGxd, v_BxSxGxd))
    return _attend(softcap, q_BxTxHxd, k, v, intervals_Bx2xT, bias_HxD)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(softcap, *arrays):
    return _forward(softcap, *arrays)[0]


def _forward(softcap, q, k, v, intervals, bias):
    local = functools.partial(by_platform("forward"), softcap)
    out, lse = _on_every_device(local, (q, k, v, intervals, bias), _OUTPUTS)
    named = functools.partial(rematerialization.named, name=rematerialization.ATTENTION)
    out = on_slots_last(named, out) if are_slots_last(out.shape[1]) else named(out)
    lse = named(lse)
    return (out, lse), (q, k, v, intervals, bias, out, lse)


def _backward(softcap, saved, d_outputs):
    local = functools.partial(by_platform("backward"), softcap)
    outputs = (_HEADS, _KEYS, _KEYS, _BIAS)
    d_q, d_k, d_v, d_bias = _on_every_device(local, (*saved, *d_outputs), outputs)
    return d_q, d_k, d_v, None, d_bias


_attend.defvjp(_forward, _backward)


def by_platform(name):
    """Returns the platform's "forward" or "backward" function, with kernels or without them."""
    plain = {"forward": _plain_forward, "backward": _plain_backward}[name]

    def call(softcap, before, q, *arrays):
        kernels = {
            platform: functools.partial(getattr(module, name), softcap)
            for platform, module in _KERNELS.items()
            if q.shape[-1] * q.dtype.itemsize <= module.MAX_HEAD_BYTES
        }
        default = functools.partial(plain, softcap)
        return jax.lax.platform_dependent(before, q, *arrays, **kernels, default=default)

    return call


def _plain_forward(softcap, before, q, k, v, intervals, bias):
    return attention.forward(softcap, q, k, v, intervals, _by_slots(before, q, k, bias))[0]


def _plain_backward(softcap, before, q, k, v, intervals, bias, *outputs_and_gradients):
    *saved, d_out, d_lse = outputs_and_gradients
    bias_HxTxS, pull_back = jax.vjp(lambda bias: _by_slots(before, q, k, bias), bias)
    arrays = (q, k, v, intervals, bias_HxTxS, *saved)
    d_q, d_k, d_v, _, d_bias_HxTxS = attention.backward(softcap, arrays, (d_out, d_lse))
    return d_q, d_k, d_v, pull_back(d_bias_HxTxS)[0]


def _by_slots(before, q, k, bias_HxD):
    if bias_HxD is None:
        return None
    return bias_at(bias_HxD, before[None] + jnp.arange(q.shape[1])[None], k.shape[1])[0]


# --- on several devices: XLA cannot partition a kernel --------------------------------------------

_HEADS = ("batch", "length", "heads", "kv")
_KEYS = ("batch", "keys", "heads", "kv")
_LOG_SUM = ("batch", "heads", "length")
_BIAS = ("heads", None)
_OUTPUTS = (_HEADS, _LOG_SUM)
_INPUTS = (_HEADS, _KEYS, _KEYS, ("batch", None, "length"), _BIAS, *_OUTPUTS, *_OUTPUTS)


def _repeats(heads, key_heads):
    """Returns how often to repeat each key head so that devices have the same number of them."""
    mesh = jax.sharding.get_abstract_mesh()
    entries = nn.logical_to_mesh_axes(("heads",)) or (None,)
    devices = 1 if mesh.empty else math.prod(mesh.shape[axis] for axis in mesh_axes(entries[0]))
    repeated = math.lcm(key_heads, devices)
    if heads % repeated:
        raise ValueError(
            f"Got {heads} heads and {key_heads} key heads on a mesh that shards heads over "
            f"{devices} devices, expected a number of devices that divides {heads} and is a "
            f"multiple or a divisor of {key_heads}: change tensor (--gin.mesh.make_mesh.tensor), "
            "or use attention='plain'."
        )
    return repeated // key_heads


def _on_every_device(function, arrays, outputs):
    """Calls function(before, *arrays) on each device, with its rows, queries and heads.

    Each device has all keys. `before` i32[1] is the slot of the device's first query.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return function(jnp.zeros(1, jnp.int32), *arrays)
    q = arrays[0]
    k = arrays[1]
    bias = arrays[4]
    # If the mesh does not divide rows or slots, every device computes them all.
    rows, slots = spec_of(("batch", "length"), q.shape[:2], mesh)
    shard_slots = q.shape[1] // num_shards("length", q.shape[1])
    multiple = 1 if bias is None else fused_attention_tpu.TILE
    if shard_slots % multiple:
        slots = None
    sharded = {
        "batch": rows,
        "length": slots,
        "keys": slots and spec_of(("length",), k.shape[1:2], mesh)[0],
        "heads": spec_of(("heads",), k.shape[2:3], mesh)[0],
    }
    slot_axes = mesh_axes(slots)
    key_axes = mesh_axes(sharded["keys"])
    specs = [jax.P(*map(sharded.get, names)) for names in (*_INPUTS[: len(arrays)], *outputs)]

    def summed(x, names):
        """Returns a gradient, summed over the devices with different rows or queries."""
        if names == _BIAS:
            return jax.lax.psum(x, (*mesh_axes(rows), *slot_axes))
        if names != _KEYS or not slot_axes:
            return x
        if not key_axes:
            return jax.lax.psum(x, slot_axes)
        return jax.lax.psum_scatter(x, key_axes, scatter_dimension=1, tiled=True)

    def local(q, k, v, *rest):
        if key_axes:
            k, v = (jax.lax.all_gather(x, key_axes, axis=1, tiled=True) for x in (k, v))
        if slot_axes and shard_slots % (2 * multiple) == 0:
            results = _on_mirrored_halves(function, slot_axes, (q, k, v, *rest), outputs)
        else:
            before = jax.lax.axis_index(slot_axes) * shard_slots if slot_axes else 0
            results = function(jnp.full(1, before, jnp.int32), q, k, v, *rest)
        return tuple(map(summed, results, outputs))

    return jax.shard_map(
        local,
        in_specs=tuple(specs[: len(arrays)]),
        out_specs=tuple(specs[len(arrays) :]),
        check_vma=False,  # the check does not support kernels
    )(*arrays)


def _on_mirrored_halves(function, axes, arrays, outputs):
    """Calls `function` for half of a device's queries and half of its mirror image's queries.

    Later causal queries attend to more keys. To balance the work, the devices of a row swap the
    second halves of their queries, the first device with the last and so on. The first half of
    shard i and the second half of shard n - 1 - i together attend to the same number of keys for
    every i.
    """
    device = jax.lax.axis_index(axes)
    devices = jax.lax.axis_size(axes)
    slots = arrays[0].shape[1]
    mirror = devices - 1 - device

    def swapped(x):
        return jax.lax.ppermute(x, axes, [(i, devices - 1 - i) for i in range(devices)])

    def halves(x, names):
        if "length" not in names:
            return x, x
        first, second = jnp.split(x, 2, names.index("length"))
        return first, swapped(second)

    def joined(first, second, names):
        if "length" not in names:  # a gradient of an array that both halves read
            return jax.tree.map(jnp.add, first, second)
        return jnp.concatenate([first, swapped(second)], names.index("length"))

    parts = zip(*map(halves, arrays, _INPUTS))
    first_slots = device * slots, mirror * slots + slots // 2
    results = (
        function(jnp.full(1, before, jnp.int32), *part) for before, part in zip(first_slots, parts)
    )
    return tuple(map(joined, *results, outputs))


register_attention(
    Mechanism(
        name="fused",
        attend=attend,
        attend_cached=attention.attend_cached,
        is_softmax=True,
        bias="distances",
        softcap=True,
        returns_lse=True,
        platforms=("tpu", "gpu"),
        check_device=check_device,
        padding=padding,
        slots_last=are_slots_last,
        bias_multiple=fused_attention_tpu.TILE,
    )
)
