"""A report agrees with its figures, escapes its inputs, and links to the runs."""

import io
import math
import re
from xml.etree import ElementTree

import pytest
from rich.console import Console

from pretrax.cli import compare
from pretrax.comparison import budgets, formatting, report, results
from pretrax.comparison.budgets import budget_words
from pretrax.comparison.comparison import Comparison
from pretrax.comparison.figures import NEITHER, Figure
from pretrax.comparison.report import charts, equality, tables, terminal_report, wording
from pretrax.comparison.report.comparison_page import page
from pretrax.comparison.report.markdown_report import markdown
from pretrax.comparison.report.markdown_text import escaped
from pretrax.comparison.report.summary import summary_of
from pretrax.comparison.results import Measurement
from pretrax.comparison.statistics import Estimate
from pretrax.comparison.variants import comparison_file
from pretrax.settings.command_line import GinFiles
from pretrax.settings.partial import Partial
from pretrax.settings.printable import PrintableConsole, printable
from pretrax.visualization import svg
from tests.comparison import planted
from tests.refusals import assert_named, refuses
from tests.visualization import pages

EVIL = "<script>alert('&')</script> $x$ a|b"
EFFECT = {("40%", "bits_per_byte"): -0.5}
NAN = math.nan
FOLDED = re.compile(r'^<details markdown="1"><summary>[A-Z][\w ]+</summary>$|^</details>$', re.M)


@pytest.fixture(scope="module")
def run_results():
    """One run of 30% failed, and 40% is better in bits per byte."""
    found = planted.results(["15%", "30%", "40%"], effects=EFFECT, reference="15%")
    failed = "Traceback:\n  File …\nFloatingPointError: no longer finite"
    key = ("30%", 4)
    return found._replace(
        runs=[
            run._replace(error=failed, curves={}) if (run.variant, run.seed) == key else run
            for run in found.runs
        ],
        measurements=[m for m in found.measurements if (m.variant, m.seed) != key],
    )


