"""Pages of objectives that need no server."""

import pathlib

import pytest

from pretrax.cli import explore
from pretrax.explorer import gallery
from pretrax.explorer.controls import with_values
from pretrax.objectives.catalog import CATALOG
from pretrax.objectives.token_ids import specimen_ids
from pretrax.tasks.showing import choice_of
from tests.explorer.browsing import launched
from tests.refusals import exits

browser = pytest.fixture(scope="module")(launched)
IDS = specimen_ids(1000)
GALLERY = pathlib.Path(__file__).parents[2] / "docs" / "gallery"


@pytest.mark.sampled
@pytest.mark.parametrize("name", CATALOG)
def test_gallery_settings_are_valid(name):
    build = choice_of(name).build
    shown = gallery.variants(build)
    assert len({variant.label for variant in shown}) == len(shown) <= gallery.MAX_VARIANTS + 2
    for variant in shown:
        with_values(build, variant.values)(IDS)


AGAIN = "run pretrax explore --export=docs/gallery"


def test_documentation_gallery_has_all_pages():
    pages = {file.stem for file in GALLERY.glob("*.html")}
    assert pages == {*CATALOG, "index"}, AGAIN
    assert (GALLERY / "index.html").read_text() == gallery.index_page(), AGAIN


EXPORTED = ("span_corruption", "spans_and_prefix")  # an objective and a mixture


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("gallery")
    gallery.export(str(place), EXPORTED)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("file", [*(f"{name}.html" for name in EXPORTED), "style.css"])
def test_documentation_gallery_pages_are_up_to_date(file, folder):
    assert (GALLERY / file).read_text() == (folder / file).read_text(), AGAIN


@pytest.mark.slow
def test_page_steps_through_settings(folder, browser):
    page = browser.new_page()
    page.goto((folder / "span_corruption.html").as_uri())
    shown = gallery.variants(choice_of("span_corruption").build)
    assert page.locator(".variants > section:visible").count() == 1
    page.locator("#v0").focus()
    for number in range(1, len(shown)):
        page.keyboard.press("ArrowRight")
        assert page.locator(".variants > section:visible").get_attribute("id") == f"s{number}"
        (value,) = shown[number].values.values() or ("--seed=1",)
        assert str(value) in page.locator("section:visible pre").inner_text()
    assert page.locator("button").count() == 0
    page.close()


def test_export_rejects_options_that_it_does_not_use(tmp_path, capsys):
    with exits(capsys, "--export", "--objective"):
        explore.main([f"--export={tmp_path}", "--objective=ul2"])


def test_folder_without_a_report_is_rejected(tmp_path, capsys):
    with exits(capsys, tmp_path, "report.html"):
        explore.main([f"--comparison={tmp_path}", "--no_browser"])


@pytest.mark.slow
def test_export_prints_where_the_pages_are(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(explore, "CATALOG", ["causal_lm"])
    explore.main([f"--export={tmp_path / 'pages'}"])
    assert str(tmp_path / "pages" / "index.html") in capsys.readouterr().out
    assert (tmp_path / "pages" / "causal_lm.html").is_file()
