"""Runs the notebooks of docs/notebooks, and writes each as a page with its outputs.

    python docs/notebook_pages.py                        all notebooks, some minutes on two cores
    python docs/notebook_pages.py see_an_objective       only this notebook

The notebooks are committed without outputs. GitHub shows the notebooks, and the site these pages.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "notebooks"


def main(names: Sequence[str]) -> None:
    os.environ |= {"JAX_PLATFORMS": "cpu", "NO_COLOR": "1", "COLUMNS": "100"}
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            path.with_suffix(".md").write_text(page(run(path), path.name), encoding="utf-8")
            print(f"docs/notebooks/{path.stem}.md")


def run(path: Path) -> Mapping[str, Any]:
    """Returns a notebook with the outputs of all cells, run in an empty folder."""
    import nbclient  # an extra, which only this function needs
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        nbclient.NotebookClient(notebook, timeout=1800, resources=resources).execute()
    return notebook


def page(notebook: Mapping[str, Any], file: str) -> str:
    """Returns a notebook as a page in Markdown."""
    title, *cells = notebook["cells"]
    heading, about = prose(title).split("\n\n", 1)
    parts = [
        heading,
        f"This page is the notebook [{file}]({file}) with its outputs.",
        about,
        *(part for cell in cells for part in _parts(cell)),
    ]
    return "\n\n".join(parts) + "\n"


def _parts(cell: Mapping[str, Any]) -> Iterator[str]:
    if cell["cell_type"] == "markdown":
        yield prose(cell)
        return
    yield code(cell)
    outputs = cell.get("outputs", [])
    if printed := _printed(outputs):
        yield f"```text\n{printed}\n```"
    for output in outputs:
        data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
        if "text/markdown" in data:
            yield _nested(data["text/markdown"])
        elif output["output_type"] == "execute_result":
            if not (text := data.get("text/plain", "<")).startswith("<"):  # "<IFrame at …>"
                yield "```text\n" + text.strip("\n") + "\n```"


def source(cell: Mapping[str, Any]) -> str:
    """Returns the source of a cell, which files have as lines."""
    return "".join(cell["source"]).strip()


def prose(cell: Mapping[str, Any]) -> str:
    """Returns the text of a cell, in which links lead to pages instead of notebooks."""
    return re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.md)", source(cell))


def code(cell: Mapping[str, Any]) -> str:
    """Returns the source of a cell of code as a block.

    >>> print(code({"source": "!pretrax show --list"}))
    ```sh
    pretrax show --list
    ```
    """
    text = source(cell)
    if text.startswith("!"):
        return f"```sh\n{text[1:]}\n```"
    if written := re.match(r"%%writefile (\S+)\n", text):
        language = "gin" if written[1].endswith(".gin") else "python"
        return f"```{language}\n# {written[1]}\n{text[written.end() :].strip()}\n```"
    return f"```python\n{text}\n```"


def _printed(outputs: Sequence[Mapping[str, Any]]) -> str:
    """Returns what a cell printed, as a terminal shows it, without colors. ~ is the home folder.

    >>> bar = "1%\\r99%\\n\\x1b[1A\\x1b[2KDone."
    >>> _printed([{"output_type": "stream", "name": "stdout", "text": bar}])
    'Done.'
    """
    text = "".join(map(_text_of, outputs)).replace("\r\n", "\n")
    text = re.sub(r"\x1b\[(?!1A|2K)[\d;?]*[A-Za-z]", "", text)
    text = re.sub(r"[^\n]*\n\r?\x1b\[1A\r?\x1b\[2K", "", text)  # goes up and clears a line
    text = text.replace("\x1b[2K", "").replace(str(Path.home()), "~")
    lines = [line.rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return "\n".join(lines).strip("\n")


def _text_of(output: Mapping[str, Any]) -> str:
    """Returns the printed text of an output, "" for errors, pages, Markdown and values."""
    if output["output_type"] == "stream":
        return "".join(output["text"]) if output["name"] == "stdout" else ""
    data = output.get("data", {})
    if output["output_type"] != "display_data" or "text/markdown" in data:
        return ""
    text = "".join(data.get("text/plain", "<"))
    return "" if text.startswith("<") else text


def _nested(text: str) -> str:
    """Returns Markdown under the headings of a page, without pictures, which lie elsewhere."""
    text = re.sub(r"^!\[.*\n?", "", text, flags=re.MULTILINE)
    return re.sub(r"^#", "###", text, flags=re.MULTILINE).strip()


if __name__ == "__main__":
    main(sys.argv[1:])
