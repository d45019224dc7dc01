"""A run as a model of the lm-evaluation-harness, on small tasks that are defined here."""

import math

import pytest

lm_eval = pytest.importorskip("lm_eval", reason="the extra `lm-eval` is not installed")

import datasets  # noqa: E402  # pyright: ignore[reportMissingImports]
from lm_eval.api.instance import Instance  # noqa: E402  # pyright: ignore[reportMissingImports]

from pretrax import inference  # noqa: E402
from pretrax.inference.harness import harness_model  # noqa: E402
from tests.inference.runs import TEXT, trained  # noqa: E402
from tests.refusals import refuses  # noqa: E402

LETTERS = [{"text": f"Line {i} has", "good": f" {i}", "bad": f" {9 - i}"} for i in range(6)]


def task(name, **config):
    rows = {"test": datasets.Dataset.from_list(LETTERS)}
    return {"task": name, "test_split": "test", "custom_dataset": lambda **_: rows} | config


CHOICE = task(
    "choice",
    output_type="multiple_choice",
    doc_to_text="{{text}}",
    doc_to_target=0,
    doc_to_choice="{{[good, bad]}}",
    target_delimiter="",
    metric_list=[{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
)
ROLLING = task(
    "rolling",
    output_type="loglikelihood_rolling",
    doc_to_text="",
    doc_to_target="{{text}}",
    metric_list=[{"metric": "bits_per_byte"}],
)
WRITING = task(
    "writing",
    output_type="generate_until",
    doc_to_text="{{text}}",
    doc_to_target="{{good}}",
    generation_kwargs={"until": ["\n"], "max_gen_toks": 4},
    metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
)


def requests(name, *arguments):
    return [Instance(name, {}, each, 0) for each in arguments]


@pytest.fixture(scope="module")
def decoder():
    return trained("decoder", "causal_lm")._replace(lengths={"decoder": 40})


@pytest.mark.slow
def test_harness_tasks_are_scored(decoder):
    model = harness_model(decoder)
    tasks = [CHOICE, ROLLING, WRITING]
    found = lm_eval.simple_evaluate(model=model, tasks=tasks, bootstrap_iters=0)
    choices = [
        [inference.score(decoder, [(row["text"], row[x])])[0].log_prob for x in ("good", "bad")]
        for row in LETTERS
    ]
    right = sum(good > bad for good, bad in choices) / len(LETTERS)
    assert found["results"]["choice"]["acc,none"] == right not in (0, 1)
    texts = inference.score(decoder, [("", row["text"]) for row in LETTERS])
    bits = -sum(text.log_prob for text in texts) / math.log(2) / sum(t.bytes for t in texts)
    assert found["results"]["rolling"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-5)
    options = inference.Options(inference.Decoding(max_new=4, stop_strings=("\n",)))
    expected = [a["answer"] for a in inference.answer(decoder, "continue", LETTERS, options)]
    written = [sample["resps"][0][0] for sample in found["samples"]["writing"]]
    assert written == expected and any(expected)


def test_harness_reports_whether_an_answer_is_greedy(decoder):
    items = [{"text": TEXT[:n]} for n in range(5, 35)]
    found = inference.answer(decoder, "next", items, inference.Options(top=2))
    likely = [
        (item["text"], [x["token"] for x in answer["next"]]) for item, answer in zip(items, found)
    ]
    # Some bytes begin a character but do not end it, so only ASCII guesses are used.
    given, (first, second) = next(x for x in likely if "".join(x[1]).isascii())
    pairs = (given, first), (given, second)
    (best, greedy), (next_best, other) = harness_model(decoder).loglikelihood(
        requests("loglikelihood", *pairs)
    )
    assert greedy and not other and best > next_best
    expected = [scored.log_prob for scored in inference.score(decoder, pairs)]
    assert [best, next_best] == pytest.approx(expected, abs=1e-5)


def test_long_texts_are_scored_in_windows(decoder):
    """A window scores 39 tokens. The last window is filled up with earlier tokens."""
    model = harness_model(decoder)
    (found,) = model.loglikelihood_rolling(requests("loglikelihood_rolling", (TEXT,)))
    first = inference.score(decoder, [("", TEXT[:39])])[0].log_prob
    row = TEXT[len(TEXT) - 39 :]
    second = sum(inference.score(decoder, [("", row)])[0].log_probs[39 - (len(TEXT) - 39) :])
    assert 39 < len(TEXT) < 78 and found == pytest.approx(first + second, abs=1e-4)


def test_long_contexts_are_truncated_at_their_start(decoder):
    model = harness_model(decoder)
    long, short = (TEXT, " tea"), (TEXT[-35:], " tea")
    (one, _), (other, _) = model.loglikelihood(requests("loglikelihood", long, short))
    assert one == pytest.approx(other, abs=1e-5)
    # an answer may take half a row (20), so 19 tokens are left for the context
    settings = {"max_gen_toks": 100, "until": "\n"}
    answers = model.generate_until(
        requests("generate_until", (TEXT, settings), (TEXT[-19:], settings), ("", settings))
    )
    assert answers[0] == answers[1]


def test_encoder_decoder_scores_answers_but_not_whole_texts():
    answering = trained("encoder_decoder", "text_to_text")
    model = harness_model(answering)
    (found,) = model.loglikelihood(requests("loglikelihood", ("Who?", "Ada")))
    assert found[0] == pytest.approx(inference.score(answering, [("Who?", "Ada")])[0].log_prob)
    with refuses(ValueError, "encoder-decoder", "--target=ANSWER"):
        model.loglikelihood_rolling(requests("loglikelihood_rolling", (TEXT,)))


def test_requests_without_a_likelihood_are_rejected(decoder):
    with refuses(ValueError, "causal", "encoder-decoder"):
        harness_model(trained("encoder", "masked_lm"))
    with refuses(ValueError, "empty"):
        harness_model(decoder).loglikelihood(requests("loglikelihood", ("a", "")))
    with refuses(ValueError, "batch_size", "1"):
        harness_model(decoder, batch_size=0)
