"""The guide states only what has been measured, for any results."""

import functools
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
from pretrax.comparison.report.positive_controls import KEPT as CONTROLS
from pretrax.comparison.report.summary import summary_of
from pretrax.comparison.variants import read_comparison
from pretrax.settings.partial import as_partial
from tests import recompute_claims
from tests.comparison import planted

DOCS = Path(__file__).resolve().parents[1] / "docs"
NAMES = sorted(path.stem for path in Path("gin_configs/comparisons").glob("*.gin"))
KEPT = [name for name in NAMES if results.read_setup(DOCS / "comparisons" / name)]
# A figure of the planted results, and the figure that the guide reads for its first task.
PAIRS, TOLD_BY = "minimal_pairs", "finetune"
# Effects that leave every planted figure below its baseline.
BELOW = {"minimal_pairs": -0.4, "bits_per_byte": 4.0, "classify": -0.5}


sys.path.insert(0, str(DOCS))  # The scripts there import each other.
import claims  # noqa: E402
import guide  # noqa: E402

from tests.refusals import refuses  # noqa: E402


@pytest.fixture(autouse=True)
def charts(monkeypatch, request):
    """Disables charts, except in tests of charts, since three for each comparison take long."""
    if not any(word in request.node.name for word in ("charts", "up_to_date")):
        monkeypatch.setattr(guide, "chart_files", lambda summary: {})


def drawn(folder, **measured):
    """Returns the pages for these measured comparisons."""
    folder.mkdir(exist_ok=True)
    for page in (guide.PAGE, guide.FOUND, guide.READING):
        (folder / page).write_text((DOCS / page).read_text())
    for name, made in measured.items():
        results.write(folder / guide.COMPARISONS / name, made)
    return guide.drawn(folder)


def row(page, start):
    """Returns the cells of the row of a table that begins with this text."""
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {start}")]
    return line.strip("| ").split(" | ")


def renamed(made, old=PAIRS, new=TOLD_BY):
    """Returns results whose figure has the name that the guide reads."""
    measurements = [
        m._replace(figure=m.figure._replace(name=m.figure.name.replace(old, new)))
        for m in made.measurements
    ]
    return made._replace(measurements=measurements)


def checked(tmp_path, **settings):
    """Returns our check of classification by a comparison of masked and causal."""
    made = renamed(planted.results(["masked", "causal"], reference="masked", **settings))
    page = drawn(tmp_path, objectives=made)[guide.PAGE]
    return row(page, "**classify")[3].split("<br>")[0]


@pytest.mark.slow
def test_guide_pages_are_up_to_date():
    for name, text in guide.drawn(DOCS).items():
        assert (DOCS / name).read_text() == text, f"{name}: run python docs/guide.py"


def test_guide_without_results_marks_every_check_as_not_measured(tmp_path):
    pages = drawn(tmp_path)
    pictures = {claims.PICTURE, claims.PHONE_PICTURE}
    assert set(pages) == {guide.PAGE, guide.FOUND, guide.READING, *pictures}
    assert f"{len(claims.CLAIMS)} claims" in pages[guide.FOUND]
    for task in guide.TASKS:
        cell = row(pages[guide.PAGE], f"**{task.want}**")[3]
        assert cell.count("**none**: not measured") == len(task.checks) > 0


@pytest.mark.slow
def test_guide_has_a_page_for_every_comparison_with_results(tmp_path):
    pages = drawn(tmp_path, **{name: planted.results(["a", "b"], seeds=[0]) for name in NAMES})
    assert sum(page.endswith(".md") for page in pages) == 3 + len(NAMES)
    assert {one.comparison for one in guide.SETTINGS} == set(KEPT) - {guide.MATRIX, CONTROLS.name}


@pytest.mark.slow
def test_verdict_of_a_check_follows_its_result(tmp_path):
    better = checked(tmp_path, effects={("masked", PAIRS): 0.2})
    assert better.startswith("**agrees**: +0.") and "5 seeds" in better
    assert "[finetune](comparisons/objectives.md)" in better
    assert checked(tmp_path, effects={("causal", PAIRS): 0.2}).startswith("**disagrees**: −0.")
    assert checked(tmp_path).startswith("**inconclusive**")
    below = {(variant, PAIRS): -0.3 for variant in ("masked", "causal")}  # chance is 0.5
    assert checked(tmp_path, effects=below).startswith("**none** (not informative)")
    assert row(guide.drawn(tmp_path)[guide.PAGE], "**generate text**")[3].startswith(
        "**none**: not"
    )


def test_page_of_choices_is_short():
    assert len((DOCS / guide.PAGE).read_text().split()) <= 2200
    assert "no eval metric measures this" not in (DOCS / guide.PAGE).read_text().lower()


