"""A corpus of the Python packages installed with pretrax: megabytes of text without a download."""

import functools
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import MinLen

from ..constraints import checked
from ..data.corpus import Corpus
from .library import text_of
from .python_library.python_sources import (
    SKIPPED_FOLDERS,
    LibraryText,
    docstrings,
    without_docstrings,
)
from .tokenizing import corpus_of, tokenized
from .vocabularies import Factory, VocabularySource

_PROSE = (".md", ".rst", ".txt")
_CODE = (".py",)
_SHORTEST = 200  # bytes: stubs and empty modules teach nothing
_FORMS: dict[str, Callable[[str], str]] = {
    "all": str,
    "prose": docstrings,
    "code": without_docstrings,
}


@checked
def installed_packages(
    run_dir: str,
    *,
    vocabulary: Factory,
    packages: Annotated[Sequence[str], MinLen(1)],
    heldout: Annotated[Sequence[str], MinLen(1)],
    text: Literal["all", "prose", "code"] = "all",
    seed: int = 0,
) -> Corpus:
    """Sources and documentation of installed packages, of which some are held out whole.

        corpora.installed_packages.packages = ["jax", "numpy", "scipy"]
        corpora.installed_packages.heldout = ["optax"]

    Held-out text is of other projects, and no file of one is on both sides. What it is follows from
    the versions alone, which the run prints and which pip can install again. Tests, and files of
    fewer than 200 bytes, are left out, and of equal files all but one.

    Args:
      packages, heldout: names of distributions, as `pip list` has them.
      text: "prose" is documentation and docstrings, "code" sources without docstrings, "all"
        sources and documentation as they are.
      The others: as for `text_files`.

    Raises ValueError for a package that is not installed, has no such text, or is on both sides.
    """
    if both := sorted({*map(_canonical, packages)} & {*map(_canonical, heldout)}):
        raise ValueError(
            f"installed_packages.heldout has {', '.join(both)}, which packages has too: give each "
            "on one side."
        )
    seen: set[int] = set()
    split = {"heldout": _documents(heldout, text, seen), "train": _documents(packages, text, seen)}
    texts = {name: text_of(split[name], [text]) for name in ("train", "heldout")}
    made = vocabulary(run_dir, VocabularySource(texts=lambda: (d.read() for d in split["train"])))
    return corpus_of(
        f"{text.capitalize()} of installed packages: {_versions([*packages, *heldout])}",
        tokenized(run_dir, texts, made),
        made,
        held_out=f"all of {_versions(heldout)}",
        seed=seed,
    )


def _documents(packages: Sequence[str], text: str, seen: set[int]) -> list[LibraryText]:
    """Returns the documents of packages by name; adds the checksums of their files to `seen`."""
    documents = []
    for name in packages:
        some = list(_of_package(_distribution(name), name, text, seen))
        if not some:
            raise ValueError(f"The package {name} has no text ({text}): leave it out.")
        documents += some
    return documents


def _of_package(
    package: Distribution, name: str, text: str, seen: set[int]
) -> Iterator[LibraryText]:
    kinds = _CODE if text == "code" else _CODE + _PROSE
    for file in sorted(map(str, package.files or ())):
        parts = Path(file).parts
        if not file.endswith(kinds) or SKIPPED_FOLDERS.intersection(parts):
            continue
        if ".." in parts or parts[0].endswith((".dist-info", ".data")):
            continue
        path = Path(str(package.locate_file(file)))
        known = zlib.crc32(path.read_bytes())
        if path.stat().st_size >= _SHORTEST and known not in seen:
            seen.add(known)
            yield LibraryText(f"{name}/{file}", str(known), functools.partial(_read, path, text))


def _read(path: Path, text: str) -> str:
    source = path.read_text("utf-8-sig", "replace")
    return _FORMS[text](source) if path.suffix in _CODE else source


def _canonical(name: str) -> str:
    """
    >>> _canonical("Orbax_checkpoint")
    'orbax-checkpoint'
    """
    return re.sub(r"[-_.]+", "-", name).lower()  # as PEP 503 has it


def _distribution(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise ValueError(
            f"The package {name} is not installed here: pip install it, or leave it out of "
            "installed_packages."
        ) from None


def _versions(packages: Sequence[str]) -> str:
    return ", ".join(f"{name} {_distribution(name).version}" for name in packages)
