"""`Comparison`: the settings of a comparison, and their checks."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

from annotated_types import MinLen

from ..constraints import AtLeastTwo, Count, NonEmptyText, Positive, Seed, check_fields
from ..settings.partial import as_partial
from .figures import name_of_eval_metric, settings_of_eval_metric
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

    A line that ends in `.gin` is a gin file. `--model=NAME`, `--corpus=NAME`, `--data=FILES` and
    `--objective=NAME` are options of `pretrax train`. Any other line is a binding. Later lines
    override earlier ones.

    With several named budgets, such as {"250k": …, "750k": …}, every variant is trained on each
    budget. Such a comparison fits scaling laws instead of ranking variants.

    Attributes:
      directory: Folder for the runs, the results and the report.
      question: The question that the comparison answers, as a sentence.
      base: Gin files and bindings of the base run.
      variants: Gin files and bindings of each variant, by name. They follow the lines of the base.
      budget: Function from a `training.Plan` to the number of steps, or several functions by name.
      eval_metrics: Functions of a `Subject` that return a list of figures.
      seeds: Seeds with which each variant is trained.
      checkpoints: Number of measured checkpoints of a run, evenly spaced up to its end.
      reference: Variant that others are compared with. None: all pairs are compared.
      tuning: Function without arguments that returns the `tuning.Tuning` of each variant. None:
        nothing is tuned.
      about: The papers that the comparison follows, and its limitations.
      smallest_effects: Smallest difference of interest for each figure, in its unit. None: any
        difference.
      looks: Ascending numbers of seeds after which the comparison may end early.
      search_paths: Further folders with the gin files of the base and the variants. The command
        line gives them.
    """

    directory: NonEmptyText
    question: NonEmptyText
    base: Annotated[Sequence[str], MinLen(1)]
    variants: Annotated[Mapping[str, Sequence[str]], MinLen(1)]
    budget: Callable | Annotated[Mapping[str, Callable], MinLen(1)]
    eval_metrics: Annotated[Sequence[Callable], MinLen(1)]
    seeds: Annotated[Sequence[Seed], MinLen(1)] = (0, 1, 2, 3, 4)
    checkpoints: Count = 1
    reference: str | None = None
    tuning: Callable | None = None
    about: str = ""
    smallest_effects: Mapping[str, Positive] | None = None
    looks: Sequence[AtLeastTwo] = ()
    search_paths: Sequence[str] = ()

    @property
    def has_budgets(self) -> bool:
        """Whether every variant is trained on several budgets, for a scaling law."""
        return isinstance(self.budget, Mapping)

    @property
    def planned_looks(self) -> tuple[int, ...]:
        """The looks, followed by the number of seeds; () without looks."""
        return (*self.looks, len(self.seeds)) if self.looks else ()


FIELDS = {field.name: field for field in dataclasses.fields(Comparison)}


class Variant(NamedTuple):
    lines: Sequence[str]  # gin files and bindings, read after those of the base
    budget: Callable  # (training.Plan) -> steps


def trained_variants(comparison: Comparison) -> dict[str, Variant]:
    """Returns the variants by name; with several budgets, one for each variant and budget.

    >>> from types import SimpleNamespace
    >>> laws = SimpleNamespace(variants={"wide": ["WIDTH = 64"]}, budget={"1M": len, "4M": sum})
    >>> list(trained_variants(laws))
    ['wide, 1M', 'wide, 4M']
    """
    return dict(_trained(comparison))


def _trained(c: Comparison) -> Iterator[tuple[str, Variant]]:
    budgets = c.budget if isinstance(c.budget, Mapping) else {"": c.budget}
    for name, lines in c.variants.items():
        for amount, budget in budgets.items():
            yield ", ".join(filter(None, (name, amount))), Variant(lines, budget)


def folder_of(variant: str) -> str:
    """Returns the name of a variant's folder.

    >>> folder_of("80/10/10"), folder_of("15%")
    ('80_10_10', '15_')
    """
    return "".join(c if c.isascii() and (c.isalnum() or c in "-._") else "_" for c in variant)


def check(comparison: Comparison) -> Comparison:
    """Returns the comparison if its settings are consistent.

    Raises ValueError with the setting otherwise.
    """
    check_fields(comparison, "comparison.Comparison.")
    for mistake in _mistakes(comparison):
        raise ValueError(f"comparison.Comparison.{mistake}.")
    return comparison


