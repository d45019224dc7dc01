"""Checks that every page must pass, whatever it shows."""

import html.parser
import re

VOID = {"meta", "br", "path", "rect", "use", "input", "wbr"}


def assert_nothing_is_fetched_and_nothing_runs(page: str) -> None:
    names = set(re.findall(r"https?://[^\s\"')]+", page))
    assert names <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    for forbidden in ("<script", "<link", "@import", "src=", "url(http"):
        assert forbidden not in page
    assert "prefers-color-scheme: dark" in page


def assert_elements_are_closed(page: str) -> None:
    class Balance(html.parser.HTMLParser):
        opened: list = []

        def handle_starttag(self, tag, attributes):
            if tag not in VOID:
                self.opened.append(tag)

        def handle_endtag(self, tag):
            if tag not in VOID:
                assert self.opened.pop() == tag

    parser = Balance()
    parser.feed(page)
    assert not parser.opened


def charts_of(page: str) -> list[str]:
    return re.findall(r"<svg xmlns:xlink.*?</svg>", page, re.DOTALL)


def colors_of(chart: str) -> set[str]:
    return set(re.findall(r"(?:fill|stroke): ([^;\"]+)", chart)) - {"none"}
