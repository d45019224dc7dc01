"""Every test runs on eight fake CPU devices, and no array is broadcast by accident.

Nothing is compiled twice: the processes of a session, the programs that tests start, and later
sessions share what they compile. With `--changed`, only the tests run that a change reaches.
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
# The programs are small and many. XLA's emitters of fusions take half of what it takes to compile
# them, and dividing each among threads a third of the rest.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8"
    + " --xla_cpu_parallel_codegen_split_count=1"
    + (" --xla_cpu_use_fusion_emitters=false" if version("jax") < "0.11" else "")  # gone there
).strip()
# What is compiled for the processor of one host need not run on another: each has a folder.
CACHES = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
COMPILED = CACHES / "pretrax" / "compiled_by_tests" / (platform.node() or "here")
COMPILED_BYTES = 1 << 30  # all tests together, the slow ones too, compile some 200 MB
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILED))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# Of tests/storm, drawn once, as the processes of pytest-xdist must agree on it.
os.environ.setdefault("STORM_SEED", str(secrets.randbelow(10**6)))

pytest_plugins = ["tests.vocabularies"]

import jax  # noqa: E402  (the flags above are read when jax is imported)
import pytest  # noqa: E402

from pretrax.settings.extras import EXTRAS  # noqa: E402
from pretrax.training.devices.compiled_programs import remove_beyond  # noqa: E402
from tests import import_graph  # noqa: E402
from tests.shares import share_of  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_disable_most_optimizations", True)


# Of the extras: now, since a test may make believe that one is absent.
ABSENT = {name for name in EXTRAS if importlib.util.find_spec(name) is None}
# What Python and pretrax say of one.
NEEDS = re.compile(r"No module named '([\w.]+)'|needs (\w+), which is not installed")

# Files that take longest. They come first, else one process would end with one of them, alone.
LONGEST = {
    *("test_docs", "test_benchmarks", "test_gin_runs", "test_step", "test_compare", "test_resume"),
    *("test_two_processes", "test_speculation", "test_evaluation", "test_decoding", "test_wheel"),
}


REACHED = pytest.StashKey[set[pathlib.Path] | None]()  # the test files of --changed; None: all


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
    if hasattr(config, "workerinput"):  # the process that starts the workers has read the graph
        reached = config.workerinput["reached"]
        config.stash[REACHED] = None if reached is None else set(map(pathlib.Path, reached))
        return
    if COMPILED.is_dir():
        remove_beyond(COMPILED_BYTES, COMPILED)
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


@pytest.hookimpl(trylast=True)  # once -m and -k have chosen
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


# Linux lets a process map 65,530 pieces of memory (vm.max_map_count), each compiled program takes
# some, and if none are left LLVM ends in a segmentation fault.
MOST_MAPS = 20_000
MOST_KILOBYTES = 1800 << 10
MAPS, STATUS = pathlib.Path("/proc/self/maps"), pathlib.Path("/proc/self/status")


def kilobytes(field: str) -> int:
    """Returns a size of this process as Linux counts it, such as VmRSS, or 0 elsewhere."""
    found = re.search(rf"^{field}:\s*(\d+)", STATUS.read_text(), re.M) if STATUS.exists() else None
    return int(found[1]) if found else 0


def has_too_many_pieces() -> bool:
    return not MAPS.exists() or MAPS.read_bytes().count(b"\n") > MOST_MAPS


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Lets go of compiled programs if they take too much memory, or too many pieces of it."""
    ends_file = nextitem is None or nextitem.path != item.path
    if kilobytes("VmRSS") > MOST_KILOBYTES or (ends_file and has_too_many_pieces()):
        jax.clear_caches()
        gc.collect()
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)  # glibc would keep what was freed


PEAKS: dict[str, int] = {}  # the most memory of each process, in kB


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
    """Lets go of where SeqIO looks for data sets, which `data_dir` tells it for a whole process."""
    yield
    if seqio := sys.modules.get("seqio"):
        seqio.set_tfds_data_dir_override(None)
