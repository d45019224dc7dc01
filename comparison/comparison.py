"""`Comparison`: what is compared, as a value."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

from annotated_types import MinLen

from ..constraints import AtLeastTwo, Count, NonEmptyText, Positive, Seed, check_fields
from ..settings.printable import printable
from .matching import macro_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """A base run, named variants of it, seeds, a budget and eval metrics.

        Comparison(
            directory="comparisons/masking_rate",
            question="How many tokens should masked language modeling hide?",
            base=["runs/encoder.gin"],
            variants={"15%": [], "40%": ["objectives.masked_lm.rate = 0.40"]},
            budget=Partial(budgets.text_tokens, number=400_000),
            eval_metrics=[Partial(eval_metrics.probes.classify)],
        )

    Lines that end in `.gin` are files, the others bindings; later ones override earlier ones.

    Several budgets by name, {"250k": …, "750k": …}, train every variant on each of them: the
    question is a scaling law, and not which is better.
    """

    directory: NonEmptyText  # for its runs, its results and its report
    question: NonEmptyText  # what is asked, in a sentence
    # Gin files and bindings: of the run that all variants change; and by name, those after them.
    base: Annotated[Sequence[str], MinLen(1)]
    variants: Annotated[Mapping[str, Sequence[str]], MinLen(1)]
    # (training.Plan) -> steps, or several by name.
    budget: Callable | Annotated[Mapping[str, Callable], MinLen(1)]
    eval_metrics: Annotated[Sequence[Callable], MinLen(1)]  # (Subject) -> list[Figure]
    seeds: Annotated[Sequence[Seed], MinLen(1)] = (0, 1, 2, 3, 4)  # each variant's, a run each
    checkpoints: Count = 1  # of a run, evenly spaced, its end the last, that eval metrics measure
    reference: str | None = None  # the variant that others are compared with; None: all pairs
    tuning: Callable | None = None  # () -> tuning.Tuning: what is chosen for each variant before
    about: str = ""  # what it follows, and what it cannot prove
    # By figure, the least difference that is worth knowing, in its unit; None: none is named.
    wanted: Mapping[str, Positive] | None = None
    # Numbers of seeds, ascending, after which it ends early where what is wanted is decided.
    looks: Sequence[AtLeastTwo] = ()

    @property
    def planned_looks(self) -> tuple[int, ...]:
        """The looks, and the number of seeds as the last; () where none were planned."""
        return (*self.looks, len(self.seeds)) if self.looks else ()


FIELDS = {field.name: field for field in dataclasses.fields(Comparison)}


class Variant(NamedTuple):
    lines: Sequence[str]  # gin files and bindings after those of the base
    budget: Callable


def trained_variants(comparison: Comparison) -> dict[str, Variant]:
    """Returns the variants by name, each on every budget where there are several.

    >>> from types import SimpleNamespace
    >>> one = SimpleNamespace(variants={"wide": ["WIDTH = 64"]}, budget={"1M": len, "4M": sum})
    >>> list(trained_variants(one))
    ['wide, 1M', 'wide, 4M']
    """
    return dict(_trained(comparison))


def _trained(c: Comparison) -> Iterator[tuple[str, Variant]]:
    several = c.budget if isinstance(c.budget, Mapping) else {"": c.budget}
    for name, lines in c.variants.items():
        for amount, budget in several.items():
            yield ", ".join(filter(None, (name, amount))), Variant(lines, budget)


def folder_of(variant: str) -> str:
    """Returns the name of a variant's folder.

    >>> folder_of("80/10/10"), folder_of("15%")
    ('80_10_10', '15_')
    """
    return "".join(c if c.isascii() and (c.isalnum() or c in "-._") else "_" for c in variant)


def check(comparison: Comparison) -> Comparison:
    """Raises ValueError for a comparison that no runs can answer: what was got, what to change."""
    check_fields(comparison, "comparison.Comparison.")
    for mistake in _mistakes(comparison):
        raise ValueError(f"comparison.Comparison.{mistake}.")
    return comparison


def _mistakes(c: Comparison) -> Iterator[str]:
    """Yields the mistakes of a comparison; each check assumes that those before found none."""
    if "://" in c.directory:
        yield f"directory is on this machine's disk, got {c.directory}"
    for of, named in (("variants", c.variants), ("budget", c.budget)):
        for name in named if isinstance(named, Mapping) else ():
            if not isinstance(name, str) or not name.strip() or not name.isprintable():
                yield f"{of} has the name {name!r}, expected a text of one line"
    if twice := [seed for seed in sorted(c.seeds) if list(c.seeds).count(seed) > 1]:
        yield f"seeds has {twice[0]} twice, got {list(c.seeds)}: give each once"
    _check_budgets(c.budget)
    if c.tuning is not None and (shared := set(c.tuning().seeds) & set(c.seeds)):
        yield (
            f"seeds has {min(shared)}, which is a seed of its tuning too: give the tuning others, "
            "so that no value is chosen by what it is compared by"
        )
    yield from _mistakes_of_looks(c)
    yield from _mistakes_of_folders([name for name, _ in _trained(c)])
    yield from _mistakes_of_eval_metrics(c.eval_metrics)
    yield from _mistakes_of_wanted(c)
    if c.reference is not None and isinstance(c.budget, Mapping):
        yield (
            f"reference = {c.reference!r} goes with one budget: variants of several are not "
            "compared in pairs, a law is fitted to them. Leave it out"
        )
    if c.reference not in (None, *c.variants):
        yield (
            f"reference = {c.reference!r} is none of the variants: give one of "
            f"{', '.join(map(repr, c.variants))}, or None to compare all pairs"
        )
    if macro := macro_of(c.base):
        yield f"base has %{macro}, which is solved for a variant: give it in the variants' lines"
    for name, lines in c.variants.items():
        macro = macro_of(lines)
        if macro and isinstance(c.budget, Mapping):
            yield (
                f"variants[{name!r}] has %{macro}, which makes it equal to a reference, and "
                "several budgets have none: give a number"
            )
        if macro and c.reference in (None, name):
            yield (
                f"variants[{name!r}] has %{macro}, which makes it equal to the reference: give "
                f"another variant as reference, got {c.reference!r}"
            )


def _check_budgets(budget: Callable | Mapping[str, Callable]) -> None:
    """Raises ValueError for a setting that a budget cannot have, before text is prepared for it."""
    from ..settings.partial import as_partial

    for one in budget.values() if isinstance(budget, Mapping) else (budget,):
        as_partial(one).check(None)


def _mistakes_of_looks(c: Comparison) -> Iterator[str]:
    looks = list(c.planned_looks)
    if looks != sorted(set(looks)):
        yield (
            f"looks are numbers of seeds in ascending order, fewer than the {len(c.seeds)} that "
            f"seeds has, got {list(c.looks)}: with five seeds, looks = [3] looks after three, and "
            "at the end"
        )
    if looks and isinstance(c.budget, Mapping):
        yield "looks go with one budget: a law is fitted to all runs of several. Leave them out"


def _mistakes_of_folders(variants: Sequence[str]) -> Iterator[str]:
    folders: dict[str, str] = {}
    for name in variants:
        folder = folder_of(name)
        if not name.strip() or printable(name) != name or {*"\n\t"} & {*name}:
            yield (
                f"variants has {name!r}, which a line of a report cannot show: give a name of "
                "letters, without line breaks and control characters"
            )
        if len(name) > 60 or folder.startswith("."):
            yield (
                f"variants has {name!r}, which cannot name a folder: give a name of 60 characters "
                "or fewer that begins with no dot"
            )
        if other := folders.get(folder.lower()):
            yield (
                f"variants has {other!r} and {name!r}, which would share the folder runs/{folder}: "
                "give names that differ in letters or digits of ASCII, capitals apart"
            )
        folders[folder.lower()] = name


def _mistakes_of_eval_metrics(eval_metrics: Sequence[Callable]) -> Iterator[str]:
    from ..settings.partial import as_partial
    from .figures import name_of_eval_metric, settings_of_eval_metric

    known: list[dict] = []  # settings with defaults, which an eval metric may also be given
    named: dict[str, Callable] = {}
    for eval_metric in eval_metrics:
        as_partial(eval_metric).check(None)  # before hours of training, not after
        if (settings := settings_of_eval_metric(eval_metric)) in known:
            yield f"eval metrics has {eval_metric!r} twice: give each once, or other settings"
        known.append(settings)
        name = name_of_eval_metric(eval_metric, eval_metrics)
        if (same := named.setdefault(name, eval_metric)) is not eval_metric:
            yield (
                f"eval metrics has {as_partial(same)!r} and {as_partial(eval_metric)!r}, whose figures would "
                f"have one name, {name}: leave one out, or rename its function"
            )


def _mistakes_of_wanted(c: Comparison) -> Iterator[str]:
    from .figures import name_of_eval_metric

    names = [name_of_eval_metric(one, c.eval_metrics) for one in c.eval_metrics]
    for figure in c.wanted or {}:
        # Its unit may follow, where runs have several: "norm (units)", "norm (power=4, units)".
        if not any(figure == name or figure.startswith(_before_unit(name)) for name in names):
            yield (
                f"wanted has {figure!r}, which no eval metric measures: give figures of "
                f"{', '.join(names)}"
            )


def _before_unit(name: str) -> str:
    return f"{name[:-1]}, " if name.endswith(")") else f"{name} ("
