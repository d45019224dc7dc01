"""The estimate of a step's time from the text of a compiled program."""

import importlib.util
import math
import subprocess
import sys

import pytest

from pretrax.models.experts import UNBALANCED
from pretrax.training.devices.accelerators import ACCELERATORS
from pretrax.training.devices.collectives import Collective, traffic
from pretrax.training.devices.cycles import TPUS, PartTime, StepTime, estimate
from pretrax.training.devices.exchange_times import LINKS, exchange_seconds
from pretrax.training.devices.products import products_of
from pretrax.training.devices.program_text import Instruction, size
from pretrax.training.devices.topologies import Topology

V5E = Topology("TPU v5e", (4, 4))
CHIPS = [(x, y, 0) for x in range(4) for y in range(4)]
LAYERS = "jit(train_step)/jvp(Transformer)/encoder/encoder._layers/while/body/layers"
BACK = LAYERS.replace("jvp(Transformer)", "transpose(jvp(Transformer))")


def cycles(number: int) -> str:
    return f'backend_config={{"window_config":{{"estimated_cycles":"{number}"}}}}'


def named(path: str) -> str:
    return f'metadata={{op_name="{path}" stack_frame_id=3}}'


# Shortened text as libtpu 0.0.42 writes it: a loop of layers, its gradient, a kernel, an exchange
# in three fusions, an exchange without overlap, and the code before and after.
PROGRAM = f"""HloModule jit_train_step, is_scheduled=true

%fused_mlp (p.1: bf16[4096,1024], p.2: bf16[1024,2816]) -> bf16[4096,2816] {{
  %p.1 = bf16[4096,1024]{{1,0:T(8,128)(2,1)}} parameter(0)
  %p.2 = bf16[1024,2816]{{1,0:T(8,128)(2,1)S(1)}} parameter(1)
  ROOT %convolution.1 = bf16[4096,2816]{{1,0:T(8,128)(2,1)}} convolution(%p.1, %p.2), dim_labels=bf_io->bf
}}

%fused_piece (p.3: bf16[4096,128], p.4: bf16[128,2816]) -> bf16[4096,2816] {{
  %p.3 = bf16[4096,128]{{1,0:T(8,128)(2,1)}} parameter(0)
  %p.4 = bf16[128,2816]{{1,0:T(8,128)(2,1)S(1)}} parameter(1)
  ROOT %convolution.2 = bf16[4096,2816]{{1,0:T(8,128)(2,1)}} convolution(%p.3, %p.4), dim_labels=bf_io->bf
}}

%start (p.5: bf16[64,1024]) -> (bf16[64,1024], bf16[1024,1024], u32[]) {{
  %p.5 = bf16[64,1024]{{1,0:T(8,128)(2,1)}} parameter(0)
  %all-gather.1 = bf16[1024,1024]{{1,0:T(8,128)(2,1)}} all-gather(%p.5), channel_id=5, replica_groups=mesh['axis_0'=16,'axis_1'=1] {{'axis_0'}}, dimensions={{0}}
  ROOT %custom-call.1 = (bf16[64,1024]{{1,0}}, bf16[1024,1024]{{1,0}}, u32[]{{:S(2)}}) custom-call(%all-gather.1), custom_call_target="AsyncCollectiveStart"
}}

%done (p.6: bf16[64,1024], p.7: bf16[1024,1024]) -> bf16[1024,1024] {{
  %all-gather.2 = bf16[1024,1024]{{1,0}} all-gather(%p.6), channel_id=5, replica_groups=mesh['axis_0'=16,'axis_1'=1] {{'axis_0'}}, dimensions={{0}}
  ROOT %custom-call.2 = bf16[1024,1024]{{1,0}} custom-call(%p.6, %p.7, %all-gather.2), custom_call_target="AsyncCollectiveDone"
}}

%body (p.8: (s32[], bf16[4096,1024])) -> (s32[], bf16[4096,1024]) {{
  %fusion.1 = (bf16[64,1024]{{1,0}}, bf16[1024,1024]{{1,0}}, u32[]) fusion(%w), kind=kCustom, calls=%start
  %fusion.2 = bf16[4096,2816]{{1,0}} fusion(%x, %w.1), kind=kOutput, calls=%fused_mlp, {named(LAYERS + "/mlp/dot_general")}, {cycles(150_000)}
  %fusion.3 = bf16[1024,1024]{{1,0}} fusion(%fusion.1), kind=kCustom, calls=%done, {named(LAYERS + "/mlp/dot_general")}
  %attention_output.1 = (bf16[8,16,64,512]{{3,2,1,0:T(8,128)(2,1)S(1)}}, f32[8,16,1,512]{{3,2,1,0}}) custom-call(%q, %k, %v), custom_call_target="tpu_custom_call", operand_layout_constraints={{s32[], bf16[8,16,64,512]{{3,2,1,0}}, bf16[8,16,64,512]{{3,2,1,0}}, bf16[8,16,64,512]{{3,2,1,0}}}}, frontend_attributes={{kernel_metadata={{}}}}, {named(LAYERS + "/self_attention/pallas_call")}, backend_config={{"custom_call_config":{{"body":"TUzv","cost_estimate":{{"flops":"19700000000","transcendentals":"33554432","bytes_accessed":"39092224","remote_bytes_transferred":"0"}}}}}}
  ROOT %t = (s32[], bf16[4096,1024]) tuple(%i, %y)
}}

%condition (p.9: (s32[], bf16[4096,1024])) -> pred[] {{
  %constant.3 = s32[]{{:T(128)}} constant(24)
  ROOT %lt = pred[]{{:T(512)}} compare(%i, %constant.3), direction=LT
}}

%back (p.10: (s32[])) -> (s32[]) {{
  %fusion.4 = bf16[4096,2816]{{1,0}} fusion(%x, %w.1), kind=kOutput, calls=%fused_piece, {named(BACK + "/mlp/dot_general")}, {cycles(300_000)}
  %all-reduce.1 = bf16[1024,2816]{{1,0}} all-reduce(%g), channel_id=7, replica_groups=mesh['axis_0'=16] {{'axis_0'}}, to_apply=%add
  %copy.1 = bf16[8,512,16,64]{{1,0,3,2:T(8,128)(2,1)S(1)}} copy(%q), {named(BACK + "/self_attention/transpose")}, {cycles(75_000)}
  ROOT %u = (s32[]) tuple(%i)
}}

%short (p.11: f32[8]) -> f32[8] {{
  ROOT %fusion.5 = f32[8]{{0}} fusion(%p.11), kind=kLoop, calls=%add, {named("jit(train_step)/mul")}, {cycles(1_500)}
}}

%long (p.12: f32[8]) -> f32[8] {{
  ROOT %fusion.6 = f32[8]{{0}} fusion(%p.12), kind=kLoop, calls=%add, {named("jit(train_step)/mul")}, {cycles(3_000_000)}
}}

ENTRY %main (p0: f32[8]) -> f32[8] {{
  %fusion.7 = s32[8,512]{{1,0}} fusion(%rows), kind=kLoop, calls=%add, {named("jit(train_step)/vmap(vmap())/gather")}, {cycles(15_000)}
  %while.1 = (s32[], bf16[4096,1024]) while(%tuple.1), condition=%condition, body=%body
  %while.2 = (s32[]) while(%tuple.2), condition=%c, body=%back, backend_config={{"known_trip_count":{{"n":"24"}}}}
  %scatter_fusion = f32[32128,64]{{1,0}} fusion(%d), kind=kCustom, calls=%add, {named("jit(train_step)/transpose(jvp(Transformer))/Transformer._run/scatter-add")}
  %broadcast.1 = bf16[24,4096,1024]{{2,1,0:T(8,128)(2,1)}} broadcast(%zero), dimensions={{}}, {cycles(3_000_000)}
  ROOT %conditional = f32[8]{{0}} conditional(%is, %p0, %p0), branch_computations={{%short, %long}}
}}
"""


