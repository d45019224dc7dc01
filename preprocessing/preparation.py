"""Defines `Preparation`, an immutable value with all settings for preparing raw text."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..constraints import NonEmptyText, check_fields
from ..settings.partial import flattened

DEFAULT = "preprocessing/default.gin"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preparation:
    """All settings of a preparation: a source, steps, an output and an executor.

    Preparation(
        out="stores/mine",
        source=Partial(sources.files, files="raw/*.jsonl"),
        steps=[Partial(filters.clean), Partial(duplicates.exact_duplicates)],
        output=Partial(outputs.token_store, vocabulary=Partial(vocabularies.trained)),
        executor=Partial(executors.local),
    )
    """

    out: NonEmptyText  # folder for the result and its report
    source: Callable  # () -> blocks.Source
    steps: Sequence[Callable]  # each () -> blocks.Step, in order
    output: Callable  # () -> outputs.Output
    executor: Callable  # (blocks, tasks, log, workers) -> executor that runs them

    def __post_init__(self):
        check_fields(self, "preprocessing.Preparation.")
        if "://" in self.out:
            raise ValueError(
                f"Got OUT={self.out}, expected a folder on a disk that all workers share: copy the "
                "finished store to the bucket afterwards."
            )


def preparation_of(settings: Mapping[str, Any]) -> Preparation:
    """Returns the preparation with the settings of gin files.

        preparation_of(read_settings(Preparation, [DEFAULT], ["FILES = 'raw/*.jsonl'"]))

    Raises ValueError for settings that are wrong or missing, and for modules that need the extra
    `prepare` if it is not installed.
    """
    names = [field.name for field in dataclasses.fields(Preparation)]
    if missing := [name for name in names if name not in settings]:
        raise ValueError(
            f"The gin files do not set {', '.join(missing)}: bind "
            f"preprocessing.Preparation.{missing[0]}, or include {DEFAULT!r} first in your file."
        )
    return Preparation(**settings)


def plain_settings(name: str, value: Any) -> dict[str, str]:
    """Returns {path: value as text} of all settings within a value, defaults included.

    >>> from pretrax.preprocessing import filters
    >>> plain_settings("steps", [Partial(filters.length, least=100)])
    {'steps[0]': "'preprocessing.filters.length'", 'steps[0].least': '100', 'steps[0].most': 'None'}
    """
    return {path: repr(setting) for path, setting in flattened(name, value)}


def setting_differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Returns lines that say how settings differ. If a step was replaced, only its name is given.

    >>> setting_differences({"steps[0].least": "100"}, {"steps[0].least": "200"})
    ['steps[0].least was 100, is 200']
    """
    differ = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    names = [n for n in differ if not any(n.startswith(f"{other}.") for other in differ)]
    return [f"{n} was {before.get(n, 'not set')}, is {now.get(n, 'not set')}" for n in names]


def out_path(preparation: Preparation, *names: str) -> str:
    """Returns a path within the folder of the result."""
    return os.path.join(os.path.expanduser(preparation.out), *names)
