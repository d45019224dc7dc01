"""Selection and measurement of eval metrics by name, for `pretrax evaluate`."""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from ...constraints import listed, near
from ...settings import run_directory
from ...settings.gin_reader import value_in_gin
from ...settings.partial import Partial, parameters
from ...settings.printable import plain_table, print_note
from ..figures import Figure
from . import EVAL_METRICS
from .kept_figures import KeptFigures, Measured, measure
from .subject import Subject


def eval_metrics(names: Sequence[str], bindings: Sequence[str] = ()) -> dict[str, Partial]:
    """Returns the eval metrics with these names, with their settings bound as in a gin file.

        eval_metrics(["loss_under"], ["loss_under.objectives = ['causal_lm']"])

    Raises ValueError for an unknown eval metric, or for a binding of an unknown setting.
    """
    for name in names:
        if name not in EVAL_METRICS:
            remedy = near(name, EVAL_METRICS, f", expected {listed(EVAL_METRICS, 'or')}.", count=3)
            raise ValueError(f"There is no eval metric {name!r}{remedy}")
    settings: dict[str, dict[str, Any]] = {name: {} for name in names}
    for binding in bindings:
        name, setting, value = _parsed(binding)
        if name not in settings:
            expected = listed(names, "or") or "none"
            raise ValueError(f"Got the setting {binding!r}, expected {expected}.")
        accepted = [*(parameters(EVAL_METRICS[name]) or {})][1:]  # without the subject
        if setting not in accepted:
            raise ValueError(
                f"{name} has no setting {setting!r}, expected {listed(accepted, 'or') or 'none'}."
            )
        settings[name][setting] = value
    return {name: Partial(EVAL_METRICS[name], **bound) for name, bound in settings.items()}


def _parsed(binding: str) -> tuple[str, str, Any]:
    """Returns (eval metric, setting, value) of a binding like "heldout.loss_under.tokens = 500"."""
    selector, _, value = binding.partition("=")
    *_, name, setting = ["", *selector.strip().split(".")]
    try:
        return name, setting, ast.literal_eval(value_in_gin(value.strip()))
    except (ValueError, SyntaxError):
        raise ValueError(
            f"{binding} cannot be read: expected a Python literal, such as 3, [1, 2] or 'text'."
        ) from None


def measured(subject: Subject, chosen: Mapping[str, Partial]) -> list[Figure]:
    """Returns the figures of the chosen eval metrics, and writes each as soon as it is measured."""
    figures: list[Figure] = []
    for eval_metric in chosen.values():
        metric_figures = measure(eval_metric, subject)
        kept = KeptFigures(subject.directory, subject.corpus)
        kept.write(subject.step, eval_metric, Measured(metric_figures, ""))
        figures += metric_figures
    return figures


def print_measured(
    console: Console,
    run_dir: str,
    steps: Sequence[int | None],
    trusted: Sequence[str],
    chosen: Mapping[str, Partial],
) -> None:
    table = plain_table("step", "figure", "value", "baseline", "unit", text=("figure", "unit"))
    notes = []
    for step in steps:
        for f in measured(Subject(run_dir, step, trusted), chosen):
            baseline = "" if f.baseline is None else f"{f.baseline:.4g}"
            table.add_row(str(step), escape(f.name), f"{f.value:.4g}", baseline, escape(f.unit))
            notes += [f"{f.name}: {f.note}"] if f.note else []
    console.print(table)
    for note in dict.fromkeys(notes):
        print_note(console, note)
    kept = f"Saved to {run_dir}/{run_directory.EVALUATION}/{run_directory.FIGURES}."
    print_note(console, kept)
