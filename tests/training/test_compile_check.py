"""The compile check, with the CPU's compiler and devices instead of a TPU slice."""

import dataclasses
import functools
import importlib.util
import os
import re
import warnings
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from pretrax.cli import train
from pretrax.objectives import causal_lm, causal_masking, mixture, prefix_lm
from pretrax.objectives.noising import from_noise, untouched
from pretrax.training import compile_check, planning
from pretrax.training.compile_check import GIB, Check, Memory
from pretrax.training.devices import topologies
from pretrax.training.devices.accelerators import ACCELERATORS, kind_of_device, short_names
from pretrax.training.devices.cycles import Exchanges, PartTime, SlowProducts, StepTime
from pretrax.training.devices.mesh import make_mesh
from pretrax.training.devices.topologies import Topology, read_topology
from pretrax.training.planning import plan_evaluation
from pretrax.training.reporting.compile_report import print_check
from pretrax.training.reporting.console import make_console
from pretrax.training.run_checks import check_attention
from pretrax.training.run_configuration import read_run
from pretrax.training.step_program import compile_lowered
from pretrax.training.throughput import causal_flops, step_flops
from tests.refusals import exits, refuses, warns
from tests.training import tiny


class Chip:
    """A TPU chip with the attributes that `mesh_utils` reads."""

    platform, core_on_chip = "tpu", 0

    def __init__(self, id: int, coords: tuple[int, ...], slice_index: int = 0):
        self.id, self.coords, self.slice_index, self.process_index = (
            id,
            coords,
            slice_index,
            id // 4,
        )
        self.device_kind = "TPU v5"


def chips(x: int, y: int, z: int, slices: int = 1) -> list[Chip]:
    places = [(a, b, c) for c in range(z) for b in range(y) for a in range(x)]
    several = [(place, number) for number in range(slices) for place in places]
    return [Chip(id, place, number) for id, (place, number) in enumerate(several)]


@pytest.mark.parametrize(
    "text, topology",
    [
        ("v5p:4x4x8", Topology("TPU v5p", (4, 4, 8))),
        ("2*v5e:16x16", Topology("TPU v5e", (16, 16), 2)),
        ("V6E:4x4", Topology("TPU v6e", (4, 4))),
        ("v7x:2x2x1", Topology("TPU v7x", (2, 2, 1))),
        ("h100:8", Topology("NVIDIA H100", (8,))),
        ("4*H200:8", Topology("NVIDIA H200", (8,), 4)),
    ],
)
def test_topologies_are_read_and_written(text, topology):
    assert read_topology(text) == topology
    assert read_topology(str(topology)) == topology


@pytest.mark.parametrize(
    "text",
    [
        "v5p",
        "v5p-128",
        "v5p:8",
        "h100:2x4",
        "h100",
        "h100:0",
        "v9:2x2",
        "v5p:4x",
        "v5p:4x4",
        "v5e:2x2x2",
        "",
        "0*v5e:2x2",
        "v5e:0x4",
    ],
)
def test_invalid_topologies_are_rejected(text):
    with refuses(ValueError, repr(text)):
        read_topology(text)


@pytest.mark.parametrize(
    "text, near",
    [
        ("v5e:16x32", ["v5e:16x16", "v5e:8x16"]),
        ("v6e:4x2", ["v6e:2x4"]),
        ("v5p:1x1x1", ["v5p:2x2x1", "v5p:2x2x2"]),
        ("v5p:8x4x4", ["v5p:4x4x8"]),
        ("v5p:16x16x64", ["v5p:8x12x64"]),
        ("2*v4:6x6x6", ["v4:4x4x12", "v4:4x8x8"]),
        ("v3:1x2", ["v3:2x2", "v3:4x4"]),
    ],
)
def test_nonexistent_slice_is_rejected_with_the_nearest(text, near):
    with refuses(ValueError, repr(text), *near):
        read_topology(text)