def test_settings_are_grouped_by_significance_and_informativeness(tmp_path):
    below = {(variant, name): sign for variant in ("15%", "40%") for name, sign in BELOW.items()}
    effects_of = {"masking_rate": {("40%", PAIRS): 0.3}, "batch_size": {}, "packing": below}
    made = {
        name: planted.results(["15%", "40%"], effects=effects, reference="15%")
        for name, effects in effects_of.items()
    }
    page = drawn(tmp_path, **made)[guide.PAGE]
    _, better, worse, clearest, size, rest = row(page, "[masking rate]")
    assert (better, worse, rest) == ("40%", "15%", "0 of 2")
    assert re.fullmatch(rf"0\.\d+ at {PAIRS}", clearest) and "5 seeds" in size
    (flat,) = re.findall(r"^\*\*No effect detected:\*\* (.*)$", page, re.M)
    (blind,) = re.findall(r"^\*\*Not informative:\*\* (.*)$", page, re.M)
    assert flat == "[batch size](comparisons/batch_size.md)."
    assert blind == "[packing](comparisons/packing.md)."


@pytest.mark.slow
def test_heat_map_marks_significant_and_uninformative_cells(tmp_path):
    def cells(**settings):
        made = planted.results(["masked", "causal"], reference="masked", **settings)
        return drawn(tmp_path, objectives=made)[guide.HEAT_MAP]

    assert "•" not in cells() and "hatch" not in cells().replace("hatched", "")
    held = cells(effects={("causal", PAIRS): 0.3})
    assert held.count("•") == 1 and held.count("<pattern") == 0
    assert cells(effects={(v, PAIRS): -0.3 for v in ("masked", "causal")}).count("<pattern") == 1


def test_comparison_page_has_its_charts(tmp_path):
    pages = drawn(tmp_path, masking_rate=planted.results(["a", "b"]))
    files = [f"masking_rate/{name}.svg" for name in ("minimal_pairs", "bits_per_byte", "classify")]
    for file in files:
        assert f"]({file})" in pages["comparisons/masking_rate.md"]
        picture = pages[f"comparisons/{file}"]
        assert "prefers-color-scheme: dark" in picture and "fill:var(--card)" in picture
        assert picture.count("<svg") == 1 and "higher is better" in picture or "lower" in picture


def test_drawing_the_guide_twice_changes_nothing(tmp_path):
    once = drawn(tmp_path, masking_rate=planted.results(["a", "b"]))
    (tmp_path / guide.PAGE).write_text(once[guide.PAGE])
    assert guide.drawn(tmp_path) == once


CHECKS = [one for task in guide.TASKS for one in task.checks]


def test_guide_covers_every_stored_comparison_and_cited_paper():
    settings = {one.comparison for one in guide.SETTINGS}
    assert settings | {guide.MATRIX, CONTROLS.name} == set(KEPT)
    texts = [*(one.evidence for one in guide.TASKS), *(one.literature for one in guide.SETTINGS)]
    cited = {key for text in texts for key in re.findall(r"\{(\w+)\}", text)}
    assert cited | {one.source for one in claims.CLAIMS} == set(guide.PAPERS)


def test_literature_is_stated_once_for_each_setting():
    """A report takes what a paper says from the claims, if there is a claim."""
    claimed = {one.contrast.comparison for one in claims.CLAIMS}
    assert all(bool(one.literature) != (one.comparison in claimed) for one in guide.SETTINGS)
    text = (DOCS / guide.COMPARISONS / "fill_in_the_middle.md").read_text()
    assert next(one.claim for one in claims.CLAIMS if one.source == "fim") in text


@pytest.mark.parametrize("name", KEPT)
def test_stored_results_match_their_gin_comparison(name):
    kept, now = results.read(DOCS / guide.COMPARISONS / name), read_comparison(name)
    assert set(trained_variants(now)) == set(kept.setup.variants)
    assert {run.seed for run in kept.runs} == set(now.seeds)
    assert bool(kept.setup.tuned) == (now.tuning is not None)
    assert kept.setup.budget == budget_words(now.budget)


def test_page_without_markers_is_rejected(tmp_path):
    (tmp_path / guide.PAGE).write_text("# Choose\n")
    with refuses(ValueError, "choosing.md"):
        guide.drawn(tmp_path)


def claim_on(figure, better="40%", than="15%", margin=None):
    """Returns a claim on a contrast of the comparison `masking_rate`."""
    contrast = claims.Contrast("masking_rate", figure, better, than, margin)
    return claims.Claim("So", "It is so.", "t5", contrast)


