"""Every test runs on eight fake CPU devices, and no array is broadcast by accident.

Nothing is compiled twice: the processes of a session, and the programs that tests start, keep what
they compile in one folder.
"""

import atexit
import gc
import importlib.util
import os
import pathlib
import re
import secrets
import shutil
import sys
import tempfile
from importlib.metadata import version

os.environ["JAX_PLATFORMS"] = "cpu"
# The programs are small and many. XLA's emitters of fusions take half of what it takes to compile
# them, and dividing each among threads a third of the rest.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8"
    + " --xla_cpu_parallel_codegen_split_count=1"
    + (" --xla_cpu_use_fusion_emitters=false" if version("jax") < "0.12" else "")  # gone there
).strip()
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # the processes of pytest-xdist find it there
    compiled = tempfile.mkdtemp(prefix="compiled-")
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = compiled
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# Of tests/storm, drawn once, as the processes of pytest-xdist must agree on it.
os.environ.setdefault("STORM_SEED", str(secrets.randbelow(10**6)))

pytest_plugins = ["tests.vocabularies"]

import jax  # noqa: E402  (the flags above are read when jax is imported)
import pytest  # noqa: E402

from pretrax.settings.extras import EXTRAS  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_disable_most_optimizations", True)


# Of the extras: now, since a test may make believe that one is absent.
ABSENT = {name for name in EXTRAS if importlib.util.find_spec(name) is None}
# What Python and pretrax say of one.
NEEDS = re.compile(r"No module named '([\w.]+)'|takes (\w+), not installed here")

# Files that take longest. They come first, else one process would end with one of them, alone.
LONGEST = {
    *("test_docs", "test_benchmarks", "test_gin_runs", "test_step", "test_compare", "test_resume"),
    *("test_two_processes", "test_speculation", "test_evaluation", "test_decoding", "test_wheel"),
}


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.stem not in LONGEST)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return _skipped_without_an_extra(report, collector.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    return _skipped_without_an_extra(report, item.path)


def _skipped_without_an_extra(report, path):
    """A failure for a package that an extra brings, and that is not installed, is a skip: so the
    tests run without SeqIO, as on a Python for which TensorFlow has no wheel."""
    said = NEEDS.search(report.longreprtext + report.capstderr) if report.failed else None
    name = said and (said[1] or said[2]).partition(".")[0]
    if name in ABSENT:
        report.outcome, report.longrepr = "skipped", (str(path), 0, f"Skipped: needs {name}")
    return report


def pytest_collection_finish():
    """What is imported by now stays: the garbage collector need not look through it again, and
    what tracing a program makes is looked through less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True, scope="module")
def programs_of_few_files():
    """Lets go of compiled programs: Linux lets a process map 65,530 pieces of memory
    (vm.max_map_count), each program takes some, and where none are left LLVM ends in a segmentation
    fault."""
    yield
    maps = pathlib.Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()


@pytest.fixture(autouse=True, scope="module")
def data_sets_of_one_file():
    """Lets go of where SeqIO looks for data sets, which `data_dir` tells it for a whole process."""
    yield
    if seqio := sys.modules.get("seqio"):
        seqio.set_tfds_data_dir_override(None)
