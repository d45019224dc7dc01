"""The guide states only what has been measured, for any results."""

import math
import re
import sys
from pathlib import Path

import pytest

from pretrax.comparison import results
from pretrax.comparison.budgets import budget_words
from pretrax.comparison.comparison import trained_variants
from pretrax.comparison.figures import peak_figures
from pretrax.comparison.report.informative import BAG_OF_WORDS
from pretrax.comparison.report.summary import summary
from pretrax.comparison.variants import read_comparison
from pretrax.settings.partial import as_partial
from tests.comparison import planted

DOCS = Path(__file__).resolve().parents[1] / "docs"
NAMES = sorted(path.stem for path in Path("gin_configs/comparisons").glob("*.gin"))
# A figure of the planted results, and the figure that the guide reads for its first task.
PAIRS, TOLD_BY = "minimal_pairs", "finetune"


sys.path.insert(0, str(DOCS))  # The scripts there import each other.
import claims  # noqa: E402
import guide  # noqa: E402

from tests.refusals import refuses  # noqa: E402


@pytest.fixture(autouse=True)
def charts(monkeypatch, request):
    """Disables charts, except in their test, since three for each comparison take long."""
    if "charts" not in request.node.name and not request.node.get_closest_marker("slow"):
        monkeypatch.setattr(guide, "chart_files", lambda told: {})


def drawn(folder, **measured):
    """Returns the pages for these measured comparisons."""
    folder.mkdir(exist_ok=True)
    for page in (guide.PAGE, guide.FOUND):
        (folder / page).write_text((DOCS / page).read_text())
    for name, some in measured.items():
        results.write(folder / guide.COMPARISONS / name, some)
    return guide.drawn(folder)


def here(page, task):
    """Returns the cell of a row for our own measurement."""
    *_, row = [line for line in page.splitlines() if line.startswith(f"| {task} |")]
    return row.split(" | ")[1]


def shown(page, task):
    """Returns the recommendation for a task, and its figures in the summary table."""
    row = next(line for line in page.splitlines() if line.startswith(f"| {task} |"))
    return row.strip("| ").split(" | ")[1:]


def classified(tmp_path, made):
    """Returns the first task's cell if the planted figure has the name that the guide reads."""
    renamed = [
        m._replace(figure=m.figure._replace(name=m.figure.name.replace(PAIRS, TOLD_BY)))
        for m in made.measurements
    ]
    page = drawn(tmp_path, objectives=made._replace(measurements=renamed))[guide.PAGE]
    return here(page, "classify texts")


def cell(tmp_path, **settings):
    return classified(tmp_path, planted.results(["masked", "causal"], **settings))


@pytest.mark.slow
def test_the_pages_are_drawn_from_the_results():
    for name, text in guide.drawn(DOCS).items():
        assert (DOCS / name).read_text() == text, f"{name}: run python docs/guide.py"


def test_without_results_every_cell_says_so(tmp_path):
    pages = drawn(tmp_path)
    assert set(pages) == {guide.PAGE, guide.FOUND, claims.PICTURE}
    assert f"{len(claims.CLAIMS)} claims" in pages[guide.FOUND]
    assert "Nothing has been measured here yet." in pages[guide.PAGE]
    for name in NAMES:
        assert f"Not measured yet: `pretrax compare {name}`." in pages[guide.PAGE]


def test_one_result_changes_its_cells_alone(tmp_path):
    told = cell(tmp_path, effects={("causal", PAIRS): 0.2})
    assert told.startswith("**causal** 0.898 ±") and "; all others are worse." in told
    assert "(comparisons/objectives.md)" in told and "ot informative" not in told
    pages = guide.drawn(tmp_path)
    assert "# How many tokens" in pages["comparisons/objectives.md"]
    assert here(pages[guide.PAGE], "span length").startswith("Not measured yet")


