"""The pages of `pretrax explore` in a real browser."""

import functools
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from pretrax.explorer.gallery import variants
from pretrax.explorer.pages import Explorer
from pretrax.tasks.showing import choice_of
from tests.explorer.browsing import PATIENCE, drawn, error_of, error_with, launched, served

browser = pytest.fixture(scope="module")(launched)
MOST_CHANGES = 3


@pytest.fixture(scope="module")
def address():
    with served(Explorer()) as place:
        yield place


@pytest.fixture
def page(browser):
    context = browser.new_context()
    opened = context.new_page()
    opened.complaints = []
    opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.on("console", lambda message: _keep(opened, message))
    yield opened
    assert opened.complaints == []
    context.close()


def _keep(page, message) -> None:
    refused = "the server responded with a status of 400"  # the page shows the message itself
    if message.type == "error" and refused not in message.text:
        page.complaints.append(message.text)


def opened(page, address: str, objective: str = "causal_lm") -> None:
    page.goto(address)
    page.wait_for_selector(".panel[data-drawn]", timeout=PATIENCE)
    chosen = page.locator("[data-objective][aria-selected=true]")
    if chosen.get_attribute("data-objective") != objective:
        drawn(page, lambda: page.click(f'[data-objective="{objective}"]'))


def change(page, name: str, value) -> None:
    """Sets a setting in the form."""
    field = page.locator(f'[data-setting="{name}"]')
    if isinstance(value, bool):
        field.locator("input").click()
    elif isinstance(value, str):
        field.locator("select").select_option(value)
    else:
        field.locator("input[type=number]").fill(str(value))


def check_changes(page, address: str, objective: str) -> None:
    """Changes up to three settings, one at a time, and the draw if there are fewer."""
    opened(page, address)
    drawn(page, lambda: page.click(f'[data-objective="{objective}"]'))
    changed = [one.values for one in variants(choice_of(objective).build) if one.values]
    for number in range(MOST_CHANGES):
        if number < len(changed):
            ((name, value),) = changed[number].items()
            drawn(page, functools.partial(change, page, name, value))
            assert error_of(page) == ""
            drawn(page, lambda: page.click("text=Settings as published"))
        else:
            drawn(page, lambda: page.click("text=Another draw"))
        assert error_of(page) == ""
        assert page.locator(".panel .tokens").inner_text().startswith("The quick brown fox")


# Every form is generated in the same way, and test_controls.py reads the form of every objective.
# These objectives have one member, several members, and two towers.
@pytest.mark.slow
@pytest.mark.parametrize("objective", ["span_corruption", "spans_and_prefix", "contrastive_pairs"])
def test_objective_page_follows_its_settings(objective, page, address):
    check_changes(page, address, objective)


@pytest.mark.slow
def test_slider_ends_draw_a_picture(page, address):
    opened(page, address, "masked_lm")
    slider = page.locator('[data-setting="objectives.masked_lm.rate"] input[type=range]')
    for key, masks in ("Home", 1), ("End", 10):
        drawn(page, lambda key=key: slider.press(key))
        assert error_of(page) == ""
        assert page.locator(".panel .cells i:not(:empty)").count() == masks
        gin = page.locator(".copyable", has_text="Gin file").locator("pre").inner_text()
        assert f"objectives.masked_lm.rate = {slider.input_value()}" in gin


@pytest.mark.slow
def test_fractional_value_of_an_integer_setting_is_rejected(page, address):
    opened(page, address, "goldfish_loss")
    page.fill('[data-setting="objectives.goldfish_loss.k"] input[type=number]', "3.5")
    assert "objectives.goldfish_loss.k" in error_with(page, "3.5")


@pytest.mark.slow
def test_copy_button_keeps_the_focus_when_commands_change(page, address):
    opened(page, address, "masked_lm")
    slider = page.locator('[data-setting="objectives.masked_lm.rate"] input[type=range]')
    button = page.locator('[aria-label="Copy: Gin file"]')
    slider.press("Home")
    drawn(page, button.focus)
    gin = page.locator(".copyable", has_text="Gin file").locator("pre").inner_text()
    assert f"objectives.masked_lm.rate = {slider.input_value()}" in gin
    assert page.evaluate("document.activeElement.ariaLabel") == "Copy: Gin file"


@pytest.mark.slow
def test_failed_objective_clears_the_previous_one(page, address):
    opened(page, address, "masked_lm")
    page.click('[data-objective="number_token_loss"]')
    error_with(page, "digit")
    assert page.locator(".panel [data-setting]").count() == 0
    assert page.locator(".panel .cells, .panel .copyable").count() == 0
    drawn(page, lambda: page.select_option("select >> nth=0", "bytes"))
    assert error_of(page) == ""


@pytest.mark.slow
def test_number_outside_its_range_is_rejected_and_reset(page, address):
    opened(page, address, "masked_lm")
    rate = page.locator('[data-setting="objectives.masked_lm.rate"] input[type=number]')
    rate.fill("1.5")
    assert "objectives.masked_lm.rate" in error_with(page, "1.5")
    drawn(page, lambda: page.click("text=Settings as published"))
    assert rate.input_value() == "0.15" and error_of(page) == ""