def _mistakes(c: Comparison) -> Iterator[str]:
    """Yields mistakes of a comparison. Each check assumes that earlier checks passed."""
    if "://" in c.directory:
        yield f"directory must be a folder on this machine's disk, got {c.directory}"
    for setting, value in (("variants", c.variants), ("budget", c.budget)):
        for name in value if isinstance(value, Mapping) else ():
            if not isinstance(name, str) or not name.strip() or not name.isprintable():
                yield f"{setting} has the name {name!r}, expected printable text on one line"
    if duplicates := [seed for seed in sorted(c.seeds) if list(c.seeds).count(seed) > 1]:
        yield f"seeds has {duplicates[0]} twice, got {list(c.seeds)}: give each seed once"
    for budget in c.budget.values() if isinstance(c.budget, Mapping) else (c.budget,):
        as_partial(budget).check(None)  # Fail now, and not after the text is prepared.
    if c.tuning is not None and (shared := set(c.tuning().seeds) & set(c.seeds)):
        yield (
            f"seeds has {min(shared)}, which is also a seed of the tuning: give the tuning other "
            "seeds"
        )
    yield from _mistakes_of_looks(c)
    yield from _mistakes_of_folders([name for name, _ in _trained(c)])
    yield from _mistakes_of_eval_metrics(c.eval_metrics)
    yield from _mistakes_of_smallest_effects(c)
    if c.reference is not None and c.has_budgets:
        yield (
            f"reference = {c.reference!r} needs a single budget: leave the reference out, since "
            "several budgets fit a scaling law"
        )
    if c.reference not in (None, *c.variants):
        yield (
            f"reference = {c.reference!r} is not a variant: give one of "
            f"{', '.join(map(repr, c.variants))}, or None to compare all pairs"
        )
    if macro := macro_of(c.base):
        yield f"base has %{macro}, which is solved for each variant: move it to the variants' lines"
    for name, lines in c.variants.items():
        macro = macro_of(lines)
        if macro and c.has_budgets:
            yield (
                f"variants[{name!r}] has %{macro}, which makes it equal to the reference, but a "
                "comparison of several budgets has no reference: give a number"
            )
        if macro and c.reference in (None, name):
            yield (
                f"variants[{name!r}] has %{macro}, which makes it equal to the reference: give "
                f"another variant as reference, got {c.reference!r}"
            )


def _mistakes_of_looks(c: Comparison) -> Iterator[str]:
    looks = list(c.planned_looks)
    if looks != sorted(set(looks)):
        yield (
            f"looks must be ascending numbers of seeds below the {len(c.seeds)} of seeds, got "
            f"{list(c.looks)}: with five seeds, looks = [3] tests after three seeds and at the end"
        )
    if looks and c.has_budgets:
        yield (
            "looks need a single budget: leave the looks out, since several budgets fit a scaling "
            "law"
        )


def _mistakes_of_folders(variants: Sequence[str]) -> Iterator[str]:
    folders: dict[str, str] = {}
    for name in variants:
        folder = folder_of(name)
        if len(name) > 60 or folder.startswith("."):
            yield (
                f"variants has {name!r}, which cannot name a folder: give a name of at most 60 "
                "characters that does not begin with a dot"
            )
        if other := folders.get(folder.lower()):
            yield (
                f"variants has {other!r} and {name!r}, which would share the folder runs/{folder}: "
                "give names that differ in ASCII letters (ignoring case) or digits"
            )
        folders[folder.lower()] = name


def _mistakes_of_eval_metrics(eval_metrics: Sequence[Callable]) -> Iterator[str]:
    # The eval metrics are imported by now. The package itself starts without JAX.
    from ..objectives.catalog import find
    from .eval_metrics.heldout_loss import loss_under

    known: list[dict] = []  # settings including defaults
    named: dict[str, Callable] = {}
    for eval_metric in eval_metrics:
        partial = as_partial(eval_metric)
        partial.check(None)  # Fail now, and not after hours of training.
        if partial.function is loss_under:
            list(map(find, partial.settings["objectives"]))
        if (settings := settings_of_eval_metric(eval_metric)) in known:
            yield (
                f"eval_metrics has {eval_metric!r} twice: give each eval metric once, or with "
                "different settings"
            )
        known.append(settings)
        name = name_of_eval_metric(eval_metric, eval_metrics)
        if (same := named.setdefault(name, eval_metric)) is not eval_metric:
            yield (
                f"eval_metrics has {as_partial(same)!r} and {as_partial(eval_metric)!r}, whose "
                f"figures would both be named {name}: leave one out, or rename its function"
            )


def _mistakes_of_smallest_effects(c: Comparison) -> Iterator[str]:
    names = [name_of_eval_metric(eval_metric, c.eval_metrics) for eval_metric in c.eval_metrics]
    for figure in c.smallest_effects or {}:
        # Several units follow the name: "norm (units)" or "norm (power=4, units)".
        if not any(figure == name or figure.startswith(_before_unit(name)) for name in names):
            yield (
                f"smallest_effects has {figure!r}, which no eval metric measures: give figures of "
                f"{', '.join(names)}"
            )


def _before_unit(name: str) -> str:
    return f"{name[:-1]}, " if name.endswith(")") else f"{name} ("