def estimated(program: str = PROGRAM, assigned: float = 1.0) -> StepTime:
    found = estimate(program, V5E, CHIPS, assigned)
    assert found is not None
    return found


def test_cycles_of_each_part_count_every_iteration():
    found = estimated()
    ms = {name: [1e3 * x for x in part] for name, part in found.parts.items()}
    # 24 iterations of 150,000 cycles at 1.5 GHz forward, and of 300,000 cycles backward.
    assert ms["MLP"] == pytest.approx([2.4, 4.8, 0])
    # A kernel of 19.7 GFLOP at half of 197 TFLOP/s, since heads of 64 use half of the matrix unit.
    assert ms["attention"] == pytest.approx([24 * 0.2, 0, 0])
    assert found.kernels == pytest.approx(24 * 0.2e-3)
    assert ms["copies"] == pytest.approx([0, 24 * 0.05, 2.0])
    assert ms["corruption"] == pytest.approx([0, 0, 0.01])
    assert ms["optimizer and metrics"] == pytest.approx([0, 0, 2.0])  # the longer branch
    read_and_written = 2 * 32128 * 64 * 4 / 819e9  # a scatter without cycles
    assert ms["vocabulary"] == pytest.approx([0, 1e3 * read_and_written, 0])
    assert list(found.parts) == ["attention", "MLP", "vocabulary", "corruption"] + [
        "optimizer and metrics",
        "copies",
    ]


