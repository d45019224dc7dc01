"""`Figure`: a result of an eval metric, and the settings that are kept with it."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..settings.partial import as_partial, flattened

LOWER = "lower"
HIGHER = "higher"
NEITHER = "neither"
NATS = "nats per target"  # the unit of held-out losses
NATS_SAVED = "share of the baseline's nats saved"
# Parts of a fine-tuning figure: the chosen peak learning rate, and the ends of its grid.
PEAK = "/peak"
SMALLEST = "/smallest"
LARGEST = "/largest"


class Figure(NamedTuple):
    """One figure of a run."""

    # The name of the eval metric, and of its part: "minimal_pairs", "minimal_pairs/brackets".
    name: str
    value: float
    unit: str  # for example "bits per byte", "nats per token", "share" or "seconds"
    better: str  # whether LOWER or HIGHER values are better; NEITHER for a cost
    baseline: float | None = None  # chance level or other trivial figure; None if there is none
    note: str = ""  # caveats, such as what was left out


def peak_figures(name: str, chosen: float, grid: Sequence[float]) -> list[Figure]:
    """Returns the parts of a fine-tuning figure that record the chosen learning rate.

    >>> [(one.name, one.value) for one in peak_figures("finetune", 0.05, [0.1, 0.02, 0.05])]
    [('finetune/peak', 0.05), ('finetune/peak/smallest', 0.02), ('finetune/peak/largest', 0.1)]
    """
    values = {PEAK: chosen, PEAK + SMALLEST: min(grid), PEAK + LARGEST: max(grid)}
    return [Figure(name + part, x, "learning rate", NEITHER) for part, x in values.items()]


def settings_of_eval_metric(eval_metric: Callable) -> dict[str, Any]:
    """Returns an eval metric's name and settings, including defaults, as JSON values.

    Sets become sorted lists. Other values that are not JSON become their `repr`.

    >>> from pretrax.training.optimizers import warmup_constant
    >>> settings_of_eval_metric(warmup_constant)
    {'eval_metric': 'training.optimizers.warmup_constant', 'eval_metric.warmup_steps': 0}
    """
    return json.loads(
        json.dumps(dict(flattened("eval_metric", as_partial(eval_metric))), default=_plain)
    )


def _plain(value: Any) -> Any:
    return sorted(value, key=repr) if isinstance(value, set | frozenset) else repr(value)


def settings_in_words(eval_metric: Callable, eval_metrics: Sequence[Callable]) -> list[str]:
    """Returns the settings that distinguish an eval metric from others of the same function."""
    partial = as_partial(eval_metric)
    functions = [as_partial(other).function for other in eval_metrics]
    if functions.count(partial.function) == 1:
        return []
    return [_in_words(name, value) for name, value in partial.settings.items()]


def _in_words(name: str, value: Any) -> str:
    """Returns a setting as text: names without the setting's name, other values as "power=4"."""
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
        return ", ".join(names)
    return f"{name}={value}"


def name_of_eval_metric(eval_metric: Callable, eval_metrics: Sequence[Callable]) -> str:
    """Returns the name of a metric's first figure, with settings if several share a function."""
    return labeled(
        as_partial(eval_metric).function.__name__, settings_in_words(eval_metric, eval_metrics)
    )


def labeled(name: str, words: Sequence[str]) -> str:
    """
    >>> labeled("norm/layer_1", ["power=4", "units"]), labeled("norm", [])
    ('norm (power=4, units)/layer_1', 'norm')
    """
    whole, slash, part = name.partition("/")
    return f"{whole} ({', '.join(words)}){slash}{part}" if words else name
