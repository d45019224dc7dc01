"""Every test runs on eight fake CPU devices, and no array is broadcast by accident.

The processes of a session, the programs that tests start, and later sessions share compiled
programs, so that nothing is compiled twice. With `--changed`, only tests that a change reaches run.
"""

import ctypes
import gc
import importlib.util
import os
import pathlib
import platform
import re
import secrets
import sys
from importlib.metadata import version

os.environ["JAX_PLATFORMS"] = "cpu"
# There are many small programs. XLA's fusion emitters take half of the compilation time, and
# dividing each program among threads takes a third of the rest.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8"
    + " --xla_cpu_parallel_codegen_split_count=1"
    + (" --xla_cpu_use_fusion_emitters=false" if version("jax") < "0.11" else "")  # removed in 0.11
).strip()
# Each host has its own folder, since compiled programs may not run on another processor.
CACHES = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
COMPILED = CACHES / "pretrax" / "compiled_by_tests" / (platform.node() or "here")
COMPILED_BYTES = 1 << 30  # All tests together, including slow ones, compile about 200 MB.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILED))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# The seed of tests/storm is drawn only once, since the processes of pytest-xdist must agree on it.
os.environ.setdefault("STORM_SEED", str(secrets.randbelow(10**6)))

pytest_plugins = ["tests.vocabularies"]

import jax  # noqa: E402  (the flags above are read when jax is imported)
import pytest  # noqa: E402

from pretrax.settings.extras import EXTRAS  # noqa: E402
from pretrax.training.devices.compilation_cache import remove_least_recently_used  # noqa: E402
from tests import import_graph  # noqa: E402
from tests.shares import share_of  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_disable_most_optimizations", True)


# The extras are read now, since tests may simulate that a package is missing. tests/parity needs
# torch and transformers, which pretrax itself never imports.
ABSENT = {
    name for name in (*EXTRAS, "torch", "transformers") if importlib.util.find_spec(name) is None
}
# How Python and pretrax report a missing package.
NEEDS = re.compile(r"No module named '([\w.]+)'|needs (\w+), which is not installed")

# The slowest files. They come first. Otherwise one process would run one of them alone at the end.
LONGEST = {
    *("test_docs", "test_benchmarks", "test_gin_runs", "test_step", "test_compare", "test_resume"),
    *("test_two_processes", "test_speculation", "test_evaluation", "test_decoding", "test_wheel"),
}


# The test files of --changed, or None for all.
REACHED = pytest.StashKey[set[pathlib.Path] | None]()


def pytest_addoption(parser):
    parser.addoption(
        "--changed",
        metavar="COMMIT",
        nargs="?",
        const="HEAD",
        help="run only the test files that the files changed since a commit reach, by what imports "
        "what and which files a test names; the last commit if none is given",
    )
    parser.addoption(
        "--share",
        metavar="K/N",
        help="run only the tests of every N-th test file, beginning with the K-th (1 to N)",
    )


def pytest_configure(config):
    if hasattr(config, "workerinput"):  # The process that starts the workers has read the graph.
        reached = config.workerinput["reached"]
        config.stash[REACHED] = None if reached is None else set(map(pathlib.Path, reached))
        return
    if COMPILED.is_dir():
        remove_least_recently_used(COMPILED_BYTES, COMPILED)
    revision = config.getoption("changed")
    config.stash[REACHED] = None
    if revision is not None:
        try:
            changed = import_graph.changed_files(revision)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
        config.stash[REACHED] = import_graph.tests_reached(changed)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    reached = node.config.stash[REACHED]
    node.workerinput["reached"] = None if reached is None else [str(file) for file in reached]


def pytest_report_header(config):
    reached = config.stash[REACHED]
    if config.getoption("changed") is not None:
        return f"changed: {'every test' if reached is None else f'{len(reached)} test files'}"
    return None