@pytest.mark.parametrize(
    "instruction, moved",
    [
        ("%r = u32[256,512,768]{2,1,0} rng-bit-generator(%key), algorithm=rng_default", 1),
        ("%r = bf16[1824,768]{1,0:T(8,128)(2,1)S(1)} reshape(%a)", 2),
        ("%r = bf16[1824,768]{1,0:T(8,128)(2,1)S(1)} bitcast(%a)", 0),
    ],
)
def test_instructions_without_cycles_take_their_memory_traffic(instruction, moved):
    line = f"  {instruction}, {named(LAYERS + '/self_attention/jit(_uniform)')}\n"
    found = estimated(PROGRAM.replace("  %scatter_fusion", line + "  %scatter_fusion"))
    before = estimated()
    expected = moved * size(instruction) / 819e9
    assert found.seconds - before.seconds == pytest.approx(expected)


def test_fused_reduce_scatter_takes_time_only_on_the_links():
    scatter = """%all-reduce-scatter.1 (input.1: f32[4096,1024]) -> f32[256,1024] {
  %input.1 = f32[4096,1024]{1,0} parameter(0)
  %all-reduce.9 = f32[4096,1024]{1,0} all-reduce(%input.1), channel_id=34, replica_groups={}, to_apply=%add
  ROOT %dynamic-slice.1 = f32[256,1024]{1,0} dynamic-slice(%all-reduce.9, %i, %zero)
}

"""
    line = (
        "  %fusion.9 = f32[256,1024]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1\n"
    )
    program = PROGRAM.replace("ENTRY", scatter + "ENTRY")
    found = estimated(program.replace("  %scatter_fusion", line + "  %scatter_fusion"))
    before = estimated()
    assert found.parts == before.parts
    a_scatter = 4 * 4096 * 1024 * 15 / 16 / 90e9
    assert found.exchanges.exposed - before.exchanges.exposed == pytest.approx(a_scatter)


def test_expert_kernels_count_only_the_share_of_a_chip():
    of_experts = PROGRAM.replace("attention", "experts")
    all_rows = estimated(of_experts)
    half = estimated(of_experts, 0.5)
    assert half.kernels == pytest.approx(all_rows.kernels / 2) and all_rows.kernels > 0
    saved = all_rows.parts["experts"].seconds - half.parts["experts"].seconds
    assert saved == pytest.approx(half.kernels)
    of_attention = estimated(assigned=0.5)
    assert of_attention.kernels == all_rows.kernels


def test_iterations_for_unbalanced_experts_are_not_counted():
    path = f"jit(train_step)/jvp()/experts/{UNBALANCED}/while"
    loop = f"body=%long, {named(path)}\n"
    program = PROGRAM.replace("body=%body\n", loop)
    assert program != PROGRAM
    counted = estimated(program.replace(f"/{UNBALANCED}/", "/"))
    found = estimated(program)
    assert counted.seconds - found.seconds == pytest.approx(24 * 3e6 / 1.5e9)
    exchanging = PROGRAM.replace("body=%back, ", f"body=%back, {named(path)}, ")
    assert traffic(PROGRAM).keys() - traffic(exchanging).keys() == {"all-reduce"}


def test_only_exchanges_without_overlap_are_exposed():
    found = estimated()
    gathered, reduced = 24 * 2 * 1024 * 1024, 24 * 2 * 1024 * 2816
    assert found.exchanges.bytes == gathered + reduced
    a_reduction = 2 * reduced * 15 / 16 / 90e9  # two links of 45 GB/s
    assert found.exchanges.exposed == pytest.approx(a_reduction)
    assert found.exchanges.seconds == pytest.approx(a_reduction + gathered * 15 / 16 / 90e9)
    computed = sum(part.seconds for part in found.parts.values())
    assert found.seconds == pytest.approx(computed + a_reduction)


