"""Comparisons and the runs of their variants, read from gin files."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ..constraints import listed, near
from ..settings import run_directory, trust
from ..settings.gin_reader import GIN_CONFIGS, GinReader, imported_modules
from ..settings.gin_writer import gin_text
from ..settings.partial import flattened
from ..training.run import Run
from ..training.run_choices import lines_in_gin, other_use
from ..training.run_configuration import as_run, read_lines
from . import results
from .comparison import FIELDS, Comparison, check, trained_variants
from .matching import macro_of, solved_line
from .tuning import values_for

# Folders of a comparison's directory.
RUNS = "runs"
SHARED = "shared"
TUNING = "tuning"
# Corpus settings in which variants may differ: path -> the function with the setting. They do not
# change held-out text, vocabulary or questions.
COMMON_DATA = {
    "corpus.documents": "corpora.library.python_library",
    "corpus.task.order": "corpora.synthetic_tasks.digit_sums.arithmetic",
}
SET = ("run_dir", "checkpoint_dir", "steps", "seed")  # fields of runs that a comparison sets


def read_comparison(
    name: str,
    bindings: Sequence[str] = (),
    search_paths: Sequence[str] = (),
    trusted: Sequence[str] = (),
) -> Comparison:
    """Returns the comparison of `gin_configs/comparisons/NAME.gin`, or of your own gin file.

        read_comparison("masking_rate", ["SEEDS = [0, 1, 2]"])

    A saved comparison keeps its `search_paths`, unless others are given.

    Raises ValueError for an unreadable file, an unused binding, a missing field, and a comparison
    that `comparison.check` rejects.
    """
    file = comparison_file(name)
    trusted = (*trusted, "pretrax.comparison")
    reader = GinReader(Comparison, search_paths, trusted).read([file], bindings)
    settings = reader.settings()
    if search_paths:
        settings["search_paths"] = tuple(search_paths)
    required = [n for n, field in FIELDS.items() if field.default is dataclasses.MISSING]
    if missing := [n for n in required if n not in settings]:
        raise ValueError(
            f"{file} gives no {', no '.join(missing)}: bind "
            f"{listed(f'comparison.Comparison.{n}' for n in missing)} in this file."
        )
    comparison = _with_imports(_in_gin(check(Comparison(**settings))), reader.imports)
    if Path(file).name == run_directory.COMPARISON:  # This file may come from somebody else.
        lines = itertools.chain(comparison.base, *comparison.variants.values())
        for module in set(itertools.chain.from_iterable(map(imported_modules, lines))):
            trust.check_import(module, (*trusted, "pretrax"), file)
    return comparison


def _in_gin(comparison: Comparison) -> Comparison:
    """Replaces lines such as `--objective=ul2` by gin files and bindings."""
    variants = {name: lines_in_gin(lines) for name, lines in comparison.variants.items()}
    return dataclasses.replace(comparison, base=lines_in_gin(comparison.base), variants=variants)


def _with_imports(comparison: Comparison, imports: Mapping[str, str]) -> Comparison:
    """Adds to the base the imports that its bindings need, for other processes."""
    lines = [*comparison.base, *itertools.chain.from_iterable(comparison.variants.values())]
    bindings = [line for line in lines if not line.endswith(".gin")]
    needed = [
        statement
        for statement, name in imports.items()
        if statement not in comparison.base and any(_names(name, binding) for binding in bindings)
    ]
    return dataclasses.replace(comparison, base=[*needed, *comparison.base])


def _names(module: str, binding: str) -> bool:
    """Returns whether a binding names a function of a module.

    >>> _names("mine", "training.Run.objective = @mine.backward_lm")
    True
    >>> _names("mine", "training.Run.run_dir = 'mine'"), _names("mine", "not.mine.rate = 1")
    (False, False)
    """
    return re.search(rf"(^|[@/\s]){re.escape(module)}\.", binding) is not None


def named_comparisons() -> list[str]:
    return sorted(path.stem for path in (GIN_CONFIGS / "comparisons").glob("*.gin"))


def comparison_file(name: str) -> str:
    """Returns the gin file of a comparison, given its name or its path.

    >>> comparison_file("ul2"), comparison_file("mine.gin")
    ('comparisons/ul2.gin', 'mine.gin')

    Raises ValueError for an unknown name.
    """
    known = named_comparisons()
    if name.endswith(".gin"):
        return name
    if name in known:
        return f"comparisons/{name}.gin"
    if Path(name).is_dir():
        raise ValueError(_about_directory(Path(name)))
    hint = near(name, known, f", expected one of {', '.join(known)}.", count=3)
    raise ValueError(
        f"There is no comparison {name!r}{hint}{other_use(name)} The name of your own file must "
        "end in .gin."
    )


def _about_directory(directory: Path) -> str:
    """Returns what to do with a directory that was given as a comparison."""
    uses = []
    if (directory / run_directory.COMPARISON).exists():
        uses.append(f"give {directory / run_directory.COMPARISON} to continue the comparison")
    if (directory / results.COMPARISON).exists():
        uses.append("add --report or --power to read its results")
    advice = ", or ".join(uses) or "the directory holds no comparison"
    return f"Got the directory {directory}, expected a comparison's name or gin file: {advice}."


def comparison_text(comparison: Comparison) -> str:
    macros = {"directory": "DIRECTORY", "seeds": "SEEDS"}
    settings = {name: getattr(comparison, name) for name in FIELDS}
    return gin_text(settings, Comparison, macros).text


def runs_of_variants(
    comparison: Comparison, solved: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Run]:
    """Returns the run of each variant, from the lines of the base followed by the variant's lines.

    Steps and seeds are those of the base run. `solved` has the `matching.solved_line` of variants;
    other numbers to solve are set to 1.

    Raises ValueError for unreadable lines, for lines that set a field of the comparison, for a
    variant that cannot be tuned, and for variants without common data.
    """
    base = read_lines(comparison.base, comparison.search_paths)
    if elsewhere := base.get("checkpoint_dir"):
        raise ValueError(
            f"comparison.Comparison.base sets training.Run.checkpoint_dir = {elsewhere!r}, where "
            "all runs would overwrite each other's checkpoints: leave it out. Each run has its own "
            f"folder of checkpoints in {comparison.directory}."
        )
    runs = {}
    for name in trained_variants(comparison):
        run = run_of_variant(comparison, name, solved.get(name, ""))
        for field in SET:
            value = getattr(run, field)
            if value != base.get(field, getattr(Run, field, None)):
                raise ValueError(
                    f"The variant {name!r} sets training.Run.{field} = {value!r}, which a "
                    "comparison sets by its directory, its budget and its seeds: leave it out, and "
                    "name files of models/ and objectives/ instead of a whole run."
                )
        runs[name] = run
    check_common_data(runs)
    return runs


def run_of_variant(comparison: Comparison, name: str, solved: str) -> Run:
    """Returns the run of one variant, as in `runs_of_variants`.

    Raises ValueError for unreadable lines and for a variant that cannot be tuned.
    """
    lines = [*comparison.base, *trained_variants(comparison)[name].lines]
    try:
        if macro := macro_of(lines):
            lines.append(solved or solved_line(macro, 1))
        run = as_run(read_lines(lines, comparison.search_paths))
        if comparison.tuning is not None:
            values_for(comparison.tuning(), run)
    except ValueError as error:
        raise ValueError(f"The variant {name!r}: {error}") from error
    return run


def check_common_data(runs: Mapping[str, Run]) -> None:
    """Raises ValueError for variants that would be measured on different text or tokens."""
    (first, run), *others = runs.items()
    now = dict(flattened("corpus", run.corpus))
    for name, other in others:
        also = dict(flattened("corpus", other.corpus))
        differing = [
            f"{key} is {now.get(key, 'not set')!r} and {also.get(key, 'not set')!r}"
            for key in now | also
            if now.get(key, "") != also.get(key, "") and not _may_differ(key, now)
        ]
        if differing:
            raise ValueError(
                f"The variants {first!r} and {name!r} have no common data, so their figures cannot "
                f"be compared: {'; '.join(differing)}. Give all variants the same corpus and the "
                "same vocabulary."
            )


def _may_differ(key: str, settings: Mapping[str, object]) -> bool:
    return key in COMMON_DATA and settings.get(key.rpartition(".")[0]) == COMMON_DATA[key]
