"""The pages of objectives are up to date with docs/objective_pages.py."""

import argparse
import itertools
import re
import shlex
from xml.etree import ElementTree

import pytest

import pretrax
from pretrax import objectives
from pretrax.objectives.catalog import CATALOG, FAMILIES, run_of
from pretrax.settings.partial import as_partial
from pretrax.training.run_choices import add_run_arguments, parse_run
from pretrax.training.run_configuration import read_fields, run_in
from tests.docs_programs import DOCS, program
from tests.training.tiny import ROOT

XHTML = "{http://www.w3.org/1999/xhtml}"
AGAIN = "run python docs/objective_pages.py"


@pytest.fixture(scope="module")
def drawing():
    with program("objective_pages") as module:
        yield module


def kept(file: str) -> str:
    return (DOCS / file).read_text(encoding="utf-8")


def glance(name: str) -> str:
    """Returns the section "At a glance" of the page of an objective."""
    return kept(f"objectives/{name}.md").partition("## At a glance")[2].partition("\n## ")[0]


def words(svg: str) -> str:
    """Returns the text of an SVG without its graphics."""
    return re.sub(r"<style>.*?</style>|<[^>]*>|\s+", " ", svg, flags=re.DOTALL)


def test_each_objective_has_a_page_and_a_picture():
    files = {path.name for path in (DOCS / "objectives").iterdir()}
    assert files == {f"{name}.{kind}" for name in CATALOG for kind in ("md", "svg")}, AGAIN
    assert {path.stem.replace("_", " ") for path in (DOCS / "families").iterdir()} == set(FAMILIES)


def test_the_reference_lists_each_builder():
    reference = (DOCS / "api/objectives.md").read_text()
    listed = re.findall(r"\w+", " ".join(re.findall(r"members: \[(.*)\]", reference)))
    assert set(CATALOG) & set(vars(objectives)) <= set(listed)


@pytest.mark.slow
def test_objective_pages_are_up_to_date(drawing):
    for file, text in drawing.pages().items():
        assert kept(file) == text, f"docs/{file}: {AGAIN}"


@pytest.mark.parametrize("name", CATALOG)
def test_pages_have_the_same_sections(name):
    page = kept(f"objectives/{name}.md")
    assert "\n…\n" not in page, "write the sections Loss and When to use it"
    sections = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert sections == [
        "Loss",
        "When to use it",
        "At a glance",
        "Train it",
        "Settings",
        "Results here",
        "Details",
    ]


def test_new_page_has_an_outline_of_the_sections_written_by_hand(drawing):
    outline = drawing._written_by_hand("new")
    assert re.findall(r"^## (.*)$", outline, re.MULTILINE) == ["Loss", "When to use it"]
    assert "\n…\n" in outline


@pytest.mark.parametrize("name", CATALOG)
def test_pages_state_the_training_flops(name):
    figure = re.search(r"^\| training FLOPs per token \| (\d\.\d\d)\b", glance(name), re.MULTILINE)
    assert figure and 0.3 < float(figure[1]) < 3, AGAIN
    assert "](../objectives.md#training-flops)" in glance(name)


def test_training_flops_are_relative_to_causal_language_modeling():
    with program("relative_flops") as counting:
        copies = {"causal_lm": 1, "block_diffusion": 2, "masked_input_regularization": 2}
        for name, number in copies.items():
            assert counting.relative_flops(name) == pytest.approx(number, rel=0.01)
        assert counting.relative_flops("span_corruption") < counting.relative_flops("masked_lm") < 1


@pytest.mark.slow
def test_models_whose_flops_are_compared_have_the_same_depth_and_width():
    shapes = set()
    for name in CATALOG:
        fields = read_fields([f"runs/{run_of(name)}.gin", f"objectives/{name}.gin"])
        settings = as_partial(fields["model"]).settings
        stacks = [value for key, value in settings.items() if key.endswith("_layers")]
        towers = 2 if CATALOG[name].architecture == "two_towers" else 1
        widths = [settings[key] for key in ("emb_dim", "num_heads", "head_dim")]
        shapes.add((towers * sum(stacks), *widths))
    assert shapes == {(4, 128, 4, 32)}


