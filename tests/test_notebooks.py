"""All cells of the notebooks in docs/ run in an empty folder."""

import importlib
import json
import os
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

from tests.training.tiny import ROOT, environment

# Words in the output of each notebook if it works as described.
SAYS = {
    "see_an_objective": ["[MASK] hides a token", "50% hidden", "The page is span_corruption.html"],
    "write_an_objective": ["backward_lm", "Done. runs/backward holds"],
    "compare_two": ["causal 0 ", "prefix 1 ", "Does a prefix that is read from both sides help?"],
}
# Replacements in the cells of notebooks, so that the tests train models for only a few steps.
SHORTER = {
    "number = 60_000": "number = 6_000\neval_metrics.in_context.examples = 8",
    "--steps=20": "--steps=2",
}


def test_every_notebook_has_a_test():
    assert {path.stem for path in (ROOT / "docs/notebooks").glob("*.ipynb")} == set(SAYS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAYS)
def test_notebook_runs_and_prints_the_expected_output(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    for variable, value in environment().items():
        monkeypatch.setenv(variable, value)
    book = nbformat.read(ROOT / f"docs/notebooks/{name}.ipynb", as_version=4)
    for cell in book.cells:
        for written, shorter in SHORTER.items():
            cell.source = cell.source.replace(written, shorter)
    client = nbclient.NotebookClient(
        book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    printed = "".join(
        output.get("text", "") + "".join(output.get("data", {}).get("text/markdown", ""))
        for cell in book.cells
        for output in cell.get("outputs", [])
    )
    assert not [words for words in SAYS[name] if words not in printed], printed
    assert "error:" not in printed and "Traceback" not in printed, printed


@pytest.mark.parametrize("name", SAYS)
def test_page_has_the_cells_and_outputs_of_its_notebook(name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    pages = importlib.import_module("notebook_pages")
    book = json.loads((ROOT / f"docs/notebooks/{name}.ipynb").read_text(encoding="utf-8"))
    page = (ROOT / f"docs/notebooks/{name}.md").read_text(encoding="utf-8")
    assert "\x1b" not in page and str(Path.home()) not in page
    for cell in book["cells"]:
        text = pages.code(cell) if cell["cell_type"] == "code" else pages.prose(cell)
        assert text.split("\n\n")[-1] in page, f"{text}: run python docs/notebook_pages.py"
    assert all(words in page for words in SAYS[name])