def pytest_ignore_collect(collection_path, config):
    reached = config.stash[REACHED]
    if reached is None or collection_path.is_dir() or collection_path.suffix != ".py":
        return None
    return True if collection_path not in reached else None


def pytest_itemcollected(item):
    """Marks all cases of a sampled test as slow, except the first one."""
    if item.get_closest_marker("sampled") and any(item.callspec.indices.values()):
        item.add_marker("slow")


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: item.path.stem not in LONGEST)
    if share := config.getoption("share"):
        try:
            files = share_of(sorted({item.path for item in items}), share)
        except ValueError as error:
            raise pytest.UsageError(f"--share: {error}") from error
        config.hook.pytest_deselected(items=[item for item in items if item.path not in files])
        items[:] = [item for item in items if item.path in files]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return _skipped_without_an_extra(report, collector.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    return _skipped_without_an_extra(report, item.path)


def _skipped_without_an_extra(report, path):
    """Turns failures for a missing package of an extra into skips.

    This allows tests to run without SeqIO, for example if TensorFlow has no wheel for this Python.
    """
    missing = NEEDS.search(report.longreprtext + report.capstderr) if report.failed else None
    name = missing and (missing[1] or missing[2]).partition(".")[0]
    if name in ABSENT:
        report.outcome, report.longrepr = "skipped", (str(path), 0, f"Skipped: needs {name}")
    return report


def pytest_collection_finish():
    """Exempts all objects that exist now from garbage collection, and makes collections rarer.

    This saves time, since tracing creates many objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


# Linux limits a process to 65,530 memory maps (vm.max_map_count). Each compiled program uses some,
# and LLVM ends with a segmentation fault if none are left.
MOST_MAPS = 20_000
# Memory without files (RssAnon) that a process may gain before it drops its compiled programs.
# Memory that stays in use afterwards, such as that of TensorFlow, is not counted the next time.
MOST_GROWTH_KILOBYTES = 768 << 10
KEPT_KILOBYTES = pytest.StashKey[int]()
MAPS, STATUS = pathlib.Path("/proc/self/maps"), pathlib.Path("/proc/self/status")


def kilobytes(field: str) -> int:
    """Returns a size of this process as Linux counts it, such as VmHWM, or 0 elsewhere."""
    found = re.search(rf"^{field}:\s*(\d+)", STATUS.read_text(), re.M) if STATUS.exists() else None
    return int(found[1]) if found else 0


def may_have_too_many_maps() -> bool:
    return not MAPS.exists() or MAPS.read_bytes().count(b"\n") > MOST_MAPS


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Drops compiled programs if they use too much memory or too many memory maps."""
    ends_file = nextitem is None or nextitem.path != item.path
    kept = item.config.stash.get(KEPT_KILOBYTES, 0)
    has_grown = kilobytes("RssAnon") - kept > MOST_GROWTH_KILOBYTES
    if has_grown or (ends_file and may_have_too_many_maps()):
        jax.clear_caches()
        gc.collect()
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)  # glibc would keep freed memory.
        item.config.stash[KEPT_KILOBYTES] = kilobytes("RssAnon")


PEAKS: dict[str, int] = {}  # the peak memory of each process in kB


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    PEAKS[node.gateway.id] = node.workeroutput.get("peak", 0)


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["peak"] = kilobytes("VmHWM")
    else:
        PEAKS["this process"] = kilobytes("VmHWM")


def pytest_terminal_summary(terminalreporter):
    peaks = [f"{kb / 2**20:.1f} GB ({name})" for name, kb in PEAKS.items() if kb]
    if peaks:
        terminalreporter.write_line(f"peak memory: {', '.join(peaks)}")


@pytest.fixture(autouse=True, scope="module")
def data_sets_of_one_file():
    """Resets where SeqIO looks for datasets, which `data_dir` sets for the whole process."""
    yield
    if seqio := sys.modules.get("seqio"):
        seqio.set_tfds_data_dir_override(None)
