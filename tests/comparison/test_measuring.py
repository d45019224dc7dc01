"""How figures of eval metrics are kept, and when they are measured again."""

import importlib
import json
import math
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from pretrax.comparison import results
from pretrax.comparison.eval_metrics import EVAL_METRICS, kept_figures, measuring
from pretrax.comparison.eval_metrics.kept_figures import KeptFigures, Measured
from pretrax.comparison.figures import LOWER, Figure
from pretrax.corpora import synthetic_documents
from pretrax.inference.prompting.windows import BeyondTraining
from pretrax.settings.partial import Partial, parameters
from tests.comparison.subjects import subject_of
from tests.inference.runs import trained
from tests.refusals import refuses, warns


def sized(subject, *, layers=(), text=b"", times: int = 1) -> list[Figure]:
    return [Figure("sized", len(layers) * times, "layers", LOWER)]


def test_settings_without_a_json_type_are_stored_with_the_defaults(tmp_path):
    subject = SimpleNamespace(directory=str(tmp_path), step=3, corpus=None)
    measuring.measured(subject, {"sized": Partial(sized, layers={"c", "a", "b"}, text=b"x")})
    line = json.loads((tmp_path / "evaluation/eval_metrics.jsonl").read_text())
    assert line["settings"] == {
        "eval_metric": "tests.comparison.test_measuring.sized",
        "eval_metric.layers": ["a", "b", "c"],  # the same in every process
        "eval_metric.text": "b'x'",
        "eval_metric.times": 1,
    }


def warned(subject, *, others: bool = False) -> list[Figure]:
    for slots in (140, 168, 131):
        warnings.warn(BeyondTraining("encoder", slots, 128, "Give a shorter text."), stacklevel=1)
    if others:
        warnings.warn("unrelated", stacklevel=1)
    return [
        Figure("warned", 1.0, "x", LOWER, note="of 3 texts"),
        Figure("warned/part", 1.0, "x", LOWER),
    ]


def test_texts_longer_than_training_rows_are_noted():
    first, part = kept_figures.measure(warned, None)
    note = "texts have up to 168 slots of the encoder, but training rows had 128"
    assert first.note == f"of 3 texts; {note}" and not part.note
    with warns(UserWarning, "unrelated"):
        kept_figures.measure(Partial(warned, others=True), None)


@pytest.mark.parametrize("name", EVAL_METRICS)
def test_invalid_eval_metric_settings_are_named(name, few_library_files):
    """A number that is too small or missing, a list that is empty, or a word."""
    needed = {"loss_under": {"objectives": ["causal_lm"]}, "retrieve": {"candidates": 4}}
    subject = subject_of(trained("decoder", "causal_lm"))
    for setting, usual in parameters(EVAL_METRICS[name]).items():
        wrong = {int: (-1, 2.5), tuple: ((), "all")}.get(type(usual.default), ())
        if setting in ("layers", "objectives"):
            wrong = ((), "all")
        if setting == "labels":  # This list may be empty.
            wrong = ([0], "all")
        for value in wrong:
            with refuses(ValueError, f"{name}.{setting}", repr(value)):
                EVAL_METRICS[name](subject, **needed.get(name, {}) | {setting: value})


def named_sized(returned):
    """Returns an eval metric named "sized" that returns this."""
    eval_metric = lambda subject: returned  # noqa: E731
    eval_metric.__name__ = "sized"
    return eval_metric


@pytest.mark.parametrize(
    "returned, values",
    [
        ([], ["[]", "list"]),
        (None, ["None", "list"]),
        ([1.0], ["1.0", "comparison.figures.Figure"]),
        ([Figure("sized", 1.0, "x", "more")], ["`better`", "'lower'", "'higher'", "'neither'"]),
        ([Figure("size", 1.0, "x", LOWER)], ["size"]),
        ([Figure("sized", 1.0, "x", LOWER), Figure("part", 1.0, "x", LOWER)], ["sized, part"]),
        ([Figure("sized", 1.0, "x", LOWER)] * 2, ["sized, sized"]),
    ],
)
def test_ambiguous_figures_are_rejected(returned, values):
    with refuses(ValueError, "sized", *values):
        kept_figures.measure(named_sized(returned), None)


def last_of(run_dir, step, eval_metric):
    """Returns the latest measurement of one eval metric."""
    ((measured,),) = KeptFigures(run_dir).read([step], [eval_metric]).values()
    return measured