def test_exchange_longer_than_its_overlap_is_partly_exposed():
    larger = PROGRAM.replace("bf16[1024,1024]{1,0:T(8,128)(2,1)} all-gather(%p.5)", "bf16[65536,1024]{1,0} all-gather(%p.5)")  # fmt: skip
    found = estimated(larger)
    a_turn = 2 * 65536 * 1024 * 15 / 16 / 90e9
    before = estimated()
    assert a_turn > 0.1e-3  # time of the computation between its start and end
    more = found.exchanges.exposed - before.exchanges.exposed
    assert more == pytest.approx(24 * (a_turn - 0.1e-3))


def test_exchange_across_iterations_overlaps_with_a_whole_iteration():
    start = next(x for x in PROGRAM.splitlines(True) if "calls=%start" in x)
    done = next(x for x in PROGRAM.splitlines(True) if "calls=%done" in x)
    larger = PROGRAM.replace("bf16[1024,1024]{1,0:T(8,128)(2,1)} all-gather(%p.5)", "bf16[65536,1024]{1,0} all-gather(%p.5)")  # fmt: skip
    crossing = larger.replace(start, "").replace(done, done + start)
    at_once = larger.replace(start, "").replace(done, start + done)
    a_turn = 2 * 65536 * 1024 * 15 / 16 / 90e9
    before = estimated()
    # computing takes 0.3 ms per iteration
    for program, computing in ((crossing, 0.3e-3), (at_once, 0.0)):
        found = estimated(program)
        more = found.exchanges.exposed - before.exchanges.exposed
        assert more == pytest.approx(24 * (a_turn - computing))


@pytest.mark.parametrize("size", [2**26, 2**28])
def test_exchange_overlaps_with_the_loop_between_its_start_and_end(size):
    start = f"  %all-gather-start.9 = (f32[{size // 16}]{{0}}, f32[{size}]{{0}}) all-gather-start(%p0), channel_id=9, replica_groups={{}}, dimensions={{0}}\n"  # fmt: skip
    done = f"  %all-gather-done.9 = f32[{size}]{{0}} all-gather-done(%all-gather-start.9)\n"
    loop = next(x for x in PROGRAM.splitlines(True) if "%while.1 =" in x)
    before = estimated()
    found = estimated(PROGRAM.replace(loop, start + loop + done))
    took, computing = 4 * size * 15 / 16 / 90e9, 24 * 0.3e-3  # time that the loop takes to compute
    assert found.exchanges.seconds - before.exchanges.seconds == pytest.approx(took)
    more = found.exchanges.exposed - before.exchanges.exposed
    assert more == pytest.approx(max(0.0, took - computing))


def test_concurrent_exchanges_share_the_links_in_turn():
    start = next(x for x in PROGRAM.splitlines(True) if "calls=%start" in x)
    other = start.replace("%fusion.1 ", "%fusion.9 ").replace("%start", "%other")
    computation = PROGRAM[PROGRAM.index("%start (") : PROGRAM.index("%done (")]
    second = computation.replace("%start", "%other").replace("channel_id=5", "channel_id=6")
    larger = second.replace("bf16[1024,1024]{1,0:T(8,128)(2,1)} all-gather(%p.5)", "bf16[65536,1024]{1,0} all-gather(%p.5)")  # fmt: skip
    together = PROGRAM.replace("%done (", larger + "%done (").replace(start, other + start)
    a_turn = 2 * 65536 * 1024 * 15 / 16 / 90e9
    small = 2 * 1024 * 1024 * 15 / 16 / 90e9
    before = estimated()
    found = estimated(together)
    more = found.exchanges.exposed - before.exchanges.exposed
    # The small exchange ends first in the program, after both started. The other one never ends.
    ended_elsewhere = max(0.0, a_turn - 0.3e-3)
    assert more == pytest.approx(24 * (a_turn + small - 0.1e-3 + ended_elsewhere))


def test_products_too_small_for_the_matrix_unit_are_named():
    found = estimated()
    (one,) = found.slow
    assert one.shapes == "bf16[4096,128] × bf16[128,2816]" and one.part == "MLP"
    assert one.seconds == pytest.approx(4.8e-3)
    assert one.peak == pytest.approx(2 * 4096 * 128 * 2816 / (300_000 * 197e12 / 1.5e9))
    assert "inner size of 128" in one.advice and "windowed einsum" in one.advice