def verdict(effect, better="40%", than="15%", figure="bits_per_byte"):
    """Returns the verdict on a claim for a given difference between 40% and 15%."""
    made = planted.results(["15%", "40%"], effects={("40%", figure): effect}, reference="15%")
    contrast = claims.Contrast("masking_rate", figure, better, than)
    return claims.verdict_on({"masking_rate": summary_of(made)}, contrast)


def test_verdict_on_a_claim_follows_its_confidence_interval():
    lower = verdict(-0.5)  # fewer bits are better
    assert lower.verdict == claims.REPRODUCED
    assert (
        0 < lower.gain.corrected_estimate.low < lower.gain.estimate.low < lower.gain.estimate.mean
    )
    assert verdict(-0.5, "15%", "40%").verdict == claims.CONTRADICTED
    assert verdict(+0.5).verdict == claims.CONTRADICTED
    assert verdict(+0.3, figure="classify").verdict == claims.REPRODUCED
    assert verdict(0.0).verdict == claims.INCONCLUSIVE


def test_difference_between_two_variants_at_chance_is_not_informative():
    worse = {(variant, PAIRS): -0.4 for variant in ("15%", "40%")}  # chance is 0.5
    for effects in (worse | {("40%", PAIRS): -0.25}, worse):
        summary = summary_of(planted.results(["15%", "40%"], effects=effects, reference="15%"))
        for margin in (None, 0.9):
            contrast = claim_on(PAIRS, margin=margin).contrast
            one = claims.verdict_on({"masking_rate": summary}, contrast)
            assert one.verdict == claims.NOT_INFORMATIVE
    assert summary.differences[0].is_significant is False
    row = claims.rows({"masking_rate": summary}, guide.paper_link, [claim_on(PAIRS)])
    assert "is shown to be better than the baseline (0.5)" in row


def test_claim_states_the_number_of_tuned_learning_rates():
    claim = claim_on(PAIRS)
    made = planted.results(["15%", "40%"], reference="15%")
    row = claims.rows({"masking_rate": summary_of(made)}, guide.paper_link, [claim])
    assert "5 seeds, " in row and ", not tuned (" in row
    summary = summary_of(planted.tuned(made))
    rates = len(summary.tuned["40%"].losses)
    words = f", best of {rates} learning rates ("
    row = claims.rows({"masking_rate": summary}, guide.paper_link, [claim])
    assert rates > 1 and words in row


@pytest.mark.slow
def test_setting_won_by_training_on_the_measured_noise_is_not_listed(tmp_path):
    made = planted.results(["a", "b"], effects={("a", PAIRS): 0.2}, reference="b")

    def is_worth_changing(*trained):
        note = f"{guide.TRAINED_ON_NOISE} (masked_lm)."
        noted = [
            m._replace(figure=m.figure._replace(note=note * (m.variant in trained)))
            for m in made.measurements
        ]
        page = drawn(tmp_path, masking_rate=made._replace(measurements=noted))[guide.PAGE]
        return "| [masking rate]" in page

    assert not is_worth_changing("a")
    for others in ((), ("b",), ("a", "b")):
        assert is_worth_changing(*others)


def no_difference(effect, margin, control=2.0):
    """Returns the verdict on a claim that 40% is worse than 15% by less than a margin in bits."""
    effects = {("40%", "bits_per_byte"): effect, ("80%", "bits_per_byte"): control}
    made = planted.results(["15%", "40%", "80%"], effects=effects, reference="15%")
    claim = claim_on("bits_per_byte", margin=margin)
    summaries = {"masking_rate": summary_of(made)}
    ((_, one),) = claims.verdicts(summaries, [claim])
    return one, claims.rows(summaries, guide.paper_link, [claim])


def test_claim_of_no_difference_is_reproduced_by_a_cost_below_the_margin():
    assert no_difference(0.0, 0.5)[0].verdict == claims.REPRODUCED
    # It is better by more than the margin.
    assert no_difference(-0.9, 0.5)[0].verdict == claims.REPRODUCED
    assert no_difference(0.0, 0.001)[0].verdict == claims.INCONCLUSIVE
    assert no_difference(0.9, 0.5)[0].verdict == claims.CONTRADICTED
    one, row = no_difference(0.0, 0.5)
    assert ", margin 0.5 |" in row and math.isfinite(one.gain.corrected_estimate.low)


def test_claim_of_no_difference_uses_the_corrected_interval():
    one, _ = no_difference(0.0, 0.5)
    most = -one.gain.corrected_estimate.low
    assert most > -one.gain.estimate.low  # end of the uncorrected interval
    between = (most - one.gain.estimate.low) / 2
    assert no_difference(0.0, most + 0.001)[0].verdict == claims.REPRODUCED
    assert no_difference(0.0, between)[0].verdict == claims.INCONCLUSIVE


