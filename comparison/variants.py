"""Comparisons and the runs of their variants, read from gin files."""

import dataclasses
import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ..settings import run_directory, trust
from ..settings.gin_reader import GIN_CONFIGS, GinReader, imported_modules
from ..settings.gin_writer import gin_text
from ..settings.partial import flattened
from ..training.run import Run
from ..training.run_choices import lines_in_gin
from ..training.run_configuration import as_run, read_lines
from .comparison import FIELDS, Comparison, check, trained_variants
from .matching import macro_of, solved_line
from .tuning import values_for

# folders of a comparison's directory
RUNS = "runs"
SHARED = "shared"
TUNING = "tuning"
# Settings that variants may differ in, by their path, and the function whose they are: what leaves
# held-out text and vocabulary as they are; and the order in which a synthetic task writes tokens
# that are the same otherwise, so that its questions ask the same.
COMMON_DATA = {
    "corpus.documents": "corpora.library.python_library",
    "corpus.task.order": "corpora.synthetic_tasks.digit_sums.arithmetic",
}
SET = ("run_dir", "checkpoint_dir", "steps", "seed")  # fields of runs that the comparison sets


def read_comparison(
    name: str,
    bindings: Sequence[str] = (),
    search_paths: Sequence[str] = (),
    trusted: Sequence[str] = (),
) -> Comparison:
    """Returns the comparison of `gin_configs/comparisons/NAME.gin`, or of your own gin file.

        read_comparison("masking_rate", ["SEEDS = [0, 1, 2]"])

    Raises ValueError for a file that cannot be read, an unused binding, a missing field, and a
    comparison that `comparison.check` refuses.
    """
    file = comparison_file(name)
    trusted = (*trusted, "pretrax.comparison")
    reader = GinReader(Comparison, search_paths, trusted).read([file], bindings)
    found = reader.settings()
    required = [n for n, field in FIELDS.items() if field.default is dataclasses.MISSING]
    if missing := [n for n in required if n not in found]:
        raise ValueError(
            f"{file} gives no {', no '.join(missing)}: bind "
            f"{' and '.join(f'comparison.Comparison.{n}' for n in missing)} in it."
        )
    comparison = _with_imports(_in_gin(check(Comparison(**found))), reader.imports)
    if Path(file).name == run_directory.COMPARISON:  # anybody may have written it
        lines = itertools.chain(comparison.base, *comparison.variants.values())
        for module in set(itertools.chain.from_iterable(map(imported_modules, lines))):
            trust.check_import(module, (*trusted, "pretrax"), file)
    return comparison


def _in_gin(comparison: Comparison) -> Comparison:
    """Returns a comparison whose lines such as `--objective=ul2` are gin files and bindings."""
    variants = {name: lines_in_gin(lines) for name, lines in comparison.variants.items()}
    return dataclasses.replace(comparison, base=lines_in_gin(comparison.base), variants=variants)


def _with_imports(comparison: Comparison, imports: Mapping[str, str]) -> Comparison:
    """Returns a comparison whose base begins with the imports that its bindings need.

    The bindings of base and variants are texts, which are read again whenever a run is planned, by
    other processes too. So they have to say themselves what the comparison's file imports.
    """
    lines = [*comparison.base, *itertools.chain.from_iterable(comparison.variants.values())]
    bindings = [line for line in lines if not line.endswith(".gin")]
    needed = [
        statement
        for statement, name in imports.items()
        if statement not in comparison.base and any(_names(name, binding) for binding in bindings)
    ]
    return dataclasses.replace(comparison, base=[*needed, *comparison.base])


def _names(module: str, binding: str) -> bool:
    """Returns whether a binding names a function of a module, by the name it is imported under.

    >>> _names("mine", "training.Run.objective = @mine.backward_lm")
    True
    >>> _names("mine", "training.Run.run_dir = 'mine'"), _names("mine", "not.mine.rate = 1")
    (False, False)
    """
    return re.search(rf"(^|[@/\s]){re.escape(module)}\.", binding) is not None


def named_comparisons() -> list[str]:
    """Returns the names of pretrax's own comparisons."""
    return sorted(path.stem for path in (GIN_CONFIGS / "comparisons").glob("*.gin"))


def comparison_file(name: str) -> str:
    """Returns the gin file of a comparison, by its name or its own path.

    >>> comparison_file("ul2"), comparison_file("mine.gin")
    ('comparisons/ul2.gin', 'mine.gin')

    Raises ValueError for a name that pretrax has not.
    """
    known = named_comparisons()
    if name.endswith(".gin"):
        return name
    if name in known:
        return f"comparisons/{name}.gin"
    near = difflib.get_close_matches(name, known, 3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(known)}."
    raise ValueError(f"There is no comparison {name!r}; {hint} A file of yours ends in .gin.")


def comparison_text(comparison: Comparison) -> str:
    """Returns a comparison as a gin file, from which `read_comparison` reads the same value."""
    macros = {"directory": "DIRECTORY", "seeds": "SEEDS"}
    settings = {name: getattr(comparison, name) for name in FIELDS}
    return gin_text(settings, Comparison, macros).text


def runs_of_variants(
    comparison: Comparison,
    search_paths: Sequence[str] = (),
    solved: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Run]:
    """Returns {variant: run}: the base's lines, then the variant's. Steps and seed are the base's.

    Args:
      solved: by variant, the `matching.solved_line` of those that have one. A number that has not
        been solved is 1, so that all else can be checked.

    Raises ValueError for lines that cannot be read, or that set what the comparison sets, for what
    cannot be tuned, and for variants without common data.
    """
    c = comparison
    base = read_lines(c.base, search_paths)
    if elsewhere := base.get("checkpoint_dir"):
        raise ValueError(
            f"comparison.Comparison.base sets training.Run.checkpoint_dir = {elsewhere!r}, in "
            "which all runs would overwrite each other's checkpoints: leave it out. Each run has "
            f"its own below {c.directory}."
        )
    found = {}
    for name, one in trained_variants(c).items():
        macro = macro_of(one.lines)
        number = [solved.get(name) or solved_line(macro, 1)] if macro else []
        try:
            fields = read_lines([*c.base, *one.lines, *number], search_paths)
            run = as_run(fields)
            if c.tuning is not None:
                values_for(c.tuning(), run)
        except ValueError as error:
            raise ValueError(f"The variant {name!r}: {error}") from error
        if changed := [field for field in SET if fields.get(field) != base.get(field)]:
            raise ValueError(
                f"The variant {name!r} sets training.Run.{changed[0]} = "
                f"{fields.get(changed[0])!r}, which a comparison sets by its directory, its budget "
                "and its seeds: leave it out, and name files of models/ and objectives/ instead of "
                "a whole run."
            )
        found[name] = run
    _check_common_data(found)
    return found


def _check_common_data(runs: Mapping[str, Run]) -> None:
    """Raises ValueError for variants whose figures would be of different text, or tokens."""
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
                f"The variants {first!r} and {name!r} have no common data, so no figure of theirs "
                f"can be compared: {'; '.join(differing)}. Give all variants one corpus and one "
                "vocabulary."
            )


def _may_differ(key: str, of: Mapping[str, object]) -> bool:
    """Returns whether variants may differ in a setting of a corpus: its path, and those of all."""
    return key in COMMON_DATA and of.get(key.rpartition(".")[0]) == COMMON_DATA[key]
