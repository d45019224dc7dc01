"""Reads a `Run` from gin files, and from the config.gin of a run directory."""

import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..settings import run_directory, run_ids, trust
from ..settings.directories import check_links
from ..settings.gin_reader import GinReader, read_settings
from .run import FIELDS, Run, is_required

# How to give a field of `Run` that has no default.
_REMEDIES = {
    "run_dir": "--gin.training.Run.run_dir=runs/mine",
    "corpus": "--corpus=python_library, or another name in gin_configs/corpora",
    "objective": "--objective=ul2, or another that `pretrax show --list` prints",
    "model": "--model=t5_1_1_small, or another name in gin_configs/models",
    "optimizer": "training.Run.optimizer = @optimizers.adamw, in a gin file",
    "steps": "--gin.training.Run.steps=1000",
    "sequence_lengths": "--gin.training.Run.sequence_lengths=\"{'decoder': 256}\"",
    "batch_size": "--gin.training.Run.batch_size=16",
}


def read_run(
    files: Sequence[str],
    bindings: Sequence[str] = (),
    search_paths: Sequence[str] = (),
    trusted: Collection[str] = (),
) -> Run:
    """Returns the run that gin files and additional bindings describe.

        read_run(["runs/decoder.gin", "objectives/ul2.gin"], ["STEPS = 20"])

    Args:
      files: paths, or names in the project's `gin_configs`; later files override earlier files.
      bindings: lines of gin, which override the files.
      search_paths: more folders in which to look for the files and their includes.

    Raises ValueError for a file that cannot be read, an unused binding, or a missing field. Also
    raises ValueError for the config.gin of a run that was moved, unless a RUN_DIR is given, and for
    a config.gin that sets a field of `trust.OUTSIDE`.
    """
    return run_in(GinReader(Run, search_paths, trusted).read(files, bindings))


def run_in(reader: GinReader) -> Run:
    """Returns the run in the files and bindings of a reader. Raises ValueError as `read_run`."""
    fields = reader.settings()
    run = as_run(fields)
    _check_not_moved(reader)
    _check_outside(reader, fields, run.run_dir)
    return run


read_fields = functools.partial(read_settings, Run)  # some fields may be missing


def read_lines(lines: Sequence[str], search_paths: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the fields of a `Run` from a list of files and bindings, read in order.

        read_lines(["runs/decoder.gin", "STEPS = 20", "objectives/ul2.gin"])

    A line that ends in `.gin` names a file. Any other line is a binding. Later lines override
    earlier lines.
    """
    reader = GinReader(Run, search_paths)
    for line in lines:
        reader.read([line]) if line.endswith(".gin") else reader.read((), [line])
    fields = reader.settings()
    _check_outside(reader, fields, None)
    return fields


def as_run(fields: Mapping[str, Any]) -> Run:
    """Returns the run with these fields. Raises ValueError if a required field is missing."""
    missing = [name for name in FIELDS if is_required(name) and name not in fields]
    if missing:
        remedies = "".join(f"\n  {name}: {_REMEDIES[name]}" for name in missing)
        raise ValueError(f"The gin files give no {', no '.join(missing)}. Give it by:{remedies}")
    return Run(**fields)


def read_directory(run_dir: str, trusted: Collection[str] = ()) -> dict[str, Any]:
    """Returns the fields of the `Run` in a run directory's config.gin.

    The directory of an imported model has only a model; `run_of_directory` requires all fields.

    Args:
      trusted: modules that config.gin may name, see `settings.trust`.

    Raises ValueError if `run_dir` is not a run directory, or another version wrote it. Also raises
    ValueError if it names modules that are not trusted, or links to files elsewhere.
    """
    run_directory.check_is_run(run_dir)
    check_links(run_dir)
    return read_fields([str(Path(run_dir) / run_directory.CONFIG)], trusted=trusted)


def run_of_directory(run_dir: str, fields: Mapping[str, Any]) -> Run:
    """Returns the run of a directory, which may have been moved, from its `read_directory`.

    Raises ValueError if the directory holds only a model.
    """
    if "corpus" not in fields or "objective" not in fields:
        raise ValueError(
            f"{run_dir}/config.gin holds a model without a corpus and an objective, such as an "
            "imported model: expected the directory of a run of `pretrax train`."
        )
    return as_run({**fields, "run_dir": run_dir})


def _check_not_moved(reader: GinReader) -> None:
    """Raises ValueError if a config.gin names another run directory than its own folder."""
    path, directory = reader.origin("run_dir")
    if path is None or path.name != run_directory.CONFIG or not isinstance(directory, str):
        return
    if Path(directory).resolve() != path.parent:
        raise ValueError(
            f"{path} belongs to a run in the directory {directory}, not in its own folder. To "
            f"continue the moved run, give --run_dir={path.parent}. For a new run, give another "
            "RUN_DIR."
        )


def _check_outside(reader: GinReader, fields: Mapping[str, Any], run_dir: str | None) -> None:
    """Raises ValueError if the config.gin of a run directory sets a field of `trust.OUTSIDE`.

    It may set `checkpoint_dir` if that folder belongs to the run in `run_dir`.
    """
    for name in trust.OUTSIDE:
        file = reader.foreign_file(name)
        if file is None:
            continue
        value = fields.get(name)
        if name == "checkpoint_dir" and run_dir and value and run_ids.owns(run_dir, value):
            continue
        trust.check_outside(name, value, FIELDS[name].default, str(file), f"training.Run.{name}")
