"""The page needs no other files, and escapes text."""

import json

import pytest

from pretrax import objectives
from pretrax.visualization.examples import example
from pretrax.visualization.noise_statistics import statistics
from pretrax.visualization.picture import Picture
from pretrax.visualization.picture_page import page
from pretrax.visualization.rows import ShownObjective, view_of
from pretrax.visualization.svg import on_page, standalone
from tests.visualization import pages
from tests.visualization.letters import IDS, READER, encode

EVIL = "<script>alert('&')</script>"


@pytest.fixture(scope="module")
def picture() -> Picture:
    objective = objectives.span_corruption(IDS)
    subject = ShownObjective(EVIL, 1.0, objective, "encoder_decoder", IDS)
    view = view_of(subject, [[encode("a quick brown fox. jumps")], [encode("x" * 24)]], 0)
    reader = READER._replace(surface=lambda i: EVIL)
    found = statistics(subject, view, span_distribution="composition")
    shown = example(subject, view, reader)
    return Picture(EVIL, EVIL, [EVIL], [shown], statistics=[found, found], counted_on=EVIL)


@pytest.fixture(scope="module")
def made(picture) -> str:
    return page(picture, EVIL)


@pytest.mark.slow
def test_picture_is_json_serializable(picture):
    """Other programs, such as a page that redraws the picture, get all that a renderer gets."""
    found = json.loads(json.dumps(picture.as_json()))
    (shown,) = found["examples"]
    encoder, decoder = shown["stacks"]
    sentinel = next(s["given"] for s in encoder["slots"] if s["given"]["kind"] == "sentinel")
    first = next(s["predicted"] for s in decoder["slots"] if s["predicted"])
    assert first["text"] == sentinel["text"] == "⟨0⟩"
    assert [token["kind"] for token, _ in found["legend"]] == ["sentinel", "start", "end"]
    assert len(shown["attentions"][0]["starts"]) == len(encoder["slots"])
    assert found["statistics"][0]["use"]["encoder"]["slots"] == len(encoder["slots"])


def test_page_is_self_contained_and_escapes_text(made):
    pages.assert_nothing_is_fetched_and_nothing_runs(made)
    pages.assert_elements_are_closed(made)
    assert made.count("&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;") > 20


def test_charts_use_the_colors_of_the_page(made):
    charts = pages.charts_of(made)
    assert len(charts) == 3
    for chart in charts:
        known = {"var(--ink)", "var(--line)", "var(--first)", "var(--second)"}
        assert pages.colors_of(chart) <= known
        assert "<text" in chart and "<metadata" not in chart


def test_unused_ids_of_charts_are_removed():
    svg = '<?xml?><svg><g id="patch_1"/><clipPath id="pab12"/><g clip-path="url(#pab12)"/></svg>'
    assert on_page(svg) == '<svg><g/><clipPath id="pab12"/><g clip-path="url(#pab12)"/></svg>'


def test_standalone_svg_has_its_colors_and_keeps_its_text():
    made = standalone('<svg><text x="1.2345" style="fill: var(--ink)">0.375 of <b/></text></svg>')
    assert made.startswith("<svg><style>") and "--ink:" in made and "dark" in made
    assert 'x="1.23"' in made and ">0.375 of <" in made