def test_all_results_leave_no_comparison_open(tmp_path):
    pages = drawn(tmp_path, **{name: planted.results(["a", "b"], seeds=[0]) for name in NAMES})
    assert len(pages) == 3 + len(NAMES)
    assert "Not measured yet" not in pages[guide.PAGE]


def test_what_is_shown_comes_first_with_one_recommendation_a_row(tmp_path):
    effects = {("causal", PAIRS): 0.2}
    made = planted.results(["masked", "causal"], effects=effects)
    classified(tmp_path, made)
    page = guide.drawn(tmp_path)[guide.PAGE]
    told = "causal: better than masked ([finetune](comparisons/objectives.md))"
    assert shown(page, "classify texts") == ["**masked LM**", told]
    assert shown(page, "tag words")[1].startswith("no difference holds (")
    assert "10 runs in 1 comparisons. The models have 3.15M to 3.15M parameters and 5 to 5" in page


def test_a_page_has_its_charts(tmp_path):
    pages = drawn(tmp_path, masking_rate=planted.results(["a", "b"]))
    files = [f"masking_rate/{name}.svg" for name in ("minimal_pairs", "bits_per_byte", "classify")]
    for file in files:
        assert f"]({file})" in pages["comparisons/masking_rate.md"]
        picture = pages[f"comparisons/{file}"]
        assert "prefers-color-scheme: dark" in picture and "fill:var(--card)" in picture
        assert picture.count("<svg") == 1 and "higher is better" in picture or "lower" in picture


def test_drawn_again_it_is_the_same(tmp_path):
    once = drawn(tmp_path, masking_rate=planted.results(["a", "b"]))
    (tmp_path / guide.PAGE).write_text(once[guide.PAGE])
    assert guide.drawn(tmp_path) == once


def test_differences_within_chance_give_no_choice(tmp_path):
    assert re.search(r"^\*\*\w+\*\* .*; not distinguished from \w+\.", cell(tmp_path))


def test_variants_that_were_not_compared_are_not_called_alike(tmp_path):
    """Differences are from the reference, so the best and another variant are not compared."""
    effects = {("causal", PAIRS): 0.2, ("prefix", PAIRS): 0.19}
    made = planted.results(["masked", "causal", "prefix"], effects=effects, reference="masked")
    assert "; better than masked; not compared with prefix." in classified(tmp_path, made)


def test_a_choice_has_what_speaks_for_it_and_against_it(tmp_path):
    effects = {("40%", PAIRS): 0.3, ("40%", "bits_per_byte"): 0.5, ("30%", "classify"): 0.5}
    made = planted.results(["15%", "30%", "40%"], effects=effects, reference="15%")
    told = here(drawn(tmp_path, masking_rate=made)[guide.PAGE], "masking rate")
    assert told.startswith(
        '"40%" compared with "15%": better at minimal_pairs; worse at bits_per_byte. "30%" '
    )
    assert '"30%" compared with "15%": better at classify. 3 of 6 differences do not' in told


def test_a_single_seed_distinguishes_nothing(tmp_path):
    told = cell(tmp_path, seeds=[0], effects={("causal", PAIRS): 0.2})
    assert (
        told.startswith("Not informative: no variant is shown to be better") and "holds" not in told
    )


def test_a_task_that_no_variant_learned_is_noted(tmp_path):
    told = cell(tmp_path, effects={(v, PAIRS): -0.2 for v in ("masked", "causal")})
    assert told.startswith("Not informative: no variant is shown to be better")
    assert "knowing nothing (0.5)" in told and "**" not in told


def test_a_task_that_words_alone_solve_is_noted(tmp_path):
    made = planted.results(["masked", "causal"])
    words = [
        m._replace(figure=m.figure._replace(name=PAIRS + BAG_OF_WORDS, better="neither"))
        for m in made.measurements
        if m.figure.name == PAIRS
    ]
    made = made._replace(measurements=[*made.measurements, *words])
    told = classified(tmp_path, made)
    assert told.startswith("Not informative:") and "a bag of words (0.703)" in told
    page = guide.drawn(tmp_path)[guide.PAGE]
    assert shown(page, "classify texts")[1].startswith("not informative: no variant is shown")