def test_gpu_counts_must_fill_hosts():
    assert read_topology("2*a100:16").chips == 32
    with refuses(ValueError, "64", "128", "16", "8"):
        read_topology("2*h100:64")
    with refuses(ValueError, "20", "24", "3", "8"):
        read_topology("h100:20")


def test_existing_slices_are_accepted():
    sizes = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x4x12 4x8x8 8x8x8 8x8x16 8x16x16 16x16x16"
    for kind, shapes in (("v4", sizes), ("v5p", f"{sizes} 12x12x24 16x16x24"), ("v5e", "1x1 2x4")):
        for shape in shapes.split():
            assert str(read_topology(f"{kind}:{shape}")) == f"{kind}:{shape}"


def test_missing_tpu_compiler_names_its_extra(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with exits(capsys, "'.[compile]'"):
        train.main(["--gin_file=runs/decoder.gin", "--compile=v5e:2x4"])


def test_missing_gpu_compiler_names_its_extra(monkeypatch, capsys):
    monkeypatch.setattr(topologies, "CUDA_PLUGINS", ("no_plugins.xla_cuda12",))
    with exits(capsys, "'.[compile-gpu]'"):
        train.main(["--gin_file=runs/decoder.gin", "--compile=h100:8"])


def test_gpus_are_described_to_xla(monkeypatch):
    """The CUDA plugin of jax 0.10.2 accepts the description, and compiled for all four kinds."""
    asked = {}

    class Found:
        devices = ()

    monkeypatch.setattr(topologies, "is_installed", lambda module: True)
    monkeypatch.setattr(
        topologies.topologies, "get_topology_desc", lambda **given: asked.update(given) or Found
    )
    for kind in topologies.GPUS:
        topologies.devices_of(Topology(kind, (8,), 2))
        assert asked["platform"] == "cuda" and asked["topology"] == "1x2x8"
        assert f"device_memory_size: {ACCELERATORS[kind].gib * GIB}" in asked["target_config"]
    kinds = [kind for kind in ACCELERATORS if kind.startswith("NVIDIA")]
    assert list(topologies.GPUS) == kinds
    assert all(
        kind_of_device(f"NVIDIA {gpu.name}") == kind for kind, gpu in topologies.GPUS.items()
    )


def test_libtpu_gets_nondefault_settings(monkeypatch):
    asked = {}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(
        topologies.topologies,
        "get_topology_desc",
        lambda **given: asked.update(given) or SimpleNamespace(devices=()),
    )
    topologies.devices_of(Topology("TPU v4", (2, 2, 1)))
    assert asked.pop("chip_config_name") == "megacore"  # the two cores of a v4 are a single device
    topologies.devices_of(Topology("TPU v5e", (1, 1)))
    assert asked.pop("chips_per_host_bounds") == (1, 1, 1)
    topologies.devices_of(Topology("TPU v7x", (4, 4, 4)))
    assert asked.pop("topology_name") == "tpu7x:4x4x4"  # libtpu's name of it
    assert asked == {"platform": "tpu"}


@pytest.mark.parametrize(
    "arguments, named",
    [(["--compile="], "--compile"), (["--compile=v5e:2x2", "--profile=2:3"], "--profile")],
)
def test_compile_check_with_conflicting_arguments_is_rejected(
    arguments, named, monkeypatch, capsys
):
    monkeypatch.setattr(train, "train", lambda *_, **__: None)
    monkeypatch.setattr(train, "enable_compilation_cache", lambda: None)
    monkeypatch.setattr(train, "check", lambda *_: None)
    with exits(capsys, named):
        train.main(["--gin_file=runs/decoder.gin", *arguments])


def test_interrupted_compile_check_suggests_no_resumption(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "check", interrupt)
    with pytest.raises(SystemExit) as ended:
        train.main(["--gin_file=runs/decoder.gin", "--compile=v5e:2x2"])
    assert (ended.value.code, capsys.readouterr().err) == (130, "\nInterrupted.\n")


def test_mesh_of_local_devices_is_rejected(monkeypatch):
    monkeypatch.setattr(compile_check, "devices_of", lambda topology: jax.devices())
    run = tiny.run_of(tiny.decoder(), prefix_lm(tiny.IDS), {"decoder": 32})
    run = dataclasses.replace(run, mesh=lambda: make_mesh())
    with refuses(ValueError, "<lambda>", "`devices`"):
        compile_check.check(run, Topology("TPU v5e", (2, 4)))


def test_run_settings_are_checked_before_compiling(monkeypatch):
    monkeypatch.setattr(compile_check, "devices_of", lambda topology: jax.devices())
    run = tiny.run_of(tiny.decoder(), prefix_lm(tiny.IDS), {"decoder": 32})
    run = dataclasses.replace(run, mesh=make_mesh, vocabulary_rows="all")
    with refuses(ValueError, "vocabulary_rows", "1", "all"):
        compile_check.check(run, Topology("TPU v5e", (2, 4)))


def test_mesh_axis_may_be_longer_than_slice_axes():
    mesh = make_mesh(data=1, fsdp=64, tensor=2, devices=chips(4, 4, 8))
    assert dict(mesh.shape) == {"data": 1, "fsdp": 64, "expert": 1, "context": 1, "tensor": 2}
    for one, other in mesh.devices.reshape(-1, 2):  # devices along tensor are neighbors
        apart = [abs(a - b) for a, b in zip(one.coords, other.coords)]
        assert sorted(apart) in ([0, 0, 1], [0, 0, 3], [0, 0, 7])


def test_slices_are_spread_over_the_data_axis():
    mesh = make_mesh(data=4, fsdp=4, devices=chips(2, 2, 2, slices=2))
    assert [{chip.slice_index for chip in group.flat} for group in mesh.devices] == [
        {0},
        {0},
        {1},
        {1},
    ]
    with refuses(ValueError, 2, "mesh.make_mesh.data", "fsdp"):
        make_mesh(data=1, fsdp=16, devices=chips(2, 2, 2, slices=2))


def test_gpu_hosts_are_not_treated_as_slices():
    """JAX gives GPUs a `slice_index`, the index of their host.

    The named runs for 16 and 64 devices, with fsdp=16, also support such hosts.
    """
    gpus = chips(8, 1, 1, slices=2)
    for gpu in gpus:
        gpu.platform, gpu.device_kind = "gpu", "NVIDIA H100 80GB HBM3"
    mesh = make_mesh(data=1, fsdp=16, devices=gpus[::-1])
    assert [gpu.id for gpu in mesh.devices.flat] == list(range(16))  # one host after another
    mesh = make_mesh(data=2, fsdp=8, devices=gpus[::-1])
    assert [{gpu.slice_index for gpu in group.flat} for group in mesh.devices] == [{0}, {1}]


RUN = [
    "--gin_file=runs/decoder.gin",
    "--gin.models.decoder.num_layers=2",
    "--gin.models.decoder.emb_dim=128",
    "--gin.training.Run.vocabulary_rows=1024",
    "--gin.mesh.make_mesh.fsdp=4",
    "--gin.mesh.make_mesh.tensor=2",
    "--gin.training.Run.data_shards=4",
]


@pytest.mark.slow
def test_compile_check_reports_memory_and_writes_nothing(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(compile_check, "devices_of", lambda topology: jax.devices())
    with pytest.raises(SystemExit) as ended:
        train.main([*RUN, "--run_dir=gs://bucket/mine", "--compile=v5e:2x4"])
    output = capsys.readouterr().out
    assert not ended.value.code and "It fits." in output
    assert (
        "compiled for v5e:2x4" in output
        and "'fsdp': 4, 'expert': 1, 'context': 1, 'tensor': 2" in output
    )
    assert "all-gather" in output and "of 16" in output
    assert re.search("attention +plain", output)
    assert not list(tmp_path.iterdir())  # no corpus, no run, and no local folder for the bucket


@pytest.mark.slow
def test_memory_includes_padding_of_tiles(monkeypatch):
    """A TPU pads the last axis of an array, such as the 32 numbers of a head, to 128."""
    monkeypatch.setattr(compile_check, "devices_of", lambda topology: jax.devices())
    sizes = SimpleNamespace(
        argument_size_in_bytes=10 * GIB,
        temp_size_in_bytes=3 * GIB,
        output_size_in_bytes=10 * GIB,
        alias_size_in_bytes=9 * GIB,
        generated_code_size_in_bytes=2 * GIB,
    )
    monkeypatch.setattr(jax.stages.Compiled, "memory_analysis", lambda compiled: sizes)
    run = tiny.run_of(tiny.decoder(), prefix_lm(tiny.IDS), {"decoder": 32})
    memory = compile_check.check(
        dataclasses.replace(run, mesh=make_mesh), Topology("TPU v5e", (2, 4))
    ).memory
    assert memory.parameters + memory.optimizer + memory.padding == 10 * GIB
    assert memory.total == (10 + 3 + 1 + 2) * GIB


def test_fused_attention_is_rejected_on_cpus(monkeypatch, capsys):
    monkeypatch.setattr(compile_check, "devices_of", lambda topology: jax.devices())
    with exits(capsys, "attention='fused'", "cpu", "TPU", "GPU"):
        train.main([*RUN, "--gin.models.decoder.attention='fused'", "--compile=v5e:2x4"])


def test_fused_attention_run_is_evaluated_anywhere_but_trained_only_by_kernels():
    model = tiny.decoder(attention="fused", head_dim=512)
    run = tiny.run_of(model, prefix_lm(tiny.IDS), {"decoder": 32})
    assert plan_evaluation(run).recipe.model is model
    with refuses(ValueError, "fused"):
        tiny.planned(run)
    with refuses(ValueError, "512", "2048", "1024"):
        tiny.planned(dataclasses.replace(run, mesh=lambda: make_mesh(devices=chips(2, 1, 1))))


def test_mesh_larger_than_the_slice_is_rejected(monkeypatch, capsys):
    monkeypatch.setattr(compile_check, "devices_of", lambda topology: jax.devices()[:4])
    with exits(capsys, 4):
        train.main([*RUN, "--compile=v5e:2x2"])


@pytest.mark.parametrize(
    "memory, compiler_error, advice",
    [
        (Memory(10 * GIB, 5 * GIB, 2 * GIB, 0), "", "fsdp"),
        (Memory(1 * GIB, 1 * GIB, 20 * GIB, 0), "", "microbatches"),
        (Memory(1 * GIB, 1 * GIB, 0, 0), "Used 40.1G of 15.75G hbm. Exceeded hbm", "microbatches"),
    ],
)
def test_step_that_does_not_fit_gets_advice(memory, compiler_error, advice, capsys):
    check = Check(
        topology=Topology("TPU v3", (2, 2)),
        mesh={"data": 8},
        parameters=10**9,
        active=2 * 10**8,
        flops=10**12,
        text_tokens=4096,
        memory=memory,
        traffic={},
        seconds=1.0,
        compiler_error=compiler_error,
    )
    assert not print_check(make_console(), check)
    output = capsys.readouterr().out
    assert "8 × TPU v3" in output and "0.125 per chip" in output  # its cores are the devices in JAX
    assert "1,000,000,000 (200,000,000 active)" in output
    assert "It does not fit." in output and advice in output and compiler_error in output


def estimated(**others) -> Check:
    parts = {"attention": PartTime(0.02, 0.05), "copies": PartTime(0, 0.01, 0.03)}
    exchanges = Exchanges(3 * GIB, 0.06, exposed=0.02, unknown=GIB)
    slow = [SlowProducts("bf16[4096,128] × bf16[128,2816]", "MLP", 0.03, 0.14, "an inner size")]
    return Check(
        topology=Topology("TPU v5e", (4, 4)),
        mesh={"data": 1, "fsdp": 16},
        parameters=10**9,
        active=10**9,
        flops=round(0.4 * 0.13 * 16 * 197e12),
        text_tokens=4096,
        memory=Memory(GIB, GIB, GIB, 0),
        traffic={},
        seconds=1.0,
        estimate=StepTime(parts, 0.004, exchanges, slow),
        **others,
    )


def test_estimate_is_printed_by_parts_with_the_step_last(capsys):
    options = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1000000}
    assert print_check(make_console(), estimated(options=options))
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == "estimated step: 130 ms, 40% of peak"
    assert "windowed_einsum_mib = 1000000" in output and "total" in output
    assert re.search(r"attention +20\.0 +50\.0 +70\.0 +54 *\n", output)
    assert re.search(r"copies +10\.0 +30\.0 +40\.0 +31 *\n", output)
    assert re.search(r"waited for +20\.0 +15 *\n", output)
    assert "3.00 GiB are exchanged in 60.0 ms, 40.0 ms of them overlapped" in output
    assert "1.00 GiB go between slices" in output and "4.0 ms are for kernels" in output
    assert re.search(r"MLP bf16\[4096,128\] × bf16\[128,2816\] +30\.0 +14 +an inner size", output)


def test_causal_estimate_also_states_the_mfu_of_maxtext(capsys):
    check = estimated()
    check = check._replace(causal_flops=check.flops * 3 // 4)
    assert print_check(make_console(), check)
    *_, maxtext_line, last_line = capsys.readouterr().out.splitlines()
    assert maxtext_line.endswith("would say 30% of peak.") and last_line.endswith("40% of peak")


@pytest.mark.parametrize("objective, share", [("causal_lm", 0.889), ("prefix_lm", None)])
def test_maxtext_flops_count_half_of_causal_attention(objective, share):
    """This is 11% less for LLaMA 3.1 8B at 8,192 tokens.

    Its 8.03B parameters, minus an embedding of 0.53B, take 2 FLOPs each. All query-key pairs of 32
    layers take 4 · 4,096 · 8,192 FLOPs.
    """
    slots = "training.Run.sequence_lengths = {'decoder': 8192}"
    rows = "training.Run.vocabulary_rows = 128256"
    files = ["runs/decoder.gin", "models/llama3_8b.gin", f"objectives/{objective}.gin"]
    run = read_run(files, [slots, rows])
    plan = planning.plan_run(run, compile_check._corpus_of(run))
    counted = causal_flops(plan)
    whole = step_flops(plan)
    assert (counted and counted / whole) == (share and pytest.approx(share, abs=5e-4))
    attention = 32 * 4 * 4096 * 8192
    weights = 2 * (8_030_261_248 - 128_256 * 4096)
    assert share is None or attention / 2 / (weights + attention) == pytest.approx(
        1 - share, abs=1e-3
    )


def test_maxtext_flops_are_unknown_for_windowed_attention():
    decoder = functools.partial(tiny.decoder, positions="rotary")
    for window, is_known in ((None, True), (7, False)):
        plan = tiny.plan(decoder(window=window), causal_lm(tiny.IDS), {"decoder": 32})
        counted = causal_flops(plan)
        assert (counted is not None) == is_known


def test_mixture_is_causal_only_if_all_members_are():
    """Restored texts have no prompt form, and a decoder reads their whole input both ways."""
    restored = functools.partial(from_noise, inputs=untouched(), prompt_mode=None)
    causal, rows = {"one": (causal_lm, 1), "two": (causal_masking, 1)}, {"decoder": 32}
    for members, is_known in ((causal, True), (causal | {"three": (restored, 1)}, False)):
        objective = mixture(tiny.IDS, members)
        plan = tiny.plan(tiny.decoder(), objective, rows, mark_document_ends=True)
        counted = causal_flops(plan)
        assert (counted is not None) == is_known


def test_step_that_does_not_fit_has_no_time_estimate(capsys):
    check = estimated()._replace(memory=Memory(GIB, GIB, 15 * GIB, 0))
    assert not print_check(make_console(), check)
    assert "estimated step" not in capsys.readouterr().out


class Lowered:
    """A lowered step that records its compiler options."""

    def compile(self, compiler_options):
        self.options = compiler_options
        if "xla_unknown" in (compiler_options or {}):
            raise jax.errors.JaxRuntimeError("No such compile option: 'xla_unknown'")
        return self


def test_tpu_compiler_options_are_passed_only_on_tpus():
    run = tiny.run_of(tiny.decoder(), prefix_lm(tiny.IDS), {"decoder": 32})
    run = dataclasses.replace(run, tpu_compiler_options={"xla_some": 1})
    plan, lowered = tiny.planned(run), Lowered()
    assert compile_lowered(plan, lowered).options is None
    on_tpus = plan._replace(mesh=make_mesh(devices=chips(2, 1, 1)))
    assert compile_lowered(on_tpus, lowered).options == {"xla_some": "1"}

    def with_options(options):
        other = dataclasses.replace(run, tpu_compiler_options=options)
        return on_tpus._replace(recipe=plan.recipe._replace(run=other))

    assert compile_lowered(with_options(None), lowered).options is None
    with refuses(ValueError, "tpu_compiler_options"):
        compile_lowered(with_options({"xla_unknown": True}), lowered)


def test_device_kinds_are_found_by_their_aliases():
    assert {kind_of_device(name) for one in ACCELERATORS.values() for name in one.also} == {
        "TPU v5e",
        "TPU v5p",
        "TPU v6e",
        "TPU v7x",
    }
    assert "v5p" in short_names() and kind_of_device("cpu") is None


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs pretrax[compile]")
def test_v5p_4x4x8_has_128_devices():
    assert len(topologies.devices_of(read_topology("v5p:4x4x8"))) == 128


@pytest.mark.parametrize(
    "axes, values, lower",
    [
        (dict(tensor=8), ["tensor=8", "num_heads=4", "num_kv_heads=2"], ["tensor"]),
        (dict(data=2, tensor=4), ["tensor=4", "num_kv_heads=2"], []),
        (dict(fsdp=8), ["fsdp=8", "emb_dim=12"], ["fsdp"]),
        (dict(expert=8), ["expert=8", "emb_dim=12"], ["expert"]),
        (dict(fsdp=4, expert=2), ["fsdp=4 × expert=2", "emb_dim=12", "1/4"], ["expert"]),
    ],
)
def test_mesh_that_does_not_divide_a_model_gives_a_warning(axes, values, lower):
    model = tiny.decoder(emb_dim=12, num_heads=4, num_kv_heads=2)
    plan = functools.partial(tiny.plan, model, prefix_lm(tiny.IDS), {"decoder": 24})
    with warns(UserWarning, *values) as output:
        plan(mesh=make_mesh(**{"data": 1, **axes}))
    (warning,) = output
    assert re.findall(r"--gin\.mesh\.make_mesh\.(\w+)", str(warning.message)) == lower
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan(mesh=make_mesh(data=1, fsdp=4, tensor=2))


@pytest.mark.parametrize(
    ["settings", "slots", "multiple"],
    [
        ({}, 22, 4),
        ({"attention": "fused"}, 1022, 4),
        ({"attention": "fused", "positions": "relative"}, 768, 512),
    ],
)
def test_slots_not_divisible_by_the_mesh_are_rejected(settings, slots, multiple, monkeypatch):
    monkeypatch.setattr(planning, "check_attention", lambda model, mesh: None)
    mesh, model = make_mesh(data=1, fsdp=2, context=4), tiny.decoder(**settings)
    plan = functools.partial(tiny.plan, model, causal_lm(tiny.IDS), mesh=mesh)
    with refuses(ValueError, slots, "decoder", 4, multiple):
        plan({"decoder": slots})
    plan({"decoder": 1024})


@pytest.mark.parametrize("kind", ["TPU v2", "TPU v3"])
def test_fused_attention_is_rejected_on_tpus_without_kernels(kind):
    old = SimpleNamespace(platform="tpu", device_kind=kind)
    mesh = SimpleNamespace(devices=np.array([old]))
    model = tiny.decoder(attention="fused")
    with refuses(ValueError, "attention", kind, "TPU v4"):
        check_attention(model, mesh)
    old.device_kind = "TPU v4"
    check_attention(model, mesh)
