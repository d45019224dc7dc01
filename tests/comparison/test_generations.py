"""Texts that models write, compared with cases by hand and models without knowledge."""

import pytest

from pretrax.comparison.eval_metrics import generations
from pretrax.comparison.eval_metrics.generations import infilling, measures
from pretrax.comparison.eval_metrics.parts.hidden_lines import Gap, gaps, hidden_lines
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


def test_each_statement_line_is_hidden_once():
    found = list(gaps(WHOLE))
    assert {gap.prefix + gap.truth + gap.suffix for gap in found} == {WHOLE}
    assert [gap.truth[:12] for gap in found] == [
        "total = 0", "assert total", "return total", "total = tota"
    ]  # fmt: skip


def test_generation_measures_match_hand_computed_values():
    gap = Gap("def f(x):\n    ", "return x", "\n")
    found = measures([gap] * 2, ["return y", "return x x x x x"])
    assert found == {
        "edit_similarity": pytest.approx((7 / 8 + 2 * 8 / 24) / 2),
        "exact_match": 0.0,
        "parses": 0.5,
        "repetition": pytest.approx((0 + 1 / 3) / 2),
        "distinct": 3 / 6,  # "return y", "return x" and "x x", of 1 + 5 pairs
    }
    assert measures([gap] * 2, ["return x"] * 2)["exact_match"] == 1.0


@pytest.mark.parametrize(
    "name, builder", [("span_corruption", "encoder_decoder"), ("fill_in_the_middle", "decoder")]
)
def test_infilling_prompts_follow_training_and_true_text_scores_1(name, builder, monkeypatch):
    """A model that writes the true text gets everything right."""
    found, asked = hidden_lines(8), []

    def truth(item):
        asked.append(item)
        for gap in found:
            if item in (
                {"text": f"{gap.prefix}<extra_id_0>{gap.suffix}"},
                {"prefix": gap.prefix, "suffix": gap.suffix},
            ):
                return gap.truth
        raise AssertionError(item)

    written_by(monkeypatch, truth)
    figures = by_name(infilling(model_of(name, builder=builder), prompts=8, max_new=1000))
    assert len(asked) == 16  # greedy and sampled
    for part, first in (("", ""), ("/sampled", "/edit_similarity")):
        assert figures[f"infilling{part}{first}"].value == 1.0
        assert figures[f"infilling{part}/exact_match"].value == 1.0
        parses = figures[f"infilling{part}/parses"]
        assert parses.value == 1.0 and parses.note.endswith(" 1.00")


@pytest.mark.parametrize(
    "text", ["", "pass\n" * 20, "    pass\n" * 20, "x", "(" * 40, "the of a to " * 9]
)
def test_constant_text_scores_no_better_than_the_baseline(text, monkeypatch):
    written_by(monkeypatch, lambda item: text)
    figures = by_name(infilling(model_of("fill_in_the_middle"), prompts=8))
    first = figures["infilling"]
    assert first.value <= first.baseline and figures["infilling/exact_match"].value == 0
    if not text.startswith((" ", "pass", "x")):
        assert figures["infilling/parses"].value == 0
    if text.startswith((" ", "pass", "the")):
        assert figures["infilling/repetition"].value > 0.8


def test_continuation_of_a_masked_model_equals_its_unmasked_text():
    """What unmasking adds to the text counts, also for a model from elsewhere."""
    texts = ["x = 1\n", "def f():\n    "]
    for one in (trained("encoder", "masked_lm"), trained("encoder")):
        whole = unmask(one, [text + "[MASK]" * 5 for text in texts])
        written = generations.continued(one, texts, Decoding(max_new=5))
        assert [text + more for text, more in zip(texts, written, strict=True)] == whole


def test_sampling_unmasks_in_random_order_without_top_p():
    greedy, sampled = (
        generations.unmasking_options(Decoding(max_new=4, temperature=x, top_p=0.9))
        for x in (0.0, 1.0)
    )
    assert (greedy.order, sampled.order) == ("confidence", "random")
    assert greedy.decoding.top_p is sampled.decoding.top_p is None


@pytest.mark.slow
def test_infilling_is_deterministic():
    model_subject = model_of("fill_in_the_middle")
    first, second = (infilling(model_subject, prompts=2, max_new=3) for _ in range(2))
    assert first == second and first[0].name == "infilling"


def test_models_that_cannot_generate_are_rejected():
    for name, builder, words in (
        ("next_sentence_prediction", "encoder", ["encoder"]),
        ("span_corruption", "encoder_decoder", ["'encoder_decoder'", "infill"]),
    ):
        with refuses(ValueError, *words):
            generations.continuing_mode(trained(builder, name))
    with refuses(ValueError, "continue"):
        infilling(model_of("causal_lm"))