def test_a_figure_that_was_not_measured_is_noted(tmp_path):
    pages = drawn(tmp_path, objectives=planted.results(["masked", "causal"]))
    assert here(pages[guide.PAGE], "tag words").startswith("Too few figures of `tag`")


@pytest.mark.parametrize("task", guide.TASKS, ids=lambda task: task.task)
def test_the_guide_names_eval_metrics_that_are_measured(task):
    measured = [
        as_partial(y).function.__name__ for y in read_comparison(task.comparison).eval_metrics
    ]
    assert task.figure is None or task.figure in measured


def test_the_guide_has_every_comparison_and_every_paper():
    named = {one.comparison for one in (*guide.TASKS, *guide.SETTINGS)}
    assert named == set(NAMES)
    rows = (*guide.TASKS, *guide.SETTINGS)
    cells = [cell for one in rows for cell in one if isinstance(cell, str)]
    cited = {key for text in cells for key in re.findall(r"\{(\w+)\}", text)}
    assert cited | {one.source for one in claims.CLAIMS} == set(guide.PAPERS)


KEPT = [name for name in NAMES if results.read_setup(DOCS / guide.COMPARISONS / name)]


@pytest.mark.parametrize("name", KEPT)
def test_kept_results_are_what_the_command_would_give(name):
    kept, now = results.read(DOCS / guide.COMPARISONS / name), read_comparison(name)
    assert set(trained_variants(now)) == set(kept.setup.variants)
    assert {run.seed for run in kept.runs} == set(now.seeds)
    assert bool(kept.setup.tuned) == (now.tuning is not None)
    assert kept.setup.budget == budget_words(now.budget)


def test_a_page_without_marks_is_refused(tmp_path):
    (tmp_path / guide.PAGE).write_text("# Choose\n")
    with refuses(ValueError, "choosing.md"):
        guide.drawn(tmp_path)


def test_parts_that_answer_the_question_are_given(tmp_path):
    (row,) = [one for one in guide.SETTINGS if one.parts]
    made = planted.results(["encoder", "decoder"])
    renamed = [
        m._replace(figure=m.figure._replace(name=row.parts[0]))
        for m in made.measurements
        if m.figure.name == f"{PAIRS}/brackets"
    ]
    pages = drawn(tmp_path, transfer=made._replace(measurements=[*made.measurements, *renamed]))
    told = here(pages[guide.PAGE], row.choice)
    assert re.match(rf"{row.parts[0]}: encoder 0\.\d+ ± 0\.\d+, decoder 0\.\d+ ± 0\.\d+\. ", told)
    assert row.parts[1] not in told


def verdict(effect, better="40%", than="15%", figure="bits_per_byte"):
    """Returns the verdict on a claim for a given difference between 40% and 15%."""
    made = planted.results(["15%", "40%"], effects={("40%", figure): effect}, reference="15%")
    claim = claims.Claim("It is so.", "t5", "masking_rate", figure, better, than)
    (one,) = claims.verdicts({"masking_rate": summary(made)}, [claim])
    return one


def test_a_claim_is_read_off_its_difference():
    lower = verdict(-0.5)  # fewer bits are better
    assert lower.verdict == claims.REPRODUCED and 0 < lower.low < lower.mean < lower.high
    assert verdict(-0.5, "15%", "40%").verdict == claims.OPPOSITE
    assert verdict(+0.5).verdict == claims.OPPOSITE
    assert verdict(+0.3, figure="classify").verdict == claims.REPRODUCED
    assert verdict(0.0).verdict == claims.INCONCLUSIVE