def test_array_values_are_stored_as_numbers(tmp_path):
    of_array = Figure("sized", np.float32(0.5), "x", LOWER, baseline=np.float32(2.0))
    part = of_array._replace(name="sized/part", baseline=math.nan)
    figure, part = kept_figures.measure(named_sized([of_array, part]), None)
    assert json.dumps(figure.baseline) == "2.0" and part.baseline is None
    KeptFigures(str(tmp_path)).write(3, sized, Measured((figure,), ""))
    assert last_of(str(tmp_path), 3, sized).figures[0].value == 0.5


def test_latest_figures_of_a_step_are_read(tmp_path):
    eval_metric, run = Partial(sized, times=2), str(tmp_path)
    for step, value in ((3, 1.0), (3, 2.0), (4, float("nan"))):
        figure = Figure("sized", value, "layers", LOWER)
        KeptFigures(run).write(step, eval_metric, Measured((figure,), ""))
    assert last_of(run, 3, eval_metric).figures[0].value == 2.0
    assert math.isnan(last_of(run, 4, eval_metric).figures[0].value)
    assert last_of(run, 5, eval_metric) is last_of(run, 3, sized) is None


def module_of(folder, monkeypatch, name: str, text: str):
    """A module that is imported from its own file, like a user's module."""
    monkeypatch.syspath_prepend(folder)
    (folder / f"{name}.py").write_text(text)
    monkeypatch.delitem(sys.modules, name, raising=False)
    kept_figures.module_checksum.cache_clear()
    importlib.invalidate_caches()
    return importlib.import_module(name)


def test_changed_eval_metric_file_is_measured_again(tmp_path, monkeypatch):
    def mine(text: str):
        return module_of(tmp_path, monkeypatch, "eval_metrics_of_measuring", text).mine

    code = "def mine(subject):\n    return 1\n"
    first = mine(code)
    KeptFigures(str(tmp_path)).write(3, first, Measured((), "no such model"))
    (tmp_path / "eval_metrics_of_measuring.py").write_text("half of an update")
    assert last_of(str(tmp_path), 3, first).refusal  # the code that this process has imported
    assert last_of(str(tmp_path), 3, mine(code)).refusal
    assert last_of(str(tmp_path), 3, mine(code.replace("1", "22"))) is None


def test_figures_version_takes_precedence_over_the_file(tmp_path, monkeypatch):
    def mine(text: str):
        return module_of(tmp_path, monkeypatch, "versions_of_measuring", text).mine

    code = "FIGURES_VERSION = 1\n\n\ndef mine(subject):\n    return 1\n"
    KeptFigures(str(tmp_path)).write(3, mine(code), Measured((), "no such model"))
    assert last_of(str(tmp_path), 3, mine(f"{code}# a comment\n")).refusal
    assert last_of(str(tmp_path), 3, mine(code.replace("VERSION = 1", "VERSION = 22"))) is None


def test_run_with_a_changed_synthetic_task_is_measured_again(tmp_path, monkeypatch):
    def corpus(text: str):
        task = module_of(tmp_path, monkeypatch, "synthetic_task_of_measuring", text).drawn
        return Partial(synthetic_documents, task=task)

    code, run = "def drawn(*, seed):\n    return 1\n", str(tmp_path)
    KeptFigures(run, corpus(code)).write(3, sized, Measured((), "no such model"))
    assert KeptFigures(run, corpus(code)).read([3], [sized])[3][0].refusal
    assert KeptFigures(run, corpus(code.replace("1", "22"))).read([3], [sized]) == {3: [None]}


def test_line_without_a_version_is_measured_again(tmp_path):
    """An earlier pretrax stored a checksum of the code instead of a version."""
    KeptFigures(str(tmp_path)).write(3, sized, Measured((), "no such model"))
    file = tmp_path / "evaluation/eval_metrics.jsonl"
    (line,) = results.read_lines(file, dict)
    results.write_lines(file, [{k: x for k, x in line.items() if k != "version"} | {"code": "ab"}])
    assert last_of(str(tmp_path), 3, sized) is None


@pytest.mark.parametrize("name", EVAL_METRICS)
def test_built_in_eval_metrics_have_a_version(name):
    module = sys.modules[EVAL_METRICS[name].__module__]
    assert kept_figures.version_of(EVAL_METRICS[name]) == module.FIGURES_VERSION >= 1
