"""Each step alone: what it keeps and drops, and by which rule."""

import datetime
import functools
import json
import tempfile
import time

import pytest
from datatrove.data import Document

from pretrax.preprocessing import duplicates, filters
from pretrax.preprocessing.blocks import DroppedExamples, WriteDocuments, documents_of, examples_in
from pretrax.preprocessing.words import Words
from tests.preprocessing import planted
from tests.refusals import assert_named, exits, refuses

PROSE = (
    "The committee met on Tuesday to discuss the budget, and it heard that the roof of the old "
    "library would have to be repaired before the winter. Nobody was surprised by the sum that the "
    "builder had named, but several members asked for a second offer. It was agreed that the "
    "matter should be decided in a month, when the figures of the year will be known to all of "
    "them."
)


def outcome(step, text, metadata=None):
    """Runs a step on one document. Returns its text, or the rule that dropped it."""
    document = Document(text, "id", metadata=metadata or {})
    with tempfile.TemporaryDirectory() as folder:
        block = step.block("", DroppedExamples(folder, step.rule))
        kept = list(block.run(iter([document])))
        return kept[0].text if kept else f"dropped: {next(iter(examples_in(folder)))}"


def test_clean_removes_control_characters_and_extra_blank_lines():
    assert outcome(filters.clean(), "\ufeffa\x00b  \r\n\tc\r\n\n\n\n\n\nd\n\n") == "ab\n\tc\n\n\nd"
    assert outcome(filters.clean(), "\x00 \n") == "dropped: empty"


def test_metadata_of_unexpected_type_does_not_fail(tmp_path):
    documents = [Document(text, text, metadata={"token_count": "12"}) for text in "ab"]
    for step in (filters.clean(), filters.rule(function=lambda text, metadata: True)):
        kept = list(step.block("", DroppedExamples(str(tmp_path), step.rule)).run(iter(documents)))
        assert [document.text for document in kept] == ["a", "b"]


def test_personal_data_is_replaced():
    text = "Write to jane.doe@mail.co.uk at 8.8.8.8, not from 127.0.0.1 or v1.2.3."
    expected = "Write to email@example.com at 0.0.0.0, not from 127.0.0.1 or v1.2.3."
    assert outcome(filters.personal_data(), text) == expected
    assert "jane" in outcome(filters.personal_data(emails=False), text)


def test_long_runs_are_processed_in_linear_time():
    text = " " * 100_000 + "a" + "." * 100_000 + "a " + "Ab+/" * 50_000 + " jane@mail.org"
    began = time.process_time()
    assert filters.cleaned(text) == text
    assert outcome(filters.personal_data(), text).endswith("/ email@example.com")
    assert len(Words().sent_tokenize(text)) == 1
    assert time.process_time() - began < 2


def test_with_metadata_prepends_template():
    step = filters.with_metadata(template="{url} ({date})\n")
    known = {"url": "a.org", "date": 2020}
    assert outcome(step, "Text.", known) == "a.org (2020)\nText."
    assert outcome(step, "Text.", {"url": "a.org"}) == "Text."
    half = filters.with_metadata(template="{url} ", share=0.5)
    has_prefix = [outcome(half, f"Text {i}.", known).startswith("a.org") for i in range(200)]
    assert 70 < sum(has_prefix) < 130


def test_template_format_mismatch_raises():
    with refuses(ValueError, "n", "a"):
        outcome(filters.with_metadata(template="{n:d}"), "Text.", {"n": "a"})


@pytest.mark.parametrize(
    "step, settings, values",
    [
        (filters.length, {"least": 3, "most": 2}, ["filters.length.least", 3, "most=2"]),
        (duplicates.near_duplicates, {"n_gram": 0}, ["n_gram", 1, 0]),
        (duplicates.near_duplicates, {"buckets": 0}, ["buckets", 1, 0]),
        (duplicates.decontaminate, {"files": "a", "n_gram": 0}, ["n_gram", 1, 0]),
    ],
)
def test_invalid_filter_settings_raise(step, settings, values):
    with refuses(ValueError, *values):
        step(**settings)


@pytest.mark.parametrize(
    "settings, values",
    [
        ({"template": "none"}, ["template", "'none'"]),
        ({"template": "{0}"}, ["template", "'{0}'"]),
        ({"template": "{url"}, ["template", "'{url'", "'}'"]),
        ({"template": "{url}", "share": 0}, ["share", 0]),
    ],
)
def test_invalid_templates_raise(settings, values):
    with refuses(ValueError, *values):
        filters.with_metadata(**settings)


