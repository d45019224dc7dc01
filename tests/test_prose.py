"""The prose of the repository follows the rules of style that a program can check."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.prose import Passage, passages, problems

ROOT = Path(__file__).resolve().parents[1]
ENDINGS = (".py", ".md", ".gin")
# These files consist of phrases that are banned elsewhere.
ABOUT_PROSE = {"tests/prose.py", "tests/test_prose.py"}


def tracked_files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.split() if name not in ABOUT_PROSE]


FOLDERS = sorted({name.split("/")[0] for name in tracked_files() if name.endswith(ENDINGS)})


@pytest.mark.sampled
@pytest.mark.parametrize("folder", FOLDERS)
def test_prose_follows_the_style_rules(folder, monkeypatch):
    monkeypatch.chdir(ROOT)
    files = [
        Path(name)
        for name in tracked_files()
        if name.split("/")[0] == folder and name.endswith(ENDINGS)
    ]
    found = [
        f"{passage.path}:{passage.line}: {problem}"
        for file in files
        for passage in passages(file)
        for problem in problems(passage)
    ]
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_spelling_is_american():
    pytest.importorskip("codespell_lib", reason="pip install codespell")
    files = [name for name in tracked_files() if name.endswith((*ENDINGS, ".toml", ".yml", ".sh"))]
    checked = subprocess.run(
        [sys.executable, "-m", "codespell_lib", *files], cwd=ROOT, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    "kind, text",
    [
        ("paragraph", "Masks are drawn anew in every epoch."),
        ("paragraph", "A rate of .15 is usual."),
        ("comment", "Of short texts nothing is left."),
        ("message", "runs/mine is no run directory."),
        ("help", "of embeddings: first, mean or last"),
        ("docstring", " ".join(["word"] * 36)),
        ("docstring", 'x is the text, and M " "the set o" of hidden positions.'),
        ("docstring", 'Pair("The mean.", "def mean(values):'),
    ],
)
def test_style_violations_are_found(kind, text):
    assert problems(Passage("a.md", 1, kind, text))


@pytest.mark.parametrize(
    "kind, text",
    [
        ("paragraph", "There are no more than 35 words; `anew` and `.15` are code."),
        ("heading", "Of mice and models"),
        ("comment", "The loss is no longer finite."),
        ("help", "how to pool hidden states: first, mean or last"),
        ("docstring", " ".join(["word"] * 35)),
    ],
)
def test_plain_sentences_pass(kind, text):
    assert problems(Passage("a.md", 1, kind, text)) == []


def test_every_kind_of_prose_is_checked(tmp_path):
    python = tmp_path / "a.py"
    python.write_text(
        '"""Module."""\n\n# Two lines\n# of a comment.\nadd("--x", help="number of rows")\n'
        'raise ValueError(f"Got {x}, " "expected 1.")\n'
    )
    assert [(p.line, p.kind, p.text) for p in passages(python)] == [
        (1, "docstring", "Module."),
        (6, "message", "Got VALUE, expected 1."),
        (5, "help", "number of rows"),
        (3, "comment", "Two lines of a comment."),
    ]
    page = tmp_path / "a.md"
    page.write_text(
        "# Head\n\nText, and\nmore.\n\n```sh\ncode\n```\n\n| a | b |\n|---|---|\n- item\n"
    )
    assert [(p.line, p.kind, p.text) for p in passages(page)] == [
        (1, "heading", "Head"),
        (3, "paragraph", "Text, and more."),
        (10, "cell", "a"),
        (10, "cell", "b"),
        (12, "paragraph", "- item"),
    ]
    gin = tmp_path / "a.gin"
    gin.write_text("# What it is.\na = 1  # one\n")
    assert [(p.line, p.kind, p.text) for p in passages(gin)] == [
        (1, "comment", "What it is."),
        (2, "comment", "one"),
    ]
