"""Collectives of compiled programs, counted in the text of a program."""

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from pretrax.models.heads import projection
from pretrax.models.token_embeddings import _lookup as lookup
from pretrax.objectives.cross_entropy import projected_cross_entropies
from pretrax.training.devices.collectives import Traffic, traffic
from pretrax.training.devices.mesh import (
    batch_sharding,
    make_mesh,
    placed_on,
    shardings_like,
    spread_over_data,
)


def test_collectives_of_eight_devices_are_counted():
    mesh = make_mesh(data=1, fsdp=4, tensor=2)
    sharded = NamedSharding(mesh, P(None, "fsdp", None))

    def f(w_LxExE, x_E):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x_E, w_LxExE)[0]

    w = jax.ShapeDtypeStruct((3, 8, 8), jnp.float32, sharding=sharded)
    x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(mesh, P()))
    out = NamedSharding(mesh, P())
    found = traffic(jax.jit(f, out_shardings=out).lower(w, x).compile().as_text())
    assert found["all-reduce"] == Traffic(calls=3, bytes=3 * 8 * 4)  # one call per layer


def test_embedding_gradient_is_not_all_reduced_whole():
    mesh = make_mesh(data=1, fsdp=4, tensor=2)
    table = jax.ShapeDtypeStruct(
        (512, 16), jnp.float32, sharding=NamedSharding(mesh, P(None, "fsdp"))
    )
    tokens = jax.ShapeDtypeStruct((8, 6), jnp.int32, sharding=batch_sharding(mesh))

    def loss(table_VxE, tokens_BxT):
        return jnp.sum(lookup(table_VxE, tokens_BxT) ** 2)

    with placed_on(mesh):
        found = traffic(jax.jit(jax.grad(loss)).lower(table, tokens).compile().as_text())
    assert found["all-gather"].bytes >= 4 * 512 * 16  # the whole table
    assert sum(one.bytes for kind, one in found.items() if kind != "all-gather") < 4 * 512 * 16


def test_projection_is_gathered_and_its_gradient_reduced_once():
    mesh = make_mesh(data=1, fsdp=4, tensor=2)
    sharded = NamedSharding(mesh, P("tensor", "fsdp"))
    kernel = jax.ShapeDtypeStruct((512, 64), jnp.float32, sharding=sharded)
    rows = batch_sharding(mesh)
    states = jax.ShapeDtypeStruct((8, 1024, 64), jnp.float32, sharding=rows)  # four pieces
    labels = jax.ShapeDtypeStruct((8, 1024), jnp.int32, sharding=rows)

    def loss(kernel_VxE, states, labels):
        head = projection(states, kernel_VxE, lambda logits: logits)
        (sums,) = projected_cross_entropies(head, [labels], [jnp.ones(labels.shape)], [0.0])
        return jnp.sum(sums.losses)

    with placed_on(mesh):
        step = jax.jit(jax.grad(loss), out_shardings=sharded)
        found = traffic(step.lower(kernel, states, labels).compile().as_text())
    whole = 4 * 512 * 64
    assert found["all-gather"].bytes <= whole
    # One sum is computed together with the loss. The branch that is not taken computes it again for
    # each of four pieces. All other sums are over slots.
    assert found["all-reduce"].bytes < (1 + 4 + 1) * whole / 2


def test_factored_moments_are_sharded_like_their_remaining_axes():
    mesh = make_mesh(data=1, fsdp=4, tensor=2)
    params = {"w": jax.ShapeDtypeStruct((256, 128), jnp.float32)}
    state = jax.eval_shape(optax.adafactor(0.1).init, params)
    found = shardings_like(state, params, {"w": NamedSharding(mesh, P("fsdp", "tensor"))}, mesh)
    specs = {
        x.shape: sharding.spec
        for x, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(found))
    }
    assert specs[(256,)] == P("fsdp") and specs[(128,)] == P("tensor") and specs[()] == P()