@pytest.mark.parametrize(
    "step, text, expected",
    [
        (filters.length(least=10), "short", "dropped: too_short"),
        (filters.length(most=3), "long", "dropped: too_long"),
        (filters.length(least=4, most=4), "long", "long"),
        (filters.gopher_quality(), PROSE, PROSE),
        (filters.gopher_quality(), "Too short.", "dropped: gopher_short_doc"),
        (filters.gopher_quality(), "12 34 56 the and " * 30, "dropped: gopher_below_avg_threshold"),
        (filters.gopher_quality(), "kein Wort davon englisch "
                                   "" * 30, "dropped: gopher_enough_stop_words"),
        (filters.gopher_quality(min_stop_words=0), "kein Wort davon "
                                                   "" * 30, "kein Wort davon " * 30),
        (filters.gopher_repetition(), PROSE, PROSE),
        (filters.gopher_repetition(), "buy now " * 200, "dropped: top_2_gram"),
        (filters.c4(), PROSE, "dropped: too_few_sentences"),
        (filters.c4(min_sentences=3), PROSE, PROSE),
        (filters.c4(min_sentences=3), PROSE + "\nnavigation", PROSE),
        (filters.c4(), "int main() { return 0; } is code.", "dropped: curly_bracket"),
        (filters.c4(min_sentences=-1), "navigation", "dropped: empty"),
        (filters.fineweb_quality(), PROSE, PROSE),
        (filters.fineweb_quality(), "a\nb\nc\n" * 5, "dropped: line_punct_ratio"),
    ],
)  # fmt: skip
def test_filter_rules(step, text, expected):
    assert outcome(step, text) == expected


def test_c4_counts_changed_texts(tmp_path):
    planted.write_texts(tmp_path / "raw.jsonl", [PROSE, f"{PROSE}\nnavigation"])
    steps = "preprocessing.Preparation.steps = [@filters.c4]\nfilters.c4.min_sentences = 3"
    assert planted.run_steps(tmp_path, steps)["steps"][1]["changed"] == 1


@pytest.mark.slow
def test_language_filter_without_download():
    german = "Der Ausschuss hat am Dienstag lange über das Dach der alten Bücherei gesprochen."
    assert outcome(filters.language(keep=["en"]), PROSE) == PROSE
    assert outcome(filters.language(keep=["en"]), german) == "dropped: language_de"
    assert outcome(filters.language(keep=["en", "de"]), german) == german
    assert outcome(filters.language(keep=["en"]), "123 456") == "dropped: language_unsure"
    with refuses(ValueError, "639", "1", "english"):
        filters.language(keep="english")


def no_shouting(text, metadata):
    return not text.isupper(), f"shouting_{metadata['source']}"


def returns_none(text, metadata):
    return None


def returns_three(text, metadata):
    return False, "reason", text


def needs_a_url(text, metadata):
    return metadata["url"] != ""


def test_user_rule_drops_documents_and_reports_errors():
    step = filters.rule(function=no_shouting)
    assert step.name == "no_shouting"
    assert outcome(step, "quiet", {"source": "a"}) == "quiet"
    assert outcome(step, "LOUD", {"source": "a"}) == "dropped: shouting_a"
    with refuses(ValueError, "returns_none"):
        outcome(filters.rule(function=returns_none), "text")
    with refuses(ValueError, "reason", "text"):
        outcome(filters.rule(function=returns_three), "text")
    with refuses(ValueError, "needs_a_url", "url"):
        outcome(filters.rule(function=needs_a_url), "text")


def test_word_and_sentence_tokenization():
    assert Words().word_tokenize("It's 3.5 km, 東京") == ["It's", "3.5", "km,", "東", "京"]
    text = 'He left. "Why?" Nobody knew. 東京。 3.5 km'
    assert Words().sent_tokenize(text) == ["He left.", '"Why?"', "Nobody knew.", "東京。", "3.5 km"]


@pytest.mark.slow
def test_exact_and_near_duplicates_are_dropped(tmp_path):
    other = PROSE.upper().replace(",", " ;")  # MinHash ignores case and punctuation
    changed = PROSE.replace("winter", "summer")
    texts = [PROSE, "Alone.", other, PROSE, changed, "Alone."]
    planted.write_texts(tmp_path / "raw.jsonl", texts)
    steps = "[@duplicates.exact_duplicates, @duplicates.near_duplicates]"
    report = planted.run_steps(
        tmp_path,
        f"preprocessing.Preparation.steps = {steps}",
        "--gin.sources.files.task_bytes=400",  # so that copies are in different tasks
    )
    dropped = {step["name"]: step["dropped"] for step in report["steps"]}
    assert dropped["exact_duplicates"] == {"duplicate": 2}
    assert dropped["near_duplicates"] == {"near_duplicate": 2}
    kept = planted.kept_texts(tmp_path)
    assert len(kept) == 2 and "Alone." in kept
    page = (tmp_path / "out" / "report.html").read_text()
    assert "near_duplicate <small>2 dropped" in page