@pytest.mark.parametrize(
    "was, now, advice",
    [
        ("bf16[128,2816]", "bf16[2048,2816]", "rows"),
        ("dim_labels=bf_io->bf\n}\n\n%start", "dim_labels=bf_io->bf, operand_precision={highest,highest}\n}\n\n%start", "6 passes"),
        ("%p.3 = bf16[4096,128]", "%p.3 = f32[4096,128]", "dtype='bfloat16'"),
    ],
)  # fmt: skip
def test_slow_products_are_named_with_advice(was, now, advice):
    text = PROGRAM.replace(was, now)
    if advice == "rows":  # 64 rows
        text = text.replace("bf16[4096,128]", "bf16[64,2048]").replace(
            "%convolution.2 = bf16[4096,2816]", "%convolution.2 = bf16[64,2816]"
        )
    found = estimated(text)
    assert text != PROGRAM
    assert advice in found.slow[0].advice


def test_kernel_without_a_cost_takes_its_memory_traffic():
    cost = '"flops":"19700000000","transcendentals":"33554432","bytes_accessed":"39092224"'
    without = PROGRAM.replace(f'"cost_estimate":{{{cost}', '"other":{')
    found = estimated(without)
    assert without != PROGRAM
    # q, k, v and outputs; and their log-sums
    arrays = 4 * 8 * 16 * 64 * 512 * 2 + 8 * 16 * 512 * 4 + 4
    assert found.kernels == pytest.approx(24 * arrays / 819e9)


def test_program_without_cycles_has_no_estimate():
    assert estimate(PROGRAM.replace("estimated_cycles", "cycles"), V5E, CHIPS) is None
    assert estimate(PROGRAM, Topology("NVIDIA H100", (8,)), [()] * 8) is None
    assert PartTime(1, 2, 3).seconds == 6


# --- products -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "left, right, product, sizes",
    [
        # x · w, and x · w transposed
        ("bf16[912,1024]", "bf16[1024,2816]", "bf16[912,2816]{1,0} convolution(%a, %b), dim_labels=bf_io->bf", (912, 1024, 2816)),
        ("bf16[912,1024]", "bf16[2816,1024]", "f32[912,2816]{1,0} convolution(%a, %b), dim_labels=bf_oi->bf", (912, 1024, 2816)),
        # rows of a batch as a spatial axis; a sum over them as the window
        ("bf16[8,114,2816]", "bf16[1024,2816,1]", "bf16[8,114,1024]{2,1,0} convolution(%a, %b), window={size=1}, dim_labels=0bf_oi0->0bf", (912, 2816, 1024)),
        ("bf16[8,512,1024]", "bf16[8,512,2816]", "bf16[1024,2816,1]{1,0,2} convolution(%a, %b), window={size=8}, dim_labels=0fb_0io->bf0", (1024, 4096, 2816)),
        # heads as a spatial axis, reversed: every second position of the window is padding
        ("bf16[4096,1024,1]", "bf16[16,64,4096]", "bf16[1024,16,64]{2,0,1} convolution(%a, %b), window={size=16 pad=15_15 rhs_reversal=1}, dim_labels=fb0_0oi->b0f", (1024 * 16, 4096, 64)),
        ("bf16[8,512,1024,1]", "bf16[16,64,1024,1]", "bf16[8,512,16,64]{3,2,1,0} convolution(%a, %b), window={size=1x16 pad=0_0x15_15 rhs_reversal=0x1}, dim_labels=0bf1_1oi0->0b1f", (8 * 512 * 16, 1024, 64)),
        # on GPUs
        ("f32[4,64,32]", "f32[4,16,32]", "f32[4,64,16]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={2}", (4 * 64, 32, 16)),
    ],
)  # fmt: skip
def test_products_are_recognized_in_convolutions(left, right, product, sizes):
    lines = [
        f"  %a = {left}{{1,0:T(8,128)(2,1)}} parameter(0)",
        f"  %b = {right}{{1,0:T(8,128)(2,1)}} parameter(1)",
        f"  ROOT %c = {product}",
    ]
    (found,) = products_of([Instruction(line) for line in lines])
    assert found.flops == 2 * math.prod(sizes)
    assert (found.rows, found.inner) == sizes[:2] or "dot" in product
    assert found.operands == f"{left} × {right}" and found.passes == 1


# --- links ----------------------------------------------------------------------------------------

V5P, CUBE = Topology("TPU v5p", (4, 4, 4)), [
    (x, y, z) for x in range(4) for y in range(4) for z in range(4)
]  # fmt: skip
MB = 10**6