@pytest.mark.slow
def test_late_statistics_of_another_view_are_not_shown(page, address):
    opened(page, address, "masked_lm")
    with page.expect_request("**/api/statistics"):
        page.click("text=Count a thousand rows")
    with page.expect_event("requestfailed", lambda sent: "statistics" in sent.url):
        drawn(page, lambda: page.click('[data-objective="causal_lm"]'))
    assert page.locator(".panel .chart").count() == 0 and error_of(page) == ""


@pytest.mark.slow
def test_error_of_one_of_two_objectives_stays(page, address):
    page.goto(f"{address}compare")
    drawn(page)
    drawn(page, panel=1)
    page.select_option("text=First objective >> xpath=.. >> select", "number_token_loss")
    error_with(page, "digit")
    second = page.locator("text=Second objective >> xpath=.. >> select")
    drawn(page, lambda: second.select_option("causal_lm"), panel=1)
    assert "digit" in error_of(page)


@pytest.mark.slow
def test_help_of_a_setting_is_shown_in_full(page, address):
    opened(page, address, "span_corruption")
    placement = page.locator('[data-setting="objectives.span_corruption.placement"]')
    assert "ends with noise" in " ".join(placement.inner_text().split())


@pytest.mark.slow
def test_each_member_and_draw_shows_what_it_hides(page, address):
    opened(page, address, "ul2")
    members = page.locator(".picture details")
    assert members.count() == 7
    for number in range(7):
        assert "hidden" in members.nth(number).locator("h3").first.text_content()


@pytest.mark.slow
def test_attention_pattern_fits_the_screen(page, address):
    opened(page, address, "prefix_lm")
    drawn(page, lambda: page.fill("textarea", "The quick brown fox jumps over the lazy dog"))
    heights = [pattern.bounding_box()["height"] for pattern in page.locator(".pattern").all()]
    assert len(heights) == 3 and max(heights) <= 200


@pytest.mark.slow
def test_markup_control_characters_and_long_texts_are_handled(page, address):
    opened(page, address)
    markup = "<script>document.title = 'x'</script> <b>bold</b> & \"quotes\" 'single' \u202eturned"
    for text in "ǂ ~~ \x07 ẞ 🤷🏽 \u200b", markup:
        drawn(page, lambda text=text: page.fill("textarea", text))
        assert error_of(page) == ""
    drawn(page, lambda: page.select_option("select >> nth=0", "bytes"))
    shown = page.locator(".panel .tokens").inner_text()
    assert "<script>" in shown and "<b>bold</b>" in shown and "\u202e" not in shown
    assert page.title() != "x" and page.locator(".panel script").count() == 0
    page.fill("textarea", "word " * 20_000)
    assert "--length" in error_with(page, "100,00")
    page.fill("textarea", "")
    error_with(page, "empty")


@pytest.mark.slow
def test_long_token_fits_a_narrow_screen(page, address):
    page.set_viewport_size({"width": 380, "height": 800})
    page.goto(address)
    drawn(page)
    drawn(page, lambda: page.fill("textarea", "a " + "x" * 300))
    boxes = [cell.bounding_box() for cell in page.locator(".cell").all()]
    assert boxes and max(box["x"] + box["width"] for box in boxes) <= 380


@pytest.mark.slow
def test_clicked_tokens_are_hidden(page, address):
    opened(page, address, "span_corruption")
    for number in 1, 2, 4:
        drawn(page, lambda number=number: page.press(f'[data-token="{number}"]', "Enter"))
    shell = page.locator(".copyable", has_text="Show").locator("pre").first.inner_text()
    assert "--hide_tokens=1-2,4" in shell
    assert page.locator('[data-token][aria-pressed="true"]').count() == 3
    hidden = page.locator(".panel .tokens .h").all_inner_texts()
    assert [text.strip() for text in hidden] == ["quick", "brown", "jumps"]
    drawn(page, lambda: page.click("text=Hide random tokens again"))
    assert page.locator('[data-token][aria-pressed="true"]').count() == 0


def focused(page) -> str:
    """Returns the objective or the number of the token that has the focus; "" for others."""
    element = page.locator(":focus")
    return element.get_attribute("data-objective") or element.get_attribute("data-token") or ""


def press(page, *keys: str) -> str:
    """Presses keys, and returns what has the focus then."""
    for key in keys:
        page.keyboard.press(key)
    return focused(page)


@pytest.mark.slow
def test_objective_list_is_one_tab_stop(page, address):
    opened(page, address, "span_corruption")
    names = [name.get_attribute("data-objective") for name in page.locator("[role=option]").all()]
    page.focus("input[type=search]")
    assert press(page, "Tab") == "span_corruption"
    assert (
        press(page, "ArrowDown", "ArrowDown", "ArrowUp")
        == names[names.index("span_corruption") + 1]
    )
    assert press(page, "End", "ArrowDown") == names[-1]
    assert press(page, "Home") == names[0] == "causal_lm"
    drawn(page, lambda: page.keyboard.press("Enter"))
    chosen = page.locator("[role=option][aria-selected=true]")
    assert chosen.get_attribute("data-objective") == focused(page) == "causal_lm"
    assert press(page, "Tab") == ""