def test_claim_of_no_difference_needs_a_positive_control():
    assert no_difference(0.0, 0.5, control=0.0)[0].verdict == claims.NOT_INFORMATIVE


def test_significant_difference_contradicts_a_claim_of_none_without_control():
    one, _ = no_difference(0.9, 0.5, control=0.0)
    assert one.verdict == claims.CONTRADICTED


def test_claim_below_the_bag_of_words_or_at_a_grid_edge_is_not_informative():
    made = planted.results(["15%", "40%"], effects={("40%", PAIRS): 0.2}, reference="15%")

    def verdict(figures):
        more = [
            m._replace(figure=one)
            for m in made.measurements
            if m.figure.name == PAIRS
            for one in figures
        ]
        summary = summary_of(made._replace(measurements=[*made.measurements, *more]))
        return claims.verdict_on({"masking_rate": summary}, claim_on(PAIRS).contrast).verdict

    words = made.measurements[0].figure._replace(name=PAIRS + BAG_OF_WORDS, better="neither")
    assert verdict([words._replace(value=0.6)]) == claims.REPRODUCED
    assert verdict([words._replace(value=0.95)]) == claims.NOT_INFORMATIVE
    assert verdict(peak_figures(PAIRS, 0.2, [0.1, 0.2, 0.3])) == claims.REPRODUCED
    assert verdict(peak_figures(PAIRS, 0.3, [0.1, 0.2, 0.3])) == claims.NOT_INFORMATIVE


def test_difference_of_one_seed_is_not_informative():
    claim = claim_on("classify", "b", "a")
    summaries = {"masking_rate": summary_of(planted.results(["a", "b"], [0]))}
    assert "**not informative**" in claims.rows(summaries, guide.paper_link, [claim])


def test_claim_without_results_shows_the_command():
    claim = claims.CLAIMS[0]
    assert claims.verdict_on({}, claim.contrast).verdict == claims.MISSING
    table = claims.rows({}, guide.paper_link)
    assert (
        f"| **not measured yet** |  |  |  | `pretrax compare {claim.contrast.comparison}` |"
        in table
    )


CONTRASTS = dict.fromkeys([*(claim.contrast for claim in claims.CLAIMS), *CHECKS])


@pytest.mark.parametrize("c", CONTRASTS, ids=lambda c: f"{c.comparison}, {c.figure}")
def test_contrast_names_variants_and_metrics_of_its_comparison(c):
    comparison = read_comparison(c.comparison)
    assert {c.better, c.than} <= set(comparison.variants)
    assert comparison.reference in (None, c.better, c.than)
    measured = [as_partial(y).function.__name__ for y in comparison.eval_metrics]
    assert c.figure.split(" (")[0] in measured


@functools.cache
def kept():
    """Returns the summaries of the comparisons with stored results."""
    return {name: summary_of(results.read(DOCS / guide.COMPARISONS / name)) for name in KEPT}


@pytest.mark.slow
def test_claim_figures_match_an_independent_recomputation():
    page = (DOCS / guide.FOUND).read_text()
    assert recompute_claims.mismatches(page) == []
    wrong = page.replace("+0.64 share", "+0.74 share").replace("(+0.6 to +4.5)", "(+0.6 to +4.4)")
    assert len(recompute_claims.mismatches(wrong)) == 2
    assert recompute_claims.mismatches("")


def test_claim_of_no_difference_states_its_margin():
    for claim in claims.CLAIMS:
        assert not re.search(r"costs? nothing|no harm|no cost", claim.claim)
        margin = claim.contrast.margin
        if margin is not None:
            assert re.search(rf"less than {margin:g}\b", claim.claim), claim.claim
    assert not re.search(r"costs? nothing", (DOCS / guide.FOUND).read_text())


@pytest.mark.slow
def test_stored_fine_tuned_figures_have_their_learning_rate_grid():
    for name, summary in kept().items():
        parts = {column.name for column in summary.parts}
        for peak in [part for part in parts if part.endswith("/peak")]:
            assert {f"{peak}/smallest", f"{peak}/largest"} <= parts, name


@pytest.mark.slow
def test_readme_counts_match_the_stored_results():
    found = kept()
    readme = " ".join((DOCS.parent / "README.md").read_text().split())
    runs = sum(len(summary.trained) for summary in found.values())
    assert f"{runs} runs in {len(found)} comparisons" in readme
    verdicts = [v.verdict for _, v in claims.verdicts(found)]
    for verdict in (*claims.COLORS, claims.MISSING):
        count = verdicts.count(verdict)
        words = verdict.removesuffix(" at this size")
        assert not count or re.search(rf"\b{count} (is|are) {words}", readme), verdict
    assert f"of {len(verdicts)} claims" in readme