def test_a_difference_between_two_that_know_nothing_decides_nothing():
    worse = {(variant, PAIRS): -0.4 for variant in ("15%", "40%")}  # chance is 0.5
    claim = claims.Claim("It is so.", "t5", "masking_rate", PAIRS, "40%", "15%")
    for effects in (worse | {("40%", PAIRS): -0.25}, worse):
        told = summary(planted.results(["15%", "40%"], effects=effects, reference="15%"))
        for margin in (None, 0.9):
            (one,) = claims.verdicts({"masking_rate": told}, [claim._replace(margin=margin)])
            assert one.verdict == claims.NOT_INFORMATIVE
    assert told.differences[0].holds is False
    row = claims.table({"masking_rate": told}, guide.paper_link, [claim])
    assert "is shown to be better than knowing nothing (0.5)" in row


def test_a_claim_says_among_how_many_rates_was_chosen():
    claim = claims.Claim("It is so.", "t5", "masking_rate", PAIRS, "40%", "15%")
    made = planted.results(["15%", "40%"], reference="15%")
    row = claims.table({"masking_rate": summary(made)}, guide.paper_link, [claim])
    assert "5 seeds, learning rates not tuned:" in row
    told = summary(planted.tuned(made))
    rates = len(told.tuned["40%"].losses)
    words = f"5 seeds, the best of {rates} learning rates each:"
    row = claims.table({"masking_rate": told}, guide.paper_link, [claim])
    assert rates > 1 and words in row


def test_a_figure_on_ones_home_ground_is_marked(tmp_path):
    made = planted.results(["a", "b"], effects={("a", PAIRS): 0.2}, reference="b")

    def told(*at_home):
        note = f"{guide.HOME} it was trained on such noise (masked_lm)."
        noted = [
            m._replace(figure=m.figure._replace(note=note * (m.variant in at_home)))
            for m in made.measurements
        ]
        page = drawn(tmp_path, masking_rate=made._replace(measurements=noted))[guide.PAGE]
        return here(page, "masking rate")

    assert f"better at {PAIRS} (home ground of a)." in told("a")
    for others in ((), ("b",), ("a", "b")):
        assert f"better at {PAIRS}." in told(*others)


def no_difference(effect, margin, control=2.0):
    """Returns the verdict on a claim that 40% is worse than 15% by less than a margin in bits."""
    effects = {("40%", "bits_per_byte"): effect, ("80%", "bits_per_byte"): control}
    made = planted.results(["15%", "40%", "80%"], effects=effects, reference="15%")
    claim = claims.Claim("It is so.", "t5", "masking_rate", "bits_per_byte", "40%", "15%", margin)
    told = {"masking_rate": summary(made)}
    (one,) = claims.verdicts(told, [claim])
    return one, claims.table(told, guide.paper_link, [claim])


def test_no_difference_is_a_cost_below_the_margin():
    assert no_difference(0.0, 0.5)[0].verdict == claims.REPRODUCED
    # It is better by more than the margin.
    assert no_difference(-0.9, 0.5)[0].verdict == claims.REPRODUCED
    assert no_difference(0.0, 0.001)[0].verdict == claims.INCONCLUSIVE
    assert no_difference(0.9, 0.5)[0].verdict == claims.OPPOSITE
    one, row = no_difference(0.0, 0.5)
    assert "the margin is 0.5 bits per byte" in row and "costs" in row and math.isfinite(one.low)


def test_no_difference_is_read_off_the_interval_that_is_corrected():
    one, row = no_difference(0.0, 0.5)
    count = len(planted.EVAL_METRICS) * 2
    least, most = re.search(rf"(\S+) to (\S+) if corrected for {count} diff", row).groups()
    most = float(most)
    assert most > -one.low  # end of the uncorrected interval
    between = (most - one.low) / 2
    assert no_difference(0.0, most + 0.001)[0].verdict == claims.REPRODUCED
    assert no_difference(0.0, between)[0].verdict == claims.INCONCLUSIVE


def test_no_difference_needs_a_positive_control():
    assert no_difference(0.0, 0.5, control=0.0)[0].verdict == claims.NOT_INFORMATIVE