@pytest.fixture(scope="module")
def directory(run_results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    results.write(folder, run_results)
    (folder / "runs/40%/seed2").mkdir(parents=True)
    report.write(folder)
    return folder


@pytest.fixture(scope="module")
def text(directory):
    return (directory / "report.html").read_text()


@pytest.mark.slow
def test_page_is_self_contained(text):
    pages.assert_nothing_is_fetched_and_nothing_runs(text)
    pages.assert_elements_are_closed(text)


@pytest.mark.slow
def test_charts_use_the_colors_of_the_page(text):
    charts = pages.charts_of(text)
    assert len(charts) == 3 + 2  # eval metrics and curves
    for chart in charts:
        colors = pages.colors_of(chart)
        assert {"var(--v0)", "var(--v1)", "var(--v2)"} <= colors
        assert all(color.startswith("var(--") for color in colors)


def test_figures_link_only_to_existing_runs(text):
    links = set(re.findall(r'href="([^#"]+)"', text))
    assert links == {"runs/40%25/seed2/"}
    # A dot at each eval metric, and the run's own line.
    assert text.count('href="runs/40%25/seed2/"') == 3 + 1


def test_page_states_significant_differences_and_failures(text):
    assert "&quot;40%&quot; is better than &quot;15%&quot; at bits_per_byte by 0." in text
    assert "no longer finite" in text and "30%, seed 4" in text
    assert "Limits" in text and "Follows Wettig" in text and wording.PARTS in text


@pytest.mark.slow
def test_reports_state_why_an_eval_metric_rejected_a_model(run_results):
    why = {"minimal_pairs (blimp='blimp')": f"{EVIL}\nis no folder"}
    runs = [run._replace(refusals=why if run.variant == "40%" else {}) for run in run_results.runs]
    runs[0] = runs[0]._replace(refusals={"fill_in": "no"})
    found = summary_of(run_results._replace(runs=runs))
    first, second = wording.refused(found, reasons=True)
    assert first == "15%, seed 0, could not be measured by fill_in: no"
    assert second.startswith("40% could not be measured by minimal_pairs (blimp='blimp'): <script>")
    # Messages of errors are printed in the terminal alone.
    for text in (markdown(found), page(found)):
        for line in wording.refused(found):
            assert line in text and "is no folder" not in text
    console = Console(width=200, record=True, file=open("/dev/null", "w"))
    report.print_summary(console, found)
    assert second in " ".join(console.export_text().split())


@pytest.mark.slow
def test_reports_show_the_notes_of_figures():
    run_results = planted.results(["15%", "30%", "40%"])

    def noted(one):
        figure = one.figure
        changed = {"minimal_pairs": dict(note="9\npairs"), "classify": dict(note="of 60 texts")}
        if (one.variant, figure.name) == ("15%", "classify"):
            changed["classify"] = dict(value=NAN, note="No mean:\n<no> head.")
        return one._replace(figure=figure._replace(**changed.get(figure.name, {})))

    summary = summary_of(
        run_results._replace(measurements=[noted(one) for one in run_results.measurements])
    )
    notes = ["minimal_pairs: 9 pairs", "classify (30% and 40%): of 60 texts"]
    assert wording.notes(summary) == notes
    assert wording.refused(summary) == ["15% has no figure for classify: No mean: <no> head."]
    short, text = markdown(summary), page(summary)
    assert "- minimal_pairs: 9 pairs\n- classify (30% and 40%): of 60 texts\n" in short
    assert "<li>minimal_pairs: 9 pairs</li>" in text and "No mean: &lt;no&gt; head." in text
    console = Console(width=120, record=True, file=open("/dev/null", "w"))
    report.print_summary(console, summary)
    assert "15% has no figure for classify: No mean" in console.export_text()


def test_no_differences_are_reported_without_the_reference():
    run_results = planted.results(["15%", "30%", "40%"], reference="15%")
    others = [m for m in run_results.measurements if m.variant != "15%"]
    line = wording.findings(summary_of(run_results._replace(measurements=others)))[0]
    assert line.endswith("to compare: no other variant shares an eval metric and a seed with 15%.")


HOSTILE = {
    "tag": EVIL,
    "attribute": "\"' onload=alert(1) x='",
    "entity": "&lt;b onload=alert(1)&gt;",
    "backticks": "``` <script>alert(1)</script> `",
    "link": "[a](javascript:alert(1))",
    "pipes": "a|b\\|c",
    "lines": "a\n\n# b\n| c |",
    "controls": "a\x1b[31m\x00\x07\x9b",
    "direction": "a\u202eb\u2066c",
    "color": '#010203 id="a_1" font-family: x;',
    "underscore": "_a",
    "long": "a" * 3000,
}


@pytest.mark.slow
def test_hostile_names_are_escaped_in_every_report():
    names = [*HOSTILE.values()]
    asked = planted.results([*names, "b"], effects={("b", "bits_per_byte"): 0.5})
    variants = {name: [f"training.Run.run_dir = {name!r}"] for name in names} | {"b": []}
    texts = dict.fromkeys(("name", "question", "about"), " ".join(names))
    asked = asked._replace(setup=asked.setup._replace(**texts, variants=variants))
    runs = [run if run.seed else run._replace(error=run.variant) for run in asked.runs]
    run_results = summary_of(asked._replace(runs=runs))
    text = page(run_results, [run.run for run in runs])
    pages.assert_nothing_is_fetched_and_nothing_runs(text)
    pages.assert_elements_are_closed(text)
    short = markdown(run_results)
    bare = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", FOLDED.sub("", short))
    assert not re.search(r"<[A-Za-z/!?]|(?<!\\)\]\(", bare)
    svgs = {**charts.chart_files(run_results), **charts.curve_files(run_results)}.values()
    for shown in (text, short, *svgs):
        assert printable(shown) == shown
    for one in svgs:
        ElementTree.fromstring(one)
    console = PrintableConsole(width=120, record=True, file=io.StringIO())
    report.print_summary(console, run_results)
    assert printable(console.file.getvalue()) == console.file.getvalue()


def test_chart_text_is_not_rewritten():
    name = '#010203 id="a_1" font-family: x; 1.23456'
    drawing = svg.standalone(svg.drawn([lambda axes: axes.set_title(name)], 6, 2))
    (title,) = (one for one in ElementTree.fromstring(drawing).itertext() if "#010203" in one)
    assert title.strip() == name


def test_markdown_and_terminal_state_the_same_findings(run_results):
    console = Console(width=200, record=True, quiet=False, file=open("/dev/null", "w"))
    report.print_summary(console, summary_of(run_results))
    shown, short = console.export_text(), markdown(summary_of(run_results))
    for line in wording.findings(summary_of(run_results)):
        assert escaped(line) in short and f"• {line}" in shown
    column = summary_of(run_results).columns[1]
    assert (
        f"**{wording.mean_words(column, '40%')}**" in short
        and wording.mean_words(column, "40%") in shown
    )
    assert "30%, seed 4 failed: no longer finite" in shown


@pytest.mark.slow
def test_page_renders_code_and_reports_one_seed_as_untestable(run_results):
    limited = run_results._replace(setup=run_results.setup._replace(about="`a<b` alone tells."))
    assert "<code>a&lt;b</code> alone tells." in page(summary_of(limited))
    two = [
        m for m in run_results.measurements if m.variant != "30%" and m.figure.name == "classify"
    ]
    runs = [run for run in run_results.runs if run.variant != "30%"]
    one_seed = [m for m in two if m.seed == 0]
    summary = summary_of(run_results._replace(measurements=one_seed, runs=runs))
    assert len(summary.differences) == 1
    assert "<summary>Differences</summary>" in page(summary)  # One seed cannot be tested.


def test_only_headline_figures_with_a_direction_are_compared(run_results):
    cost = [
        Measurement(run.variant, run.seed, run.run, Figure("targets", 0.15, "a token", NEITHER))
        for run in run_results.runs
    ]
    found = summary_of(run_results._replace(measurements=[*run_results.measurements, *cost]))
    assert {d.figure for d in found.differences} == {"minimal_pairs", "bits_per_byte", "classify"}
    assert [c.name for c in found.costs] == ["targets"] and len(found.parts) == 6
    heads, (first, *_), _ = tables.cost_table(found)
    assert heads[-1] == "targets, a token" and first[-1] == "0.1500"


def test_slash_in_a_setting_does_not_make_a_part(run_results):
    """No difference is claimed for this variant."""

    def labeled(name: str) -> str:
        whole, slash, part = name.partition("/")
        return f"{whole} (template='a/(b)'){slash}{part}"

    renamed = [
        m._replace(figure=m.figure._replace(name=labeled(m.figure.name)))
        for m in run_results.measurements
    ]
    found = summary_of(run_results._replace(measurements=renamed))
    assert [c.name for c in found.columns] == [
        labeled(c.name) for c in summary_of(run_results).columns
    ]
    assert len(found.parts) == 6 and len(found.differences) == 6


def test_missing_seeds_of_a_variant_are_stated(run_results):
    """A variant without its diverged runs looks as good as the others."""
    diverged = [
        m._replace(figure=m.figure._replace(value=NAN)) if m[:2] in (("40%", 0), ("40%", 1)) else m
        for m in run_results.measurements
    ]
    short = wording.findings(summary_of(run_results._replace(measurements=diverged)))
    counts = [line.partition(".")[0] for line in short if "has figures for" in line]
    assert counts == ["30% has figures for 4 of 5 seeds", "40% has figures for 3 of 5 seeds"]


def test_first_point_of_a_short_curve_is_visible():
    class Axes:
        def __getattr__(self, name):
            return lambda *_, **given: given

        def set(self, **given):
            self.top = given["ylim"][1]

        def get_ylim(self):
            return 4.7, 6.0

        xaxis = property(lambda self: self)

    axes = Axes()
    curve = ((400_000.0, 5.6), (800_000.0, 4.6), (900_000.0, 4.7))
    charts.draw_curves(axes, {"10%": [curve]}, {"10%": 0})
    assert axes.top > 5.6


def test_paused_run_does_not_change_the_typical_seconds():
    run_results = planted.results(["a", "b"], seeds=[0, 1, 2])
    first, *others = run_results.runs
    usual = equality.costs(summary_of(run_results))["a"]
    paused = run_results._replace(runs=[first._replace(seconds=first.seconds + 900), *others])
    found = equality.costs(summary_of(paused))["a"]
    assert found["seconds"] == pytest.approx(usual["seconds"], rel=0.01)


@pytest.mark.parametrize(
    "budget, expected",
    [
        (Partial(budgets.text_tokens, number=900_000), "900,000 text tokens"),
        (Partial(budgets.model_flops, number=2.6e12), "2.6e12 model FLOPs"),
        (Partial(planted.results, number=3, random=2), "results(number=3, random=2)"),
        ({"a": Partial(budgets.seconds, number=60)}, "60 seconds"),
    ],
)
def test_budgets_are_described_in_words(budget, expected):
    assert budget_words(budget) == expected


@pytest.mark.parametrize("seeds", [[], [0]])
def test_report_without_enough_seeds_makes_no_claims(seeds, tmp_path):
    run_results = planted.results(["a", "b"], seeds=seeds)
    results.write(tmp_path, run_results)
    report.write(tmp_path)
    short = (tmp_path / "report.md").read_text()
    assert "is better than" not in short and "nan" not in short
    assert ("cannot be tested" if seeds else "nothing to compare") in short
    text = (tmp_path / "report.html").read_text()
    pages.assert_elements_are_closed(text)
    folded = "<summary>Differences</summary>" in text  # These cannot be tested.
    assert folded == bool(seeds)


@pytest.mark.slow
def test_variant_without_runs_is_shown_without_figures(run_results):
    runs = [r._replace(error="killed") if r.variant == "30%" else r for r in run_results.runs]
    rest = [m for m in run_results.measurements if m.variant != "30%"]
    found = summary_of(run_results._replace(runs=runs, measurements=rest))
    assert wording.mean_words(found.columns[0], "30%") == "–"
    assert {d.variant for d in found.differences} == {"40%"}
    pages.assert_elements_are_closed(page(found))


def test_inconsistent_results_are_rejected(run_results):
    with refuses(ValueError, "20", "15", "30", "40"):
        summary_of(run_results._replace(setup=run_results.setup._replace(reference="20%")))
    first, *rest = run_results.measurements
    other = first._replace(figure=first.figure._replace(unit="percent"))
    with refuses(ValueError, "minimal_pairs"):
        summary_of(run_results._replace(measurements=[other, *rest]))


@pytest.mark.parametrize(
    "got, expected",
    [
        (formatting.decimals([Estimate(0, -0.11, 0.11, 5), Estimate(0, -0.003, 0.003, 5)]), 3),
        (formatting.decimals([Estimate(0, -300, 300, 5)]), 0),
        (formatting.decimals([Estimate(0, NAN, NAN, 1)]), None),
        (formatting.number(NAN, 3), "–"),
        (formatting.amount(9_990), "9,990"),
        (formatting.amount(999_999), "1M"),
        (formatting.amount(1.9e7), "19M"),
        (formatting.amount(7.24e10), "72.4B"),
        (formatting.amount(61.53), "61.5"),
        (wording.last_line("Traceback\n  ValueError: no\n"), "no"),
        (wording.last_line(""), "no reason was kept"),
    ],
)
def test_numbers_are_formatted_for_reading(got, expected):
    assert got == expected


# --- tuning ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_reports_show_tried_and_chosen_values(run_results, tmp_path):
    summary = summary_of(planted.tuned(run_results))
    lines = (
        "Tuned for each variant: optimizers.warmup_cosine.peak, by tuning trials of 25% and 50% "
        "of its steps. Chosen: 15% 0.1, 30% 0.1, 40% 0.03.",
        "30%: the best of 3 values is the largest, 0.1, so try larger values.",
    )
    short, whole, console = markdown(summary), page(summary), Console(width=200, record=True)
    terminal_report.print_summary(console, summary)
    for text in (short, whole, console.export_text()):
        assert all(line in text for line in lines) and "40%: the best of" not in text
        assert "diverged" in text
    assert "| 15% | **0.1** | 3.900 | **2.900** |" in short and wording.TRIALS in short
    assert "<strong>0.1</strong>" in whole
    pages.assert_elements_are_closed(whole)


@pytest.mark.parametrize(
    "rates, expected",
    [
        (dict.fromkeys(["15%", "30%"], 0.03), "Not tuned: learning rates come from the base run"),
        (
            {"15%": 0.03, "30%": 0.01, "40%": 0.03},
            "Not tuned: learning rates were given, not chosen by tuning trials: 15% 0.03, 30% "
            "0.01, 40% 0",
        ),
    ],
)
def test_report_states_untuned_learning_rates_at_its_top(run_results, rates, expected):
    summary = summary_of(
        run_results._replace(setup=run_results.setup._replace(learning_rates=rates))
    )
    assert expected in markdown(summary).splitlines()[4]
    assert wording.TRIALS_TITLE not in markdown(summary)


@pytest.mark.slow
def test_report_is_redrawn_from_its_results_alone(run_results, tmp_path, capsys):
    results.write(tmp_path, run_results)
    with refuses(SystemExit, 0):
        compare.main([str(tmp_path), "--report"])
    assert run_results.setup.question in capsys.readouterr().out
    assert (tmp_path / report.PAGE).read_text() == page(summary_of(run_results))
    assert (tmp_path / report.MARKDOWN).read_text() == markdown(summary_of(run_results))


def test_power_of_kept_results_runs_nothing(run_results, tmp_path, capsys):
    results.write(tmp_path, run_results)
    kept = sorted(tmp_path.iterdir())
    with refuses(SystemExit, 0):
        compare.main([str(tmp_path), "--power", "--smallest_effect=classify=0.02"])
    output = " ".join(capsys.readouterr().out.split())
    assert "seeds 0, 1, 2, 3, 4" in output and "classify smallest effect 0.02" in output
    assert sorted(tmp_path.iterdir()) == kept


def test_folder_of_results_is_not_a_comparison_to_run(run_results, tmp_path):
    with refuses(ValueError, tmp_path):
        comparison_file(str(tmp_path))
    results.write(tmp_path, run_results)
    with refuses(ValueError, tmp_path, "--report", "--power"):
        comparison_file(str(tmp_path))
    (tmp_path / "comparison.gin").touch()
    with refuses(ValueError, tmp_path / "comparison.gin", "--report"):
        comparison_file(str(tmp_path))


def test_folder_named_like_a_comparison_needs_results(run_results, tmp_path, monkeypatch):
    """The command needs no objectives of a checkout, unless it has no results."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "objectives").mkdir()
    gin = GinFiles(Comparison)
    assert compare.reported("objectives", gin) == "comparisons/objectives"
    results.write(tmp_path / "objectives", run_results)
    assert compare.reported("objectives", gin) == "objectives"


@pytest.mark.parametrize(
    "options, named",
    [
        (["--report", "--power", "--workers=2"], ["--report", "--power, --workers"]),
        (["--gpus=4"], ["--partition, --minutes, --cpus, --gpus", "--slurm"]),
    ],
)
def test_options_without_effect_are_rejected(options, named):
    with refuses(ValueError, *named):
        compare.check_options(compare.parse(["masking_rate", *options])[0])


@pytest.mark.parametrize("option", ["--workers=2", "--gin.comparison.Comparison.seeds=[0,1]"])
def test_settings_of_runs_have_no_effect_on_kept_results(run_results, tmp_path, option):
    results.write(tmp_path, run_results)
    with refuses(ValueError, tmp_path, "--workers", "--gin"):
        compare.check_options(compare.parse([str(tmp_path), "--power", option])[0])


def test_report_of_kept_results_rejects_settings(run_results, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results.write(tmp_path / "kept", run_results)

    def reported(name, *options):
        gin = compare.parse([name, "--report", *options])[1]
        return compare.reported(name, gin)

    seeds = "--gin.comparison.Comparison.seeds=[0,1]"
    with refuses(ValueError, "kept", "--report", "--gin"):
        reported("kept", seeds)
    with refuses(ValueError, "comparisons/masking_rate", "--report", "--gin"):
        reported("masking_rate", seeds)
    assert reported("masking_rate", "--gin.DIRECTORY=kept") == "kept"


def test_folder_without_results_is_rejected(tmp_path, capsys):
    with refuses(SystemExit, 2):
        compare.main([str(tmp_path), "--report"])
    assert_named(capsys.readouterr().err, tmp_path, "comparison.json")
