#!/usr/bin/env python3
"""Checks the files that a command names, and packs your project and pretrax for its hosts.

    python3 launch/pack.py --archive=sent.tar.gz -- train --gin_file=my_run.gin --module=my_tasks.py

The launch scripts call this script before they create anything. The archive contains `project/`,
the folder that you start from, and `pretrax/`, the checkout of this script. Both are as they are on
disk, so you need not commit anything. `PRETRAX` names another checkout or a wheel.

With `--installed` nothing is packed. The command will run in this folder, on a disk that its hosts
share, with the pretrax of the Python that runs this script.

Standard output has one line with the requirement to install, such as `./pretrax[all]`. Everything
else goes to standard error. This file needs only Python, since the machine that you start from may
not have pretrax.
"""

from __future__ import annotations

import argparse
import ast
import functools
import glob
import importlib.metadata
import importlib.util
import io
import os
import re
import subprocess
import sys
import tarfile
import tokenize
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

MAX_FILE_BYTES = 10 * 2**20  # bytes; larger files are data, which belongs in a bucket
MAX_PROJECT_BYTES = 100 * 2**20
SHOWN = 20  # largest number of files in a printed list
UNLISTED = "hidden, or made by a program"  # a reason that is not printed
NOT_PACKAGED = ("tests", "docs", "benchmarks")  # folders of a checkout that are not installed


class Mistake(Exception):
    """A mistake of the user, explained by the message."""


class Sources(NamedTuple):
    """The pretrax that will run the command."""

    path: Path  # a checkout, a wheel, or the folder of an installed package
    extras: set[str]
    files: list[str]  # paths of its gin files and of its commands, such as "cli/train.py"

    @property
    def gin_files(self) -> set[str]:
        """Names that gin files can be given by: "runs/decoder.gin", also with "gin_configs/"."""
        full = {path for path in self.files if path.startswith("gin_configs/")}
        return full | {path[len("gin_configs/") :] for path in full}

    @property
    def commands(self) -> set[str]:
        """The commands: "train", "evaluate", …"""
        matches = (re.fullmatch(r"cli/([a-z]\w*)\.py", path) for path in self.files)
        return {match[1] for match in matches if match}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--archive", help="the file to write")
    parser.add_argument("--extras", default="", help="extras of pretrax, such as [seqio]")
    parser.add_argument("--installed", action="store_true", help="check the command, pack nothing")
    parser.add_argument("command", nargs="+", help="the words after `pretrax`")
    options = parser.parse_args()
    try:
        print((check_installed if options.installed else pack)(options))
    except Mistake as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {error.filename}: {error.strerror}")


def pack(options: argparse.Namespace) -> str:
    """Writes the archive, prints its contents, and returns the requirement to install."""
    folder = Path.cwd()
    home = Path.home().resolve()
    if folder in (home, *home.parents):
        raise Mistake(
            f"The whole folder {folder} would be sent. Start from the folder of your project."
        )
    check_git(folder)
    sources = find_sources(os.environ.get("PRETRAX"))
    extras = read_extras(options.extras, sources)
    named = named_files(options.command, folder, sources, relative=True)
    others, left_out = files_below(folder, sources.path)
    sent = [*sorted(named), *sorted({*others} - named)]
    size = sum(os.path.getsize(folder / name) for name in sent)
    if size > MAX_PROJECT_BYTES:
        raise Mistake(
            f"{folder} holds {in_units(size)} to send, expected at most "
            f"{in_units(MAX_PROJECT_BYTES)}. Move data to a bucket, or start from a smaller "
            f"folder. The largest files: {', '.join(largest(folder, sent))}."
        )
    say(f"Your project: {folder} ({len(sent)} files, {in_units(size)})")
    say("is sent to ~/project on every host, where the command runs:")
    say_list(sent)
    say("Not sent: what git ignores, hidden files, and")
    say_list([f"{name} ({reason})" for name, reason in sorted(left_out.items())])
    for name in unsent_data(options.command, folder, sent):
        say(f"The command names {name}, which is here and is not sent.")
    say(f"pretrax: {describe(sources.path)}, with the extras {extras or '(none)'}")
    if options.archive:
        write_archive(options.archive, folder, sent, sources.path)
    package = sources.path.name if sources.path.is_file() else "pretrax"
    return f"./{package}{extras}"