@pytest.mark.parametrize(
    "kind, groups, topology, chips, seconds",
    [
        # 45 GB/s along each side of a v5e; 90 GB/s, for both directions, in a v5p's cube
        ("all-gather", "{{0,1,2,3}}", V5E, CHIPS, 0.75 * MB / 45e9),
        ("all-gather", "[4,4]<=[4,4]T(1,0)", V5E, CHIPS, 0.75 * MB / 45e9),
        ("reduce-scatter", "[1,16]<=[16]", V5E, CHIPS, 15 / 16 * MB / 90e9),
        ("all-reduce", "{}", V5E, CHIPS, 2 * 15 / 16 * MB / 90e9),
        ("all-gather", "mesh['a'=4,'b'=4,'c'=4] {'b','c'}", V5P, CUBE, 15 / 16 * MB / 360e9),
        ("all-reduce", "{}", V5P, CUBE, 2 * 63 / 64 * MB / 540e9),
        ("all-to-all", "{{0,1,2,3}}", V5P, CUBE, 4 * MB / (8 * 90e9)),
        ("collective-permute", "{{0,1},{1,0}}", V5E, CHIPS, MB / 45e9),
        # with the devices in another order, and therefore half of the slice: two sides
        ("all-gather", "mesh['a'=8,'b'=2], device_ids=([2,8]T(1,0)) {'a'}", V5E, CHIPS, 7 / 8 * MB / 90e9),
        # with two of four sides, half a side is slower than a ring
        ("all-to-all", "{{" + ",".join(str(32 * x + z) for x in range(4) for z in range(4)) + "}}", Topology("TPU v5p", (4, 4, 8)), [(x, y, z) for x in range(4) for y in range(4) for z in range(8)], 4 * MB / (4 * 90e9)),
        # half of a side is not a ring
        ("all-gather", "{{0,1}}", V5P, CUBE, 0.5 * MB / 90e9),
        # two slices of 2 × 2
        ("all-reduce", "{{0,4},{1,5},{2,6},{3,7}}", Topology("TPU v5e", (2, 2), 2), [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)] * 2, None),
        # the two devices of a chip share the chip's links
        ("all-gather", "{}", Topology("TPU v7x", (2, 2, 1)), [(x, y, 0) for x in range(2) for y in range(2) for _ in range(2)], 7 / 8 * MB / 100e9),
    ],
)  # fmt: skip
def test_exchanges_take_the_links_that_their_group_spans(kind, groups, topology, chips, seconds):
    name = "source_target_pairs" if kind == "collective-permute" else "replica_groups"
    line = f"  %x = f32[8]{{0}} {kind}(%y), channel_id=1, {name}={groups}, dimensions={{0}}"
    found = exchange_seconds(Collective(kind, MB, False, line), topology, chips)
    assert found == (None if seconds is None else pytest.approx(seconds))


# --- calibration ----------------------------------------------------------------------------------

CALIBRATED = """
import sys
from pretrax.training.devices import topologies
topologies.use_cpu()
import jax, jax.numpy as jnp
from jax.sharding import SingleDeviceSharding
from pretrax.training.devices.cycles import estimate
from pretrax.training.devices.accelerators import ACCELERATORS
topology = topologies.read_topology(sys.argv[1])
devices = topologies.devices_of(topology)
place = SingleDeviceSharding(devices[0])
for rows, inner, columns in ((4096, 4096, 4096), (8192, 128, 2816)):
    a = jax.ShapeDtypeStruct((rows, inner), jnp.bfloat16, sharding=place)
    b = jax.ShapeDtypeStruct((inner, columns), jnp.bfloat16, sharding=place)
    text = jax.jit(jnp.matmul).lower(a, b).compile().as_text()
    seconds = estimate(text, topology, [devices[0].coords]).seconds
    print(2 * rows * inner * columns / seconds / ACCELERATORS[topology.kind].flops)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs pretrax[compile]")
@pytest.mark.parametrize("slice", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2", "v7x:2x2x1"])
def test_large_product_reaches_the_peak_and_narrow_product_does_not(slice):
    ended = subprocess.run(
        [sys.executable, "-c", CALIBRATED, slice], capture_output=True, text=True, check=True
    )
    large, narrow = map(float, ended.stdout.split())
    assert 0.8 < large <= 1.0 and narrow < 0.25


def test_every_tpu_kind_has_links_and_whole_matrix_units():
    assert TPUS.keys() == LINKS.keys()
    for kind, tpu in TPUS.items():
        units = ACCELERATORS[kind].flops / (2 * tpu.clock * tpu.width**2)
        assert units == pytest.approx(round(units), rel=0.01), kind