@pytest.mark.slow
def test_tokens_are_one_tab_stop(page, address):
    opened(page, address, "span_corruption")
    page.focus('[data-token="0"]')
    assert press(page, "ArrowRight", "ArrowRight", "ArrowLeft") == "1"
    drawn(page, lambda: page.keyboard.press("Space"))
    assert focused(page) == "1"
    assert press(page, "Tab") == ""
    drawn(page, lambda: page.keyboard.press("Enter"))  # hides random tokens again
    assert focused(page) == "0"


@pytest.mark.slow
def test_choice_that_cannot_be_hidden_can_be_undone(page, address):
    opened(page, address, "prefix_lm")
    page.click('[data-token="1"]')
    error_with(page, "hide")
    assert page.locator('[data-token][aria-pressed="true"]').count() == 1
    drawn(page, lambda: page.click("text=Hide random tokens again"))
    assert error_of(page) == ""


@pytest.mark.slow
def test_opened_members_stay_open(page, address):
    opened(page, address, "spans_and_prefix")
    members = page.locator(".picture details")
    members.nth(0).locator("summary").click()
    members.nth(1).locator("summary").click()
    drawn(page, lambda: page.click("text=Another draw"))
    assert [one.get_attribute("open") for one in members.all()] == [None, ""]


@pytest.mark.slow
def test_skip_link_keeps_the_state(page, address):
    opened(page, address, "causal_lm")
    before = page.url
    page.press(".skip", "Enter")
    assert page.url == before and page.locator(":focus").get_attribute("id") == "main"


@pytest.mark.slow
def test_two_tabs_have_their_own_state(browser, address):
    context = browser.new_context()
    first, second = context.new_page(), context.new_page()
    opened(first, address, "causal_lm")
    opened(second, address, "masked_lm")
    drawn(first, lambda: first.fill("textarea", "one two three"))
    assert second.locator("textarea").input_value().startswith("The quick")
    assert first.locator(".panel h2").inner_text() == "Causal language modeling"
    first.reload()
    drawn(first)
    assert first.locator("textarea").input_value() == "one two three"
    context.close()


@pytest.mark.slow
def test_two_objectives_share_the_text(page, address):
    page.goto(f"{address}compare")
    drawn(page)
    drawn(page, panel=1)
    page.fill("textarea", "to be or not to be")
    for panel in 0, 1:
        page.locator(".panel .tokens").nth(panel).filter(has_text="to be or").wait_for()
    texts = page.locator(".panel .tokens").all_inner_texts()
    assert [text.strip() for text in texts] == ["to be or not to be"] * 2


@pytest.mark.slow
def test_vocabulary_page_shows_ids_and_bytes(page, address):
    page.goto(f"{address}vocabulary")
    page.select_option("select", "bytes")
    page.fill("textarea", "aé")
    page.locator("td", has_text="c3").wait_for()
    assert page.locator("tbody td:last-child").all_inner_texts() == ["61", "c3", "a9"]


MINE = """
from pretrax import objectives


def mine(ids, rate: float = {rate}):
    {line}
    return objectives.masked_lm(ids, rate=rate)
"""


@pytest.mark.slow
def test_edited_objective_file_is_reloaded_and_errors_are_shown(page, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "explored_objectives.py"
    name = "explored_objectives.mine"

    def write(rate: float, line: str = "pass", moment: int = 0) -> None:
        file.write_text(MINE.format(rate=rate, line=line))
        os.utime(file, (moment, moment))

    write(0.5, moment=1)
    with served(Explorer(objective=name)) as address:
        opened(page, address, name)
        assert page.locator('[data-setting$=".rate"] input[type=number]').input_value() == "0.5"
        write(0.5, "raise RuntimeError('not yet')", moment=2)
        page.click("text=Another draw")
        assert f"{file}:6" in error_with(page, "not yet")
        write(0.5, "this is no Python", moment=3)
        page.click("text=Another draw")
        assert f"{file}:6" in error_with(page, "SyntaxError")
        write(0.9, moment=4)
        drawn(page, lambda: page.click("text=Another draw"))
        assert error_of(page) == ""
    sys.modules.pop("explored_objectives")


@pytest.mark.slow
def test_page_reports_a_killed_server_and_an_outdated_token(page, tmp_path):
    def begin(port: int = 0):
        command = [sys.executable, "-m", "pretrax", "explore", "--no_browser", f"--port={port}"]
        running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        return running, re.search(r"http\S+", running.stdout.readline())[0]

    running, address = begin()
    opened(page, address)
    running.send_signal(signal.SIGKILL)
    running.wait()
    page.click("text=Another draw")
    error_with(page, "pretrax explore")
    port = int(re.search(r":(\d+)/", address)[1])
    running, again = begin(port)
    page.click("text=Another draw")
    error_with(page, "its token")
    page.goto(again)
    drawn(page)
    page.complaints.clear()  # the browser reports the requests that failed
    running.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert running.wait(timeout=60) == 130 and time.monotonic() - began < 30