def test_malformed_records_stop_preparation_or_are_counted(tmp_path, capsys):
    lines = [json.dumps({"text": PROSE}), "{broken", '{"txt": 1}', json.dumps({"text": " "})]
    (tmp_path / "raw.jsonl").write_text("\n".join(lines))
    steps = "preprocessing.Preparation.steps = []"
    with exits(capsys, f"{tmp_path / 'raw.jsonl'}:2", "JSON"):
        planted.run_steps(tmp_path, steps)
    report = planted.run_steps(tmp_path, steps, "--gin.sources.files.on_malformed='skip'")
    assert report["steps"][0]["dropped"] == {"malformed": 2, "empty": 1}
    assert report["steps"][0]["in"] == 4 and report["documents"] == 1
    page = (tmp_path / "out" / "report.html").read_text()
    assert "raw.jsonl:2" in page and "raw.jsonl:3" in page and "no field &#x27;text&#x27;" in page


def names_a_pattern(text, metadata):
    return "e" in text, "has [/b] in [0-9]"


def test_report_lists_each_step_and_rule_separately(tmp_path, capsys):
    records = [
        {"id": "\ud800", "text": " "},
        *({"text": f"One {n}", "filter_reason": [n]} for n in (1, 1, 2, 333333)),
        {"text": "Abc"},
    ]
    (tmp_path / "raw.jsonl").write_text("\n".join(map(json.dumps, records)))
    steps = f"""import {__name__}
preprocessing.Preparation.steps = [
    @a/filters.length, @b/filters.length, @filters.rule, @filters.with_metadata,
    @duplicates.exact_duplicates,
]
a/filters.length.most = 8
b/filters.length.least = 1
filters.rule.function = @{__name__}.names_a_pattern
filters.with_metadata.template = "{{title}} "
"""
    report = planted.run_steps(tmp_path, steps)
    dropped = [step["dropped"] for step in report["steps"]]
    named = {"has [/b] in [0-9]": 1}
    assert dropped == [{"empty": 1}, {"too_long": 1}, {}, named, {}, {"duplicate": 1}, {}]
    assert report["steps"][4]["changed"] == 0  # no record has a title
    output = capsys.readouterr().out
    assert "has [/b] in [0-9] 1" in output and "0 changed" in output
    page = (tmp_path / "out" / "report.html").read_text()
    assert "0 dropped" not in page and page.count("too_long <small>1 dropped") == 1
    assert "\ufffd" in page and "duplicate <small>1 dropped" in page


def _nested(inner, levels):
    return functools.reduce(lambda nested, _: [nested], range(levels), inner)


def test_documents_round_trip_between_stages(tmp_path):
    metadata = [
        {"n": 1, "day": datetime.date(2026, 1, 2)},
        {"n": 10**30, "t": ["\ud800"], "url": "a", "deep": _nested("a", 400)},
    ]
    documents = [
        Document(f"text {k}", str(k), metadata=document_metadata)
        for k, document_metadata in enumerate(metadata)
    ]
    assert list(WriteDocuments(str(tmp_path)).run(documents, rank=3)) == documents
    first, second = documents_of(str(tmp_path), 3)
    assert (first.text, first.metadata) == ("text 0", {"n": 1, "day": "2026-01-02"})
    assert second.metadata.pop("deep") == _nested("…", 99)
    assert second.metadata == {"n": str(10**30), "t": ["\\ud800"], "url": "a"}


def test_decontaminate_drops_evaluation_texts(tmp_path):
    evaluation = tmp_path / "evaluation.txt"
    evaluation.write_text(
        "The roof of the old library would have to be repaired before the winter!"
    )
    planted.write_texts(tmp_path / "raw.jsonl", [PROSE, "Nothing of it is here. " * 5])
    steps = f"""preprocessing.Preparation.steps = [@duplicates.decontaminate]
duplicates.decontaminate.files = {str(evaluation)!r}"""
    report = planted.run_steps(tmp_path, steps)
    assert report["steps"][1]["dropped"] == {"contaminated": 1} and report["documents"] == 1


def test_unusable_evaluation_files_are_rejected(tmp_path, capsys):
    (tmp_path / "evaluation.txt").write_text("Too short.")
    planted.write_texts(tmp_path / "raw.jsonl", [PROSE])
    steps = f"""preprocessing.Preparation.steps = [@duplicates.decontaminate]
duplicates.decontaminate.files = {str(tmp_path / "evaluation.txt")!r}"""
    with exits(capsys, "n_gram=12"):
        planted.run_steps(tmp_path, steps)
    (tmp_path / "evaluation.jsonl").write_text("no JSON")
    with pytest.raises(SystemExit):
        planted.run_steps(tmp_path, steps.replace(".txt", ".jsonl"))
    output = capsys.readouterr().err
    assert_named(output, "evaluation.jsonl:1", "JSON")
    assert "skip" not in output