def test_parameter_updates_are_sharded_over_data():
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    specs = {
        (512, 2048): (P("fsdp", None), P("fsdp", "data")),
        (2048, 512): (P("fsdp", None), P(("fsdp", "data"), None)),
        (6, 2048, 512): (P(None, None, "fsdp"), P(None, "data", "fsdp")),
        # 257 rows per shard, an odd number
        (3, 2047, 514): (P(None, None, "fsdp"), P(None, None, "fsdp")),
        (64, 8): (P("fsdp", None), P("fsdp", None)),  # too small
        (2**16,): (P(), P("data")),
    }
    params = {shape: jax.ShapeDtypeStruct(shape, jnp.float32) for shape in specs}
    given = {shape: NamedSharding(mesh, spec) for shape, (spec, _) in specs.items()}
    found = spread_over_data(params, given, mesh)
    expected = {shape: NamedSharding(mesh, spec) for shape, (_, spec) in specs.items()}
    assert found == expected
    whole = make_mesh(data=1, fsdp=4, tensor=2)
    given = {(512, 2048): NamedSharding(whole, P("fsdp", None))}
    assert spread_over_data({(512, 2048): params[512, 2048]}, given, whole) == given


# Text as the compilers for TPUs and GPUs write it.
PROGRAM = """HloModule jit_step, is_scheduled=true

%all-reduce-scatter.1 (input.1: f32[128,352]) -> f32[32,352] {
  %input.1 = f32[128,352]{1,0:T(8,128)} parameter(0)
  %all-reduce.9 = f32[128,352]{1,0:T(8,128)} all-reduce(%input.1), channel_id=34, to_apply=%add
  ROOT %dynamic-slice.1 = f32[32,352]{1,0:T(8,128)} dynamic-slice(%all-reduce.9, %i, %zero)
}

%body (p: (s32[], bf16[32,128])) -> (s32[], bf16[32,128]) {
  %fusion.7 = f32[32,352]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1
  %all-gather.4 = bf16[128,128]{1,0:T(8,128)(2,1)} all-gather(%y), dimensions={0}
  ROOT %t = (s32[], bf16[32,128]) tuple(%i, %y)
}

%condition (p: (s32[], bf16[32,128])) -> pred[] {
  %constant.3 = s32[]{:T(128)} constant(5)
  ROOT %lt = pred[]{:T(512)} compare(%i, %constant.3), direction=LT
}

%other_body (p: (s32[])) -> (s32[]) {
  %all-reduce.8 = (f32[128]{0}, s32[2]{0}) all-reduce(%a, %b), to_apply=%add
  ROOT %u = (s32[]) tuple(%i)
}

%wrapped (p: f32[64]) -> f32[16] {
  %p.1 = f32[64]{0} parameter(0)
  ROOT %reduce-scatter.2 = f32[16]{0} reduce-scatter(%p.1), dimensions={0}, to_apply=%add
}

ENTRY %main (p0: f32[8]) -> f32[8] {
  %while.1 = (s32[], bf16[32,128]) while(%tuple.1), condition=%condition, body=%body
  %while.2 = (s32[]) while(%tuple.2), condition=%c, body=%other_body, backend_config={"known_trip_count":{"n":"3"}}
  %all-gather-start.1 = (f32[8]{0}, f32[64]{0}) all-gather-start(%p0), dimensions={0}
  %all-gather-done.1 = f32[64]{0} all-gather-done(%all-gather-start.1)
  %async-start.1 = ((f32[64]), f32[16]) async-start(%all-gather-done.1), calls=%wrapped
  %async-done.1 = f32[16]{0} async-done(%async-start.1), calls=%wrapped
  ROOT %permute = f32[8]{0} collective-permute(%p0), source_target_pairs={{0,1}}
}
"""


