"""`pretrax.show`: pictures of objectives that display themselves."""

import builtins
import functools
import html
import re

import pytest

import pretrax
from pretrax import objectives
from pretrax.cli import show
from pretrax.tasks import showing
from tests.refusals import refuses

TEXT = "The quick brown fox jumps over the lazy dog"


@pytest.fixture(scope="module")
def spans():
    return pretrax.show("span_corruption", TEXT, hide=["quick brown"])


@pytest.mark.slow
def test_show_in_python_prints_the_output_of_the_command(spans, capsys):
    show.run(["--vocabulary=words", f"--text={TEXT}", "--hide=quick brown"])
    output = [line.strip() for line in capsys.readouterr().out.splitlines()]
    lines = [line.strip() for line in repr(spans).splitlines()]
    tokens = [line for line in lines if "⟨0⟩" in line]
    assert "The ⟨0⟩ fox jumps over the lazy dog </s>" in tokens and set(tokens) <= set(output)


@pytest.mark.slow
def test_notebook_shows_a_page_for_light_and_dark_screens(spans):
    frame = spans._repr_html_()
    assert frame.startswith("<iframe") and frame.count("<") == 2  # the page is escaped
    page = html.unescape(re.search('srcdoc="([^"]*)"', frame)[1])
    assert page == spans.html() and "prefers-color-scheme: dark" in page and "fox" in page


def test_repr_is_plain_text_in_a_notebook(spans, monkeypatch):
    """Rich would display what a console prints in a notebook, unless this is disabled."""
    expected = repr(spans)
    shell = type("ZMQInteractiveShell", (), {})  # rich recognizes a notebook by this class
    monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)
    assert repr(spans) == expected and "fox" in expected


@pytest.mark.slow
def test_partial_builder_is_shown_with_its_settings():
    shown = pretrax.show(functools.partial(objectives.masked_lm, rate=0.5), TEXT, rows=2)
    (first, second) = shown.content.examples
    assert shown.content.name == "masked_lm" and first.text != second.text
    assert {len([t for t in e.text[0] if t.span >= 0]) for e in (first, second)} == {4}


@pytest.mark.slow
def test_layout_vocabulary_and_texts_are_applied():
    shown = pretrax.show("mlm", ["a b\n\nc", "d"], layout="decoder", vocabulary="bytes")
    assert shown.content.layout == "decoder" and len(shown.content.examples[0].text) == 3


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["mask_lm"], "masked_lm"),
        (["masked_lm", " \n "], "empty"),
        (["masked_lm", TEXT, "--"], "'--'"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, expected):
    with refuses(ValueError, expected):
        pretrax.show(*arguments[:2], hide=arguments[2:])


@pytest.mark.parametrize("name", ["wrods", "none/tokenizer.json"])
def test_error_of_unknown_vocabulary_lists_the_names(name):
    with refuses(FileNotFoundError, name, *showing.VOCABULARIES):
        pretrax.show("masked_lm", TEXT, vocabulary=name)