def check_installed(options: argparse.Namespace) -> str:
    """Prints where the command will run, and returns the requirement of its environment."""
    sources = installed_sources()
    extras = read_extras(options.extras, sources)
    if absent := absent_packages(extras):
        raise Mistake(
            f"{sys.prefix} lacks {', '.join(absent)}, which EXTRAS={extras} asks for. Install "
            f"pretrax there again, with {extras} after its name or path."
        )
    named = named_files(options.command, Path.cwd(), sources, relative=False)
    say(f"Nothing is copied. The command runs in {Path.cwd()}, which every node must share,")
    say("and reads its files when the job starts:")
    say_list(sorted(named))
    say(f"pretrax: {sources.path}, of the environment {sys.prefix}")
    return f"pretrax{extras}"


# --- pretrax --------------------------------------------------------------------------------------


def find_sources(given: str | None) -> Sources:
    """Returns the given checkout or wheel; None means the checkout of this script."""
    path = Path(given).expanduser().resolve() if given else Path(__file__).resolve().parents[1]
    if path.suffix == ".whl" and path.is_file():
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
            extras = re.findall(
                r"^Provides-Extra: (.*)$", wheel.read(metadata).decode(), re.MULTILINE
            )
        within = [name.partition("/")[2] for name in names]
        return Sources(path, {extra.strip() for extra in extras}, within)
    setup, project = path / "setup.py", path / "pyproject.toml"
    if not project.is_file() or 'name = "pretrax"' not in project.read_text(encoding="utf-8"):
        raise Mistake(
            f"{path} is not a checkout of pretrax. Set PRETRAX to the path of a checkout, or of a "
            "wheel (pretrax-….whl)."
        )
    return Sources(path, extras_of(setup), files_of_checkout(path))


def installed_sources() -> Sources:
    """Returns the pretrax that this Python imports."""
    spec = importlib.util.find_spec("pretrax")
    if spec is None or spec.origin is None:
        raise Mistake(
            f"{sys.executable} has no pretrax. Activate an environment that has it, or make one in "
            ".venv of this folder."
        )
    path = Path(spec.origin).parent
    try:
        metadata = importlib.metadata.metadata("pretrax")
    except importlib.metadata.PackageNotFoundError:
        raise Mistake(
            f"{sys.executable} finds pretrax in {path}, where it is not installed: there is no "
            f"command `pretrax`. Install it: pip install -e {path}."
        ) from None
    return Sources(path, set(metadata.get_all("Provides-Extra") or ()), files_of_checkout(path))


def files_of_checkout(root: Path) -> list[str]:
    paths = (*root.glob("gin_configs/*/*.gin"), *root.glob("cli/*.py"))
    return [str(path.relative_to(root)) for path in paths]