def test_loops_asynchronous_pairs_and_fused_reduce_scatters_are_counted():
    found = traffic(PROGRAM)
    assert found == {
        "reduce-scatter": Traffic(5 + 1, 5 * 4 * 128 * 352 + 4 * 64),
        "all-gather": Traffic(5 + 1, 5 * 2 * 128 * 128 + 4 * 64),
        "all-reduce": Traffic(3, 3 * 4 * (128 + 2)),
        "collective-permute": Traffic(1, 4 * 8),
    }
    assert list(found)[0] == "reduce-scatter"  # the collective with the most bytes


# A gather in a TPU program that overlaps with two products. The last product waits for it.
FUSED = """HloModule jit_step, is_scheduled=true

%fused.1 (p.1: bf16[32,128]) -> (bf16[32,128], bf16[128,128], u32[]) {
  %p.1 = bf16[32,128]{1,0} parameter(0)
  %all-gather.1 = bf16[128,128]{1,0:T(8,128)(2,1)} all-gather(%p.1), channel_id=5, dimensions={0}
  ROOT %custom-call.1 = (bf16[32,128]{1,0}, bf16[128,128]{1,0}, u32[]{:S(2)}) custom-call(%all-gather.1), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.2 (p.2: bf16[32,128], p.3: bf16[128,128]) -> (bf16[128,128], bf16[128,128]) {
  %all-gather.2 = bf16[128,128]{1,0:T(8,128)(2,1)S(1)} all-gather(%p.2), channel_id=5, dimensions={0}
  ROOT %tuple.2 = (bf16[128,128]{1,0}, bf16[128,128]{1,0}) tuple(%convolution.2, %p.3)
}

%fused.3 (p.4: bf16[32,128], p.5: bf16[128,128]) -> bf16[128,128] {
  %all-gather.3 = bf16[128,128]{1,0} all-gather(%p.4), channel_id=5, dimensions={0}
  ROOT %custom-call.3 = bf16[128,128]{1,0} custom-call(%p.4, %p.5, %all-gather.3), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (p0: bf16[32,128]) -> bf16[128,128] {
  %fusion.1 = (bf16[32,128]{1,0}, bf16[128,128]{1,0}, u32[]) fusion(%p0), kind=kCustom, calls=%fused.1
  %fusion.2 = (bf16[128,128]{1,0}, bf16[128,128]{1,0}) fusion(%fusion.1), kind=kOutput, calls=%async_collective_fusion.2
  %fusion.3 = (bf16[128,128]{1,0}, bf16[128,128]{1,0}) fusion(%fusion.2), kind=kOutput, calls=%async_collective_fusion.2
  %all-reduce.4 = f32[64]{0} all-reduce(%x), channel_id=6, to_apply=%add
  %all-gather.5 = f32[16]{0} all-gather(%y), channel_id=5, dimensions={0}
  ROOT %fusion.4 = bf16[128,128]{1,0} fusion(%fusion.3), kind=kCustom, calls=%fused.3
}
"""


def test_exchange_in_several_fusions_counts_once():
    """Another gather on the same channel counts as well, as in the exchanges of a `shard_map`."""
    assert traffic(FUSED) == {
        "all-gather": Traffic(2, 2 * 128 * 128 + 4 * 16),
        "all-reduce": Traffic(1, 4 * 64),
    }


# Text as the compiler for GPUs writes it: several arrays are exchanged at once.
COMBINED = """HloModule jit_step, is_scheduled=true

ENTRY %main (p0: f32[8], p1: bf16[16,4]) -> f32[8] {
  %gather = ((f32[8]{0}, bf16[16,4]{1,0}), (f32[32]{0}, /*index=1*/bf16[64,4]{1,0})) all-gather-start(%p0, %p1), channel_id=1
  %gathered = (f32[32]{0}, bf16[64,4]{1,0}) all-gather-done(%gather)
  %scatter = ((f32[32]{0}, f32[64]{0}), (f32[8]{0}, f32[16]{0})) reduce-scatter-start(%a, %b), channel_id=2
  %reduce = (f32[3]{0}, f32[5]{0}) all-reduce-start(%c, %d), channel_id=3, to_apply=%add
  %exchange = ((f32[4,6]{1,0}), f32[4,6]{1,0}) all-to-all-start(%e), channel_id=4
  %permute = (f32[7]{0}, f32[7]{0}, u32[], u32[]) collective-permute-start(%f), channel_id=5
  %a = f32[32]{0} parameter(2)
  %b = f32[64]{0} parameter(3)
  ROOT %both = (f32[8]{0}, f32[16]{0}) reduce-scatter(%a, /*index=1*/%b), channel_id=6
}
"""