def test_a_difference_that_holds_against_a_claim_of_none_needs_no_other_control():
    one, _ = no_difference(0.9, 0.5, control=0.0)
    assert one.verdict == claims.OPPOSITE


def test_a_claim_below_the_bag_of_words_or_at_an_edge_is_not_informative():
    made = planted.results(["15%", "40%"], effects={("40%", PAIRS): 0.2}, reference="15%")
    claim = claims.Claim("It is so.", "t5", "masking_rate", PAIRS, "40%", "15%")

    def verdict(figures):
        more = [
            m._replace(figure=one)
            for m in made.measurements
            if m.figure.name == PAIRS
            for one in figures
        ]
        told = summary(made._replace(measurements=[*made.measurements, *more]))
        (found,) = claims.verdicts({"masking_rate": told}, [claim])
        return found.verdict

    words = made.measurements[0].figure._replace(name=PAIRS + BAG_OF_WORDS, better="neither")
    assert verdict([words._replace(value=0.6)]) == claims.REPRODUCED
    assert verdict([words._replace(value=0.95)]) == claims.NOT_INFORMATIVE
    assert verdict(peak_figures(PAIRS, 0.2, [0.1, 0.2, 0.3])) == claims.REPRODUCED
    assert verdict(peak_figures(PAIRS, 0.3, [0.1, 0.2, 0.3])) == claims.NOT_INFORMATIVE


def test_a_difference_of_one_seed_is_given_without_an_interval():
    claim = claims.Claim("It is so.", "t5", "masking_rate", "classify", "b", "a")
    told = {"masking_rate": summary(planted.results(["a", "b"], [0]))}
    assert "**not informative**" in claims.table(told, guide.paper_link, [claim])


def test_a_claim_without_results_has_a_command():
    claim = claims.CLAIMS[0]
    (one,) = claims.verdicts({}, [claim])
    assert one.verdict == claims.MISSING
    assert f"| **not measured yet** |  | `pretrax compare {claim.comparison}` |" in claims.table(
        {}, guide.paper_link
    )


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.claim[:40])
def test_a_claim_names_what_its_comparison_measures(claim):
    comparison = read_comparison(claim.comparison)
    assert {claim.better, claim.than} <= set(comparison.variants)
    assert comparison.reference in (None, claim.better, claim.than)
    measured = [as_partial(y).function.__name__ for y in comparison.eval_metrics]
    assert claim.figure.split(" (")[0] in measured


def kept():
    """The summaries of the comparisons with stored results."""
    return {name: summary(results.read(DOCS / guide.COMPARISONS / name)) for name in KEPT}


def test_a_claim_of_no_difference_states_its_margin_with_the_unit():
    for claim in claims.CLAIMS:
        assert not re.search(r"costs? nothing|no harm|no cost", claim.claim)
        if claim.margin is not None:
            assert re.search(rf"less than {claim.margin:g}\b", claim.claim), claim.claim
    assert not re.search(r"costs? nothing", (DOCS / guide.FOUND).read_text())


@pytest.mark.slow
def test_fine_tuned_figures_of_the_kept_results_have_their_grid():
    for name, told in kept().items():
        parts = {column.name for column in told.parts}
        for peak in [part for part in parts if part.endswith("/peak")]:
            assert {f"{peak}/smallest", f"{peak}/largest"} <= parts, name


@pytest.mark.slow
def test_the_front_page_says_what_the_pages_say():
    found = kept()
    readme = " ".join((DOCS.parent / "README.md").read_text().split())
    runs = sum(len(told.trained) for told in found.values())
    assert f"{runs} runs in {len(found)} comparisons" in readme
    some = [v.verdict for v in claims.verdicts(found)]
    for verdict in (*claims.COLORS, claims.MISSING):
        count = some.count(verdict)
        words = verdict.removesuffix(" at this size")
        assert not count or re.search(rf"\b{count} (is|are) {words}", readme), verdict
    assert f"of {len(some)} claims" in readme