def extras_of(setup: Path) -> set[str]:
    """Returns the extras that a setup.py declares."""
    for node in ast.walk(ast.parse(setup.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "extras_require":
            assert isinstance(node.value, ast.Dict)
            return {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
    return set()


def read_extras(text: str, sources: Sources) -> str:
    """Returns extras in brackets for pip: "seqio,grain" becomes "[seqio,grain]"."""
    names = [name.strip() for name in text.strip().strip("[]").split(",") if name.strip()]
    for name in names:
        if name not in sources.extras:
            raise Mistake(
                f"EXTRAS={text}: pretrax has no extra {name!r}. Expected one or more of "
                f"{', '.join(sorted(sources.extras))}."
            )
    return f"[{','.join(names)}]" if names else ""


def absent_packages(extras: str) -> list[str]:
    """Returns the missing packages that extras of the installed pretrax require."""
    absent = []
    for requirement in importlib.metadata.requires("pretrax") or ():
        package, _, marker = requirement.partition(";")
        extra = re.search(r"extra == ['\"](.*?)['\"]", marker)
        if not extra or extra[1] not in extras.strip("[]").split(","):
            continue
        name = re.match(r"[\w.-]+", package)
        assert name
        try:
            importlib.metadata.version(name[0])
        except importlib.metadata.PackageNotFoundError:
            absent.append(name[0])
    return absent


def describe(path: Path) -> str:
    """Returns a description of a wheel or a checkout."""
    if path.is_file():
        return f"the wheel {path}"
    commit = git(path, "rev-parse", "--short=8", "HEAD")
    if commit is None:
        return f"the checkout {path}"
    changed = git(path, "status", "--porcelain")
    ending = ", with changes that are not committed" if changed else ""
    return f"the checkout {path} at {commit.strip()}{ending}"


# --- the files that a command names ---------------------------------------------------------------


PARTS = ("model", "corpus", "objective")  # options that name a gin file or a part of a run


def named_files(
    command: Sequence[str], folder: Path, sources: Sources, *, relative: bool
) -> set[str]:
    """Returns the user's own modules and gin files that a command names, and files they include.

    With `relative`, the paths must be within the folder, since only the folder is sent.

    Raises Mistake for a file that does not exist or would not be sent, and for an unknown command.
    """
    if command[0] not in sources.commands:
        raise Mistake(
            f"Got the command {command[0]!r}, expected one of "
            f"{', '.join(sorted(sources.commands))}, such as: train --gin_file=my_run.gin"
        )
    options = list(split_options(command))
    searched = [
        value
        for name, text in options
        if name == "gin_search_paths"
        for value in filter(None, text.split(","))
    ]
    collected = _NamedFiles(folder, sources, searched, relative)
    for name, text in options:
        if name == "gin_bindings":
            collected.read_gin(text, folder)
        elif name == "gin_file" or (name in ("", *PARTS) and text.endswith(".gin")):
            collected.add_gin_file(text, folder)
        elif name == "objective" and "." in text:  # the user's own MODULE.BUILDER
            collected.add_module(text.rpartition(".")[0])
        else:
            for value in texts_in(text):
                collected.add_value(name, value)
    return collected.files


def split_options(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields (name, value) of the options of a command, and ("", word) of other words.

    >>> list(split_options(["train", "--module=a.py", "--gin_file", "my.gin"]))
    [('', 'train'), ('module', 'a.py'), ('gin_file', 'my.gin')]
    """
    waiting = ""
    for word in command:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            waiting = "" if equals else name
            if equals:
                yield name, value
        else:
            yield waiting, word
            waiting = ""


def texts_in(value: str) -> list[str]:
    """Returns the texts in the value of an option of the command line.

    >>> texts_in("['a.py', 'b']"), texts_in("a.py")
    (['a.py', 'b'], ['a.py'])
    """
    try:
        read = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return [value]
    values = read if isinstance(read, (list, tuple)) else [read]
    return [text for text in values if isinstance(text, str)] or [value]


def texts_of_gin(text: str) -> Iterator[tuple[str, str]]:
    """Yields (setting or "include", text) of all texts in lines of gin.

    >>> list(texts_of_gin("include 'a.gin'\\nmine.module = ['b.py', 'c']  # or 'd.py'"))
    [('include', 'a.gin'), ('mine.module', 'b.py'), ('mine.module', 'c')]
    """
    name = ""
    in_value = False
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NEWLINE:
                name = ""
                in_value = False
            elif token.type == tokenize.STRING:
                yield name, ast.literal_eval(token.string)
            elif token.string == "=":
                in_value = True
            elif not in_value and token.type in (tokenize.NAME, tokenize.OP):
                name += token.string
    except (tokenize.TokenError, SyntaxError):
        return  # pretrax will report what is wrong with the file


class _NamedFiles:
    """Collects the files of a project that a command names."""

    def __init__(self, folder: Path, sources: Sources, searched: Sequence[str], relative: bool):
        self._folder = folder
        self._sources = sources
        self._relative = relative
        self._searched = [folder / self._usable(path) for path in searched]
        self.files: set[str] = set()

    def add(self, path: str) -> None:
        """Adds a file by its path relative to the folder."""
        full = Path(os.path.abspath(self._folder / self._usable(path)))
        if not full.is_file():
            raise Mistake(f"There is no file {path} in {self._folder}: the command names it.")
        if self._relative and self._folder not in full.parents:
            raise Mistake(
                f"{path} is outside of {self._folder}, and only this folder is sent. Start from a "
                "folder that holds all of your files, or copy it here."
            )
        shown = os.path.relpath(full, self._folder)
        if shown in self.files:
            return
        self.files.add(shown)
        if full.suffix == ".py":
            self._add_imports(full)

    def _add_imports(self, file: Path) -> None:
        """Adds the files that a module imports from its own folder or from the project folder."""
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            return  # pretrax will report what is wrong with the file
        for name in imported_names(tree):
            parts = name.replace(".", "/")
            for folder in (file.parent, self._folder):
                for path in (folder / f"{parts}.py", folder / parts / "__init__.py"):
                    if path.is_file() and self._folder in path.parents:
                        self.add(os.path.relpath(path, self._folder))

    def _usable(self, path: str) -> str:
        """Returns a path. Raises Mistake for an absolute one, if the hosts get a copy."""
        if self._relative and Path(path).is_absolute():
            raise Mistake(
                f"{path} is an absolute path, which the hosts do not have. Give it relative to "
                f"{self._folder}."
            )
        return path

    def add_value(self, name: str, value: str) -> None:
        """Adds the file that the value of a setting names.

        A setting of modules must name files that exist. Any other value that ends in .py may be
        text, or data such as "src/**/*.py": it counts if it is a file of the folder.
        """
        if name.rpartition(".")[2].lower() in ("module", "trust"):
            if value.endswith(".py"):
                self.add(value)
            else:
                self.add_module(value)
        elif value.endswith(".py") and not Path(value).is_absolute():
            full = Path(os.path.abspath(self._folder / value))
            if self._folder in full.parents and full.is_file():
                self.add(value)

    def add_module(self, name: str) -> None:
        """Adds the file of a module that a dotted name gives."""
        if name == "None" or name.split(".")[0] == "pretrax":
            return
        parts = name.replace(".", "/")
        for path in (f"{parts}.py", f"{parts}/__init__.py"):
            if (self._folder / path).is_file():
                self.add(path)
                return
        is_elsewhere = not self._relative and importlib.util.find_spec(name.split(".")[0])
        if not is_elsewhere and not (self._folder / parts).is_dir():
            raise Mistake(
                f"There is no module {name!r} in {self._folder}: expected {parts}.py or the folder "
                f"{parts}."
            )

    def add_gin_file(self, name: str, including_folder: Path) -> None:
        """Adds the user's gin file and the files that it names.

        Folders are searched in the same order as in `settings.gin_reader`.

        Args:
          including_folder: folder of the file that includes this file, or the project's folder.
        """
        self._usable(name)
        folders = [including_folder, *self._searched]
        if name not in self._sources.gin_files:
            folders.append(self._folder)
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is None:
            if name in self._sources.gin_files:
                return
            searched = ", ".join(dict.fromkeys(map(str, folders)))
            raise Mistake(
                f"There is no gin file {name} in {searched}, or in gin_configs of "
                f"{self._sources.path}. Correct the name, or give its folder by --gin_search_paths."
            )
        shown = os.path.relpath(path, self._folder)
        if shown not in self.files:
            self.add(shown)
            self.read_gin(path.read_text(encoding="utf-8"), path.parent)

    def read_gin(self, text: str, including_folder: Path) -> None:
        """Adds the files that lines of gin include or give as values."""
        for name, value in texts_of_gin(text):
            if name == "include":
                self.add_gin_file(value, including_folder)
            else:
                self.add_value(name, value)


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Yields the modules that a file may import, by their names from its folder.

    >>> sorted(imported_names(ast.parse("import a.b\\nfrom c import d\\nfrom . import e")))
    ['a', 'a.b', 'c', 'c.d', 'e']
    """
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level <= 1:
            start = [node.module] if node.module else []
            names = [".".join([*start, alias.name]) for alias in node.names]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:i]) for i in range(1, len(parts) + 1))


def unsent_data(command: Sequence[str], folder: Path, sent: Sequence[str]) -> list[str]:
    """Returns the paths in a command that exist here but are not sent."""
    folders = {str(parent) for name in sent for parent in Path(name).parents}
    found = []
    for name, text in split_options(command):
        for pattern in (part.strip() for value in texts_in(text) for part in value.split(",")):
            if not name or not pattern or re.match(r"\w+://", pattern):
                continue
            for path in glob.glob(os.path.join(glob.escape(str(folder)), pattern)):
                if os.path.relpath(path, folder) not in {*sent, *folders}:
                    found.append(os.path.relpath(path, folder) if path != pattern else path)
    return found


# --- the files of a folder ------------------------------------------------------------------------


def files_below(folder: Path, sources: Path) -> tuple[list[str], dict[str, str]]:
    """Returns the files of a folder that are sent, and why the other parts are left out."""
    listed = listed_by_git(folder)
    sent: list[str] = []
    left_out: dict[str, str] = {}
    for name in walk(folder, sources) if listed is None else listed:
        parents = [str(parent) for parent in Path(name).parents][-2::-1]
        reasons = ((part, reason_of(folder / part, sources)) for part in (*parents, name))
        part, reason = next((found for found in reasons if found[1]), (name, ""))
        if not reason and (folder / name).is_dir():  # git lists no files of another repository
            reason = "a separate repository"
        if not reason:
            sent.append(name)
        elif reason != UNLISTED:
            left_out[part] = reason
    return sent, left_out


def check_git(folder: Path) -> None:
    """Raises Mistake if a folder is in a git repository, but git cannot list its ignored files."""
    for root in (folder, *folder.parents):
        if (root / ".git").exists() and git(folder, "rev-parse") is None:
            raise Mistake(
                f"git cannot read the repository {root}, so files that it ignores would be sent. "
                f"Run `git -C {folder} status` to see the reason."
            )


def listed_by_git(folder: Path) -> list[str] | None:
    """Returns the files that git does not ignore.

    Returns None for a folder outside a repository, or that its repository ignores as a whole.
    """
    listed = git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed == "" and git(folder.parent, "check-ignore", "--quiet", folder.name) is not None:
        return None
    return None if listed is None else sorted(filter(None, listed.split("\0")))


def walk(folder: Path, sources: Path) -> Iterator[str]:
    """Yields the files of a folder, and the subfolders that are left out."""
    for root, folders, names in os.walk(folder):
        for name in sorted(folders):
            path = Path(root, name)
            if reason_of(path, sources):
                folders.remove(name)
                yield str(path.relative_to(folder))
        yield from (str(Path(root, name).relative_to(folder)) for name in sorted(names))


@functools.cache
def reason_of(path: Path, sources: Path) -> str:
    """Returns why a file or a folder is not sent; "" if it is sent."""

    def holds(*names: str) -> bool:
        return all((path / name).exists() for name in names)

    if path.name.startswith(".") or path.name in ("__pycache__", "node_modules"):
        return UNLISTED
    if path.is_file():
        size = path.stat().st_size
        large = f"{in_units(size)}: files over {in_units(MAX_FILE_BYTES)} belong in a bucket"
        return large if size > MAX_FILE_BYTES else ""
    if not path.is_dir():
        return "not a file, or removed"
    if path.is_symlink():
        return "a link to a folder"
    if path == sources:
        return "pretrax, which is sent separately"
    if holds("pyvenv.cfg"):
        return "a Python environment"
    if holds("config.gin", "vocabulary.json") or holds("config.gin", "run_id"):
        return "a run directory"
    if holds("comparison.gin"):
        return "a comparison"
    return "a token store" if holds("store.json") else ""


def write_archive(archive: str, folder: Path, sent: Sequence[str], sources: Path) -> None:
    """Writes the files of a project and pretrax into one archive."""

    def nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        return entry

    with tarfile.open(archive, "w:gz", compresslevel=6, dereference=True) as tar:
        empty = tarfile.TarInfo("project")
        empty.type, empty.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(empty)
        for name in sent:
            tar.add(folder / name, f"project/{name}", filter=nobody)
        if sources.is_file():
            tar.add(sources, sources.name, filter=nobody)
            return
        for name in files_below(sources, sources)[0]:
            if Path(name).parts[0] not in NOT_PACKAGED:
                tar.add(sources / name, f"pretrax/{name}", filter=nobody)


def git(folder: Path, *words: str) -> str | None:
    """Returns the output of git for a folder; None without git or outside a repository."""
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            check=True,
            text=True,
            errors="surrogateescape",  # a name need not be UTF-8
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


# --- words ----------------------------------------------------------------------------------------


def say(line: str) -> None:
    print(line, file=sys.stderr)


def say_list(lines: Sequence[str]) -> None:
    for line in lines[:SHOWN]:
        say(f"  {line}")
    if len(lines) > SHOWN:
        say(f"  and {len(lines) - SHOWN} more")
    if not lines:
        say("  nothing else")


def in_units(size: int) -> str:
    if size < 1024:
        return f"{size} bytes"
    return f"{size / 2**10:.1f} kB" if size < 2**20 else f"{size / 2**20:.1f} MB"


def largest(folder: Path, names: Sequence[str]) -> list[str]:
    by_size = sorted(names, key=lambda name: -os.path.getsize(folder / name))
    return [f"{name} ({in_units(os.path.getsize(folder / name))})" for name in by_size[:3]]


if __name__ == "__main__":
    main()
