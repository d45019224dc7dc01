"""Texts that models write, compared with cases by hand and models without knowledge."""

import pytest

from pretrax.comparison.eval_metrics import generations
from pretrax.comparison.eval_metrics.generations import continuation, infilling, measures
from pretrax.comparison.eval_metrics.parts.python_prompts import (
    Gap,
    beginnings,
    continues_to_parse,
    gaps,
)
from pretrax.inference import Decoding, unmask
from tests.comparison.subjects import by_name, subject_of
from tests.inference.runs import trained
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("few_library_files")

WHOLE = '''def total_of(values):
    """Return the total of some values."""
    total = 0
    for value in values:
        total = total + value
    assert total >= 0
    return total, len(values), "and a text that makes the function longer"
'''


def model_of(*names, builder="decoder"):
    return subject_of(trained(builder, *names))


def written_by(monkeypatch, write):
    """Makes every model write the result of a function of the item."""

    def answer(trained, mode, items, options):
        name = {"infill": "blanks", "middle": "middle"}.get(mode, "answer")
        return [{name: [write(x)] if mode == "infill" else write(x)} for x in items]

    monkeypatch.setattr(generations, "answer", answer)


def test_a_function_is_cut_after_a_whole_statement():
    (one,) = beginnings(WHOLE + "\n\nx = 1\n")
    assert one.prefix + one.truth == WHOLE + "\n\nx = 1\n"
    assert one.prefix.endswith("total = total + value\n") and not one.suffix


def test_each_line_that_is_a_statement_is_hidden():
    found = list(gaps(WHOLE))
    assert {gap.prefix + gap.truth + gap.suffix for gap in found} == {WHOLE}
    assert [gap.truth[:12] for gap in found] == [
        "total = 0", "assert total", "return total", "total = tota"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text, parses",
    [
        ("    y = 2\n", True),
        ("    y = 2\n    z = (1,\n 2", True),  # The last statement is unfinished.
        ("    y = 2\n    if y:\n", True),
        ("    y = 2\n    @cached\n", True),
        ('    y = 2\n    """A text that', True),
        ("    y = 2", False),  # There is no complete line.
        ("    # nothing\n\n", False),
        ("((((\n((((\n", False),
        ("    y = 2)\n    z = 1\n", False),
        ("  y = 2\n    z = 1\n", False),
        ("    y = '\n    z = 1\n", False),
        ("", False),
    ],
)
def test_what_parses_after_a_prefix(text, parses):
    assert continues_to_parse("def f(x):\n    x = 1\n", text) == parses


def test_measures_by_hand():
    gap = Gap("def f(x):\n    ", "return x", "\n")
    gaps, truth = [gap] * 2, ["return x"] * 2
    found = measures(gaps, ["return y", "return x x x x x"], truth)
    assert found == {
        "edit_similarity": pytest.approx((7 / 8 + 2 * 8 / 24) / 2),
        "exact_match": 0.0,
        "parses": 0.5,
        "repetition": pytest.approx((0 + 1 / 3) / 2),
        "distinct": 3 / 6,  # "return y", "return x" and "x x", of 1 + 5 pairs
    }
    assert measures(gaps, truth, truth)["exact_match"] == 1.0


