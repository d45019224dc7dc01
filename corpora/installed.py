"""A corpus of installed Python packages, which provides megabytes of text without a download."""

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
from .library import split_text
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
_SHORTEST = 200  # bytes; this leaves out stubs and empty modules
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
    """Sources and documentation of installed packages. Whole packages are held out.

        corpora.installed_packages.packages = ["jax", "numpy", "scipy"]
        corpora.installed_packages.heldout = ["optax"]

    The held-out text comes from other projects than the training text. The versions of the packages
    determine the text. The run prints these versions, so that pip can install them again. Tests,
    files of fewer than 200 bytes and copies of other files are left out.

    Args:
      packages: names of the distributions to train on, as in `pip list`.
      heldout: names of the held-out distributions.
      text: "prose" for documentation and docstrings, "code" for sources without docstrings, or
        "all" for unchanged sources and documentation.

    Raises ValueError for a package that is not installed, that has no text of this type, or that
    is named in both `packages` and `heldout`.
    """
    if both := sorted({*map(_canonical, packages)} & {*map(_canonical, heldout)}):
        raise ValueError(
            f"installed_packages.heldout and packages both name {', '.join(both)}, expected "
            "different packages: remove them from one of the two."
        )
    seen: set[int] = set()
    split = {"heldout": _documents(heldout, text, seen), "train": _documents(packages, text, seen)}
    texts = {name: split_text(split[name], [text]) for name in ("train", "heldout")}
    source = VocabularySource(
        texts=lambda: (d.read() for d in split["train"]), version=texts["train"].version
    )
    vocab = vocabulary(run_dir, source)
    return corpus_of(
        f"{text.capitalize()} of installed packages: {_versions([*packages, *heldout])}",
        tokenized(run_dir, texts, vocab),
        vocab,
        held_out=f"all of {_versions(heldout)}",
        seed=seed,
    )


def _documents(packages: Sequence[str], text: str, seen: set[int]) -> list[LibraryText]:
    """Returns the documents of named packages, and adds the checksums of their files to `seen`."""
    documents = []
    for name in packages:
        own = list(_package_documents(_distribution(name), name, text, seen))
        if not own:
            raise ValueError(f"The package {name} has no text of type {text!r}: leave it out.")
        documents += own
    return documents


def _package_documents(
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
        checksum = zlib.crc32(path.read_bytes())
        if path.stat().st_size >= _SHORTEST and checksum not in seen:
            seen.add(checksum)
            yield LibraryText(f"{name}/{file}", str(checksum), functools.partial(_read, path, text))


def _read(path: Path, text: str) -> str:
    source = path.read_text("utf-8-sig", "replace")
    return _FORMS[text](source) if path.suffix in _CODE else source


def _canonical(name: str) -> str:
    """Returns the normalized name of a package, as PEP 503 defines it.

    >>> _canonical("Orbax_checkpoint")
    'orbax-checkpoint'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def _distribution(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise ValueError(
            f"The package {name} is not installed: run `pip install {name}`, or leave it out of "
            "installed_packages."
        ) from None


def _versions(packages: Sequence[str]) -> str:
    return ", ".join(f"{name} {_distribution(name).version}" for name in packages)
