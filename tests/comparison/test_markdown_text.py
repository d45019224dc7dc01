"""The Markdown report of a comparison shows everything in its results as text."""

import html
import re

import pytest
from markdown_it import MarkdownIt

from pretrax.comparison.report.markdown_report import markdown
from pretrax.comparison.report.markdown_text import code, escaped, prose
from pretrax.comparison.report.summary import summary_of
from tests.comparison import planted

HOSTILE = [
    "'{ < < { } ( ) > > [ ] [ ] { } } < <<extra_id_0> }'",  # a question about brackets
    "<script>alert('&')</script> &lt; &amp;",
    "[x](https://example.org) ![y](z.png) [^1] [ref]: here",
    "`a` ``b`` ` lone \\` and \\\\",
    "a | b || c \\| d",
    "two\nlines\n\n# and a heading\n- and an item",
    "*a* **b** _c_ __init__ snake_case ~~d~~ $x$ a*b*c",
    "# heading",
    "- [ ] task",
    "+ 1. item",
    "1. item",
    "---",
    "> quote <!-- comment --> <b",
    "{: .class} {#id} {{ macro }}",
    "ends with a backslash \\",
    "| --- | ---: |",
]
SITE = ["attr_list", "md_in_html", "tables", "fenced_code"]  # extensions of mkdocs.yml


def by_markdown_it(text):
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text)


def by_python_markdown(text):
    library = pytest.importorskip("markdown", reason="pip install -e '.[docs]'")
    return library.markdown(text, extensions=SITE)


@pytest.fixture(params=[by_markdown_it, by_python_markdown])
def rendered(request):
    """Returns the text that a reader sees."""

    def text(source):
        shown = re.sub(r"<!--.*?-->|<[^>]*>", "", request.param(source), flags=re.DOTALL)
        return " ".join(html.unescape(shown).split())

    return text


@pytest.mark.parametrize("text", HOSTILE)
def test_escaped_text_is_rendered_literally(rendered, text):
    line = " ".join(text.split())
    assert rendered(escaped(text)) == line
    assert rendered(f"- {escaped(text)}") == line
    assert rendered(f"**{escaped(text)}**") == line
    assert rendered(f"# {escaped(text)}") == line
    table = f"| a | b |\n| --- | ---: |\n| {escaped(text)} | c |"
    assert rendered(table) == f"a b {line} c"


@pytest.mark.parametrize("text", HOSTILE)
def test_code_is_rendered_literally(rendered, text):
    assert rendered(f"- {code(text)}") == " ".join(text.split())


def test_prose_keeps_code_and_escapes_the_rest(rendered):
    text = "`a<b` alone, of <s> and [ ] with a lone ` and *stars*"
    assert rendered(prose(text)) == text.replace("`a<b`", "a<b")
    assert "<code>a&lt;b</code>" in by_markdown_it(prose(text))


@pytest.mark.slow
def test_report_shows_hostile_text_completely(rendered):
    hostile = [" ".join(text.split()) for text in HOSTILE]
    made = planted.results([*hostile, "b"], seeds=[0, 1])
    refused, failed, *others = made.runs
    refused = refused._replace(refusals={"synthetic_answers": HOSTILE[0]})
    failed = failed._replace(error=HOSTILE[1])
    noted = [m._replace(figure=m.figure._replace(note=HOSTILE[2])) for m in made.measurements]
    setup = made.setup._replace(
        question=HOSTILE[7],
        about=HOSTILE[6],
        variants={variant: [variant] for variant in made.setup.variants},
    )
    results = made._replace(setup=setup, runs=[refused, failed, *others], measurements=noted)
    shown = rendered(markdown(summary_of(results)))
    for variant in hostile:
        assert shown.count(variant) > 10
    for text in (HOSTILE[0], HOSTILE[1], HOSTILE[2], HOSTILE[6], HOSTILE[7]):
        assert text in shown