def test_all_arrays_of_a_collective_are_counted():
    assert traffic(COMBINED) == {
        "all-gather": Traffic(1, 4 * 32 + 2 * 64 * 4),
        "reduce-scatter": Traffic(2, 2 * 4 * (32 + 64)),
        "all-reduce": Traffic(1, 4 * (3 + 5)),
        "all-to-all": Traffic(1, 4 * 4 * 6),
        "collective-permute": Traffic(1, 4 * 7),
    }


NARROWED = """HloModule jit_step, is_scheduled=true

ENTRY %main (p0: f32[8,64], p1: f32[4]) -> bf16[8,64] {
  %p0 = f32[8,64]{1,0:T(8,128)} parameter(0)
  %p1 = f32[4]{0:T(128)} parameter(1)
  ROOT %sum = (bf16[8,64]{1,0:T(8,128)(2,1)}, f32[4]{0}) all-reduce(%p0, %p1), channel_id=1, to_apply=%add
}
"""


def test_float32_sum_narrowed_by_the_compiler_counts_as_float32():
    assert traffic(NARROWED) == {"all-reduce": Traffic(1, 4 * (8 * 64 + 4))}


# A ring of permutations through eight devices in both directions: two times four steps.
RING = """HloModule jit_step, is_scheduled=true

%body (p: (bf16[4], /*index=1*/u32[], bf16[4])) -> (bf16[4], u32[], bf16[4]) {
  %constant.1 = u32[]{:T(128)} constant(7)
  %constant.2 = u32[]{:T(128)} constant(2), metadata={op_name="dot_general"}
  %i = u32[]{:T(128)} get-tuple-element(%p), index=1
  %left.1 = (bf16[4]{0:T(8)S(1)}, bf16[4]{0}, u32[], u32[]) collective-permute-start(%a), channel_id=1
  %right.1 = (bf16[4]{0:T(8)S(1)}, bf16[4]{0}, u32[], u32[]) collective-permute-start(%b), channel_id=2
  %left.2 = (bf16[4]{0:T(8)S(1)}, bf16[4]{0}, u32[], u32[]) collective-permute-start(%c), channel_id=3
  %right.2 = (bf16[4]{0:T(8)S(1)}, bf16[4]{0}, u32[], u32[]) collective-permute-start(%d), channel_id=4
  %add.1 = u32[]{:T(128)} add(%i, %constant.2), metadata={op_name="dot_general"}
  ROOT %tuple.1 = (bf16[4]{0}, u32[], bf16[4]{0}) tuple(%left, /*index=1*/%add.1, %right), metadata={op_name="f(x)"}
}

%condition (p: (bf16[4], u32[], bf16[4])) -> pred[] {
  %constant.3 = u32[]{:T(128)} constant(4)
  %p.1 = (bf16[4]{0}, u32[], bf16[4]{0}) parameter(0)
  %i.1 = u32[]{:T(128)} get-tuple-element(%p.1), index=1
  ROOT %less = pred[]{:T(512)} compare(%i.1, %constant.3), direction=LT
}

ENTRY %main (p0: bf16[4]) -> bf16[4] {
  %while.1 = (bf16[4]{0}, u32[], bf16[4]{0}) while(%tuple.2), condition=%condition, body=%body
}
"""


def test_ring_of_permutations_counts_every_step():
    assert traffic(RING) == {"collective-permute": Traffic(8, 8 * 2 * 4)}


def test_single_device_program_has_no_collectives():
    assert traffic(jax.jit(jnp.sum).lower(jnp.ones(4)).compile().as_text()) == {}
