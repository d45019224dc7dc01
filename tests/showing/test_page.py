"""The page stands by itself, and shows text as text."""

import html.parser
import re

import pytest

from pretrax import objectives
from pretrax.showing.examples import example
from pretrax.showing.page import Heading, page
from pretrax.showing.rows import Subject, look
from pretrax.showing.statistics import figures
from pretrax.showing.svg import on_page
from tests.showing.letters import IDS, READER, encode

EVIL = "<script>alert('&')</script>"
VOID = {"meta", "br", "path", "rect", "use"}


@pytest.fixture(scope="module")
def made() -> str:
    subject = Subject(EVIL, 1.0, objectives.span_corruption, "encoder_decoder", IDS)
    seen = look(subject, [[encode("a quick brown fox. jumps")], [encode("x" * 24)]], 0)
    reader = READER._replace(surface=lambda i: EVIL)
    found = figures(subject, seen, span_law="composition")
    heading = Heading(EVIL, [EVIL], EVIL, EVIL)
    return page(heading, [example(subject, seen, reader)], [found, found])


def test_nothing_is_fetched_and_nothing_runs(made):
    names = set(re.findall(r"https?://[^\s\"')]+", made))
    assert names <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    for forbidden in ("<script", "<link", "@import", "src=", "url(http"):
        assert forbidden not in made
    assert "prefers-color-scheme: dark" in made


def test_text_is_escaped(made):
    assert made.count("&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;") > 20


def test_elements_are_closed(made):
    class Balance(html.parser.HTMLParser):
        opened: list = []

        def handle_starttag(self, tag, attributes):
            if tag not in VOID:
                self.opened.append(tag)

        def handle_endtag(self, tag):
            if tag not in VOID:
                assert self.opened.pop() == tag

    parser = Balance()
    parser.feed(made)
    assert not parser.opened


def test_charts_take_their_colours_from_the_page(made):
    charts = re.findall(r"<svg xmlns:xlink.*?</svg>", made, re.DOTALL)
    assert len(charts) == 3
    for chart in charts:
        colours = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", chart))
        assert colours <= {"none", "var(--ink)", "var(--line)", "var(--first)", "var(--second)"}
        assert "<text" in chart and "<metadata" not in chart


def test_names_within_charts_do_not_clash():
    svg = '<?xml?><svg><g id="patch_1"/><clipPath id="pab12"/><g clip-path="url(#pab12)"/></svg>'
    assert on_page(svg) == '<svg><g/><clipPath id="pab12"/><g clip-path="url(#pab12)"/></svg>'
