"""The messages in docs/troubleshooting.md exist in the sources."""

import ast
import re

from tests.training.tiny import ROOT

FOLDERS = (
    *("cli", "comparison", "corpora", "data", "inference", "objectives"),
    *("settings", "tasks", "training"),
)


def test_every_documented_message_exists_in_the_sources():
    lines = (ROOT / "docs/troubleshooting.md").read_text().splitlines()
    first = [line.split("|")[1] for line in lines if line.startswith("| `")]
    asked = [words for cell in first for words in re.findall("`([^`]+)`", cell)]
    texts = [
        node.value
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    source_text = "\n".join(texts)
    assert len(first) > 15 and [words for words in asked if words not in source_text] == []
