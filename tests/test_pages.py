"""Pages of docs/ are complete as plain files, and those that are generated follow their sources."""

import functools
import re
from pathlib import Path

import pytest

from tests.docs_programs import DOCS, program
from tests.training.tiny import ROOT

AGAIN = "run python docs/pages.py"
LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def generating():
    with program("pages") as module:
        yield module


def test_generated_pages_are_up_to_date(generating):
    for file, text in generating.pages().items():
        assert (DOCS / file).read_text(encoding="utf-8") == text, f"docs/{file}: {AGAIN}"
    navigation = (ROOT / generating.NAVIGATION).read_text(encoding="utf-8")
    assert navigation == generating.navigation(), AGAIN


@pytest.mark.slow
def test_command_page_is_up_to_date(generating):
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert page == generating.commands_page(), AGAIN
    assert "| `--objective NAME` |" in page and "**Settings of the gin files**" in page


def test_pages_need_no_build_hooks_or_placeholders():
    assert not re.search(r"^hooks:", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        begins, ends = (re.findall(rf"<!-- {word} (\w+) -->", text) for word in ("begin", "end"))
        assert begins == ends, page
        assert "<!-- table:" not in text, page


def test_links_between_files_resolve():
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    for page in pages:
        for target, anchor in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
            if not re.match(r"\w+:", target):
                file = page.parent / target if target else page
                assert file.exists(), f"{page}: {target}"
                if anchor and not anchor.startswith("pretrax."):  # objects are checked by a build
                    assert anchor in anchors_of(file), f"{page}: {target}#{anchor}"


@functools.cache
def anchors_of(page: Path) -> list[str]:
    """The anchors of the headings of a page, as MkDocs names them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return [re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", t).strip().lower()) for t in plain]


def test_every_page_is_in_the_navigation():
    named = re.findall(r"[:-] ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(named) == len(set(named))
    assert set(named) == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


def test_navigation_is_short(generating):
    text = (ROOT / generating.NAVIGATION).read_text(encoding="utf-8").partition("\nnav:\n")[2]
    tabs = re.findall(r"^  - ([^:]+):$", text, re.MULTILINE)
    assert tabs == ["Get started", "Objectives", "How-to", "Evidence", "Reference", "Project"]
    written_by_hand = re.sub(r"# begin (\w+)\n.*?# end \1\n", "", text, flags=re.DOTALL)
    assert len(re.findall(r"\.md$", written_by_hand, re.MULTILINE)) < 50


def test_handwritten_pages_are_short():
    """Eight screens have about 400 lines."""
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        if "<!-- docs/pages.py writes this page from" not in text:
            by_hand = re.sub(r"<!-- begin (\w+) -->.*?<!-- end \1 -->", "", text, flags=re.DOTALL)
            assert by_hand.count("\n") <= 400, page


def test_api_reference_names_existing_modules():
    for page in (DOCS / "api").glob("*.md"):
        for name in re.findall(r"^::: pretrax\.(.+)$", page.read_text(), re.MULTILINE):
            module = ROOT / name.replace(".", "/")
            assert module.with_suffix(".py").exists() or (module / "__init__.py").exists(), name


def test_svg_pictures_follow_the_color_scheme():
    """The style of the site inverts PNG files in the dark scheme, and leaves SVG files alone."""
    assert 'img[src$=".png"]' in (DOCS / "site.css").read_text()
    for picture in DOCS.rglob("*.svg"):
        assert "prefers-color-scheme: dark" in picture.read_text(encoding="utf-8"), picture