@pytest.mark.parametrize(
    "eval_metric, name, builder, mode",
    [
        (continuation, "causal_lm", "decoder", "continue"),
        (continuation, "prefix_lm", "encoder_decoder", "complete"),
        (infilling, "span_corruption", "encoder_decoder", "infill"),
        (infilling, "fill_in_the_middle", "decoder", "middle"),
    ],
)
def test_each_model_is_asked_as_it_was_trained(eval_metric, name, builder, mode, monkeypatch):
    """A model that writes the true text gets everything right."""
    asked = []

    def truth(item):
        asked.append(item)
        for gap in found:
            if item in (
                {"text": gap.prefix + (f"<extra_id_0>{gap.suffix}" if gap.suffix else "")},
                {"prefix": gap.prefix, "suffix": gap.suffix},
            ):
                return gap.truth
        raise AssertionError(item)

    make = {continuation: generations.continuations, infilling: generations.hidden_lines}[
        eval_metric
    ]
    found = make(8)
    written_by(monkeypatch, truth)
    figures = by_name(eval_metric(model_of(name, builder=builder), prompts=8, max_new=1000))
    assert len(asked) == 16  # greedy and sampled
    for part in ("", "/sampled"):
        own = eval_metric.__name__ + part
        assert figures[own if not part else f"{own}/edit_similarity"].value == 1.0
        assert figures[f"{own}/exact_match"].value == 1.0
        parses = figures[f"{own}/parses"]  # A true text may be cut within a `try`.
        assert parses.value >= 0.75 and parses.note.endswith(f" {parses.value:.2f}")


@pytest.mark.parametrize(
    "text", ["", "pass\n" * 20, "    pass\n" * 20, "x", "(" * 40, "the of a to " * 9]
)
@pytest.mark.parametrize(
    "eval_metric, name", [(continuation, "causal_lm"), (infilling, "fill_in_the_middle")]
)
def test_constant_outputs_are_not_flattered(eval_metric, name, text, monkeypatch):
    written_by(monkeypatch, lambda item: text)
    figures = by_name(eval_metric(model_of(name), prompts=8))
    own = eval_metric.__name__
    assert figures[own].value <= figures[own].baseline and figures[f"{own}/exact_match"].value == 0
    if not text.startswith((" ", "pass", "x")):
        assert figures[f"{own}/parses"].value == 0
    if text.startswith((" ", "pass", "the")):
        assert figures[f"{own}/repetition"].value > 0.8


@pytest.mark.parametrize("name", ["masked_lm", "masked_diffusion"])
def test_a_model_that_predicts_masks_fills_them_after_the_text(name, monkeypatch):
    """Greedy decoding fills the most confident mask first, and samples use a random order."""
    asked, found = [], generations.continuations(4)

    def answer(trained, mode, items, options):
        asked.append((mode, options.order, options.decoding.temperature, options.decoding.top_p))
        for item, gap in zip(items, found, strict=True):
            assert item == {"text": gap.prefix + "[MASK]" * 400}
        return [{"answer": gap.prefix + gap.truth} for gap in found]

    monkeypatch.setattr(generations, "answer", answer)
    subject = model_of(name, builder="encoder")
    first, *others = continuation(subject, prompts=4, max_new=400)
    assert first.value == 1.0 and by_name(others)["continuation/sampled/exact_match"].value == 1.0
    assert "400 masks" in first.note and "top-p" in first.note
    assert asked == [("unmask", "confidence", 0.0, None), ("unmask", "random", 1.0, None)]


def test_what_is_written_into_masks():
    """What unmasking adds to the text counts, also for a model from elsewhere."""
    gaps = [Gap("x = 1\n", "y", ""), Gap("def f():\n    ", "pass", "")]
    for one in (trained("encoder", "masked_lm"), trained("encoder")):
        whole = unmask(one, [gap.prefix + "[MASK]" * 5 for gap in gaps])
        written = generations.continued(one, gaps, Decoding(max_new=5))
        assert [gap.prefix + text for gap, text in zip(gaps, written, strict=True)] == whole


@pytest.mark.slow
def test_what_a_model_writes_is_the_same_every_time():
    one = model_of("causal_lm")
    first, second = (continuation(one, prompts=2, max_new=3) for _ in range(2))
    assert first == second and first[0].name == "continuation"


def test_models_that_cannot_write_are_refused():
    with refuses(ValueError, "encoder"):
        continuation(model_of("next_sentence_prediction", builder="encoder"))
    with refuses(ValueError, "'encoder_decoder'", "infill"):
        continuation(model_of("span_corruption", builder="encoder_decoder"))
    with refuses(ValueError, "continue"):
        infilling(model_of("causal_lm"))