def test_pages_link_the_comparisons_that_train_an_objective():
    assert "](../comparisons/spans_or_tokens.md)" in kept("objectives/span_corruption.md")
    assert sum("](../comparisons/" in kept(f"objectives/{name}.md") for name in CATALOG) > 15


def test_pages_state_how_a_figure_was_measured(drawing):
    first, second = drawing._train("sentence_order_prediction").split("\n")
    assert first == "pretrax train sentence_pairs"  # the initial run
    assert second.startswith("pretrax train sentence_pairs_after_bert --objective=")
    assert " --gin.optimizers.warmup_cosine.peak=0.03 " in drawing._train("permutation_lm")
    assert "`decoder` at a peak of 0.03, the loss was" in drawing._learned("permutation_lm")
    least = r"the loss term `\w+` \(the term that improved least\) was \d"
    assert re.search(least, drawing._learned("ul2"))


@pytest.mark.parametrize("name", CATALOG)
def test_pictures_load_no_external_resources(name):
    picture = kept(f"objectives/{name}.svg")
    names = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"}
    assert set(re.findall(r"https?://[^\"]+", picture)) == names
    assert "prefers-color-scheme: dark" in picture
    ElementTree.fromstring(picture)  # It raises an error for invalid XML.


def hidden_spans(text: ElementTree.Element) -> list[str | None]:
    """Returns the color of each hidden span of a text in an SVG, and None for the words between."""
    colors = [None] if (text.text or "").strip() else []
    for token in text:
        if "end" not in token.get("class", "").split():
            colors.append(token.get("style"))
        if (token.tail or "").strip():
            colors.append(None)
    return [color for color, _ in itertools.groupby(colors)]


# These objectives always hide the end of a text, or predict every token.
HIDES_EDGE = (
    *("any_subset_lm", "complementary_diffusion", "hybrid_diffusion", "mixed_diffusion"),
    *("prefix_lm", "spans_and_prefix", "ul2", "ul2_tutorial", "ul2r", "uniform_diffusion"),
    *("unrolled_denoising", "embedding_diffusion"),
)


@pytest.mark.parametrize("name", sorted({*CATALOG} - {*HIDES_EDGE}))
def test_figure_hides_the_middle_of_a_text(name):
    body = ElementTree.fromstring(kept(f"objectives/{name}.svg")).find(f".//{XHTML}body")
    parts = list(body)
    texts = [after for part, after in itertools.pairwise(parts) if part.text == "Text "]
    assert texts
    for spans in map(hidden_spans, texts):
        assert spans[0] is None and spans[-1] is None, "choose another seed in SEEDS"


@pytest.mark.slow
def test_readme_shows_the_printed_output(drawing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert f"](docs/{drawing.PICTURE})" in (ROOT / "README.md").read_text()
    assert words(drawing.overview()) == words(kept(drawing.PICTURE)), AGAIN


@pytest.mark.slow
@pytest.mark.parametrize("name", CATALOG)
def test_picture_shows_the_printed_output(name, drawing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words(drawing.picture(name)) == words(kept(f"objectives/{name}.svg")), AGAIN


@pytest.mark.sampled
@pytest.mark.parametrize("name", CATALOG)
def test_commands_of_pages_parse(name, drawing, monkeypatch):
    runs = []
    monkeypatch.setattr(pretrax, "train", runs.append)
    exec(drawing._train_in_python(name), {})
    parser = argparse.ArgumentParser()
    add_run_arguments(parser)
    *_, command = drawing._train(name).split("\n")
    _, gin, _ = parse_run(parser, shlex.split(command)[2:], required=True)
    (run,) = runs
    assert run.run_dir == run_in(gin.reader()).run_dir == f"runs/{name}"
