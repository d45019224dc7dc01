"""Metrics of SeqIO tasks, compared with values computed by hand."""

import functools
import math
import subprocess
import sys

import numpy as np
import pytest
import seqio

from pretrax.data import task_metrics
from tests.refusals import refuses
from tests.training import tiny

TEXTS = ["the cat sat on a mat", "return self.value", "a b c d e", "x = [1, 2]\ny = 3 + 4"]
OTHERS = ["the cat sat on one mat", "return value", "a b c d", "x = [1, 2]\ny = 4 + 4"]
CLASSES, PREDICTED_CLASSES = [1, 1, 0, 2, 1], [1, 0, 0, 1, 2]
NUMBERS, PREDICTED_NUMBERS = [1.0, 2.5, 2.5, 4.0], [1.5, 2.0, 9.0, 2.5]

# metric: targets, predictions with some errors, and the best possible figure
METRICS = {
    task_metrics.accuracy: (CLASSES, PREDICTED_CLASSES, 1.0),
    task_metrics.exact_match: (TEXTS, TEXTS[:2] + OTHERS[2:], 1.0),
    task_metrics.binary_f1: (CLASSES, PREDICTED_CLASSES, 1.0),
    task_metrics.macro_f1: (CLASSES, PREDICTED_CLASSES, 1.0),
    task_metrics.squad: (TEXTS, TEXTS[:2] + OTHERS[2:], 1.0),
    task_metrics.rouge: (TEXTS, OTHERS, 1.0),
    task_metrics.bleu: (TEXTS, OTHERS, 100.0),
    task_metrics.pearson_and_spearman: (NUMBERS, PREDICTED_NUMBERS, 1.0),
}
every_metric = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)


@every_metric
def test_metrics_are_best_only_for_exact_predictions(metric):
    targets, predictions, best = METRICS[metric]
    right, wrong = metric(targets, targets), metric(targets, predictions)
    assert right == pytest.approx(dict.fromkeys(right, best))
    assert right.keys() == wrong.keys()
    assert all(type(x) is float and 0 < x < best for x in wrong.values()), wrong


@every_metric
def test_metrics_are_independent_of_example_order(metric):
    targets, predictions, _ = METRICS[metric]
    assert metric(targets[::-1], predictions[::-1]) == pytest.approx(metric(targets, predictions))


@every_metric
def test_mismatched_or_empty_lists_raise(metric):
    targets, predictions, _ = METRICS[metric]
    with refuses(ValueError, len(targets), 2):
        metric(targets, predictions[:2])
    with refuses(ValueError, "targets", "predictions"):
        metric([], [])


def test_metrics_work_as_seqio_predict_metrics():
    fns = [*METRICS, functools.partial(task_metrics.binary_f1, positive="yes")]
    features = {"targets": seqio.Feature(seqio.ByteVocabulary())}
    source = seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=["test"])
    assert seqio.Task("any", source, features, metric_fns=fns).predict_metric_fns == fns


def test_f1_by_hand():
    # Label 1: one hit, two misses (as 0 and 2), and one false positive. Label 0: one hit and one
    # false positive. Label 2: no hits.
    assert task_metrics.binary_f1(CLASSES, PREDICTED_CLASSES) == {"f1": 2 / 5}
    assert task_metrics.binary_f1(CLASSES, PREDICTED_CLASSES, positive=0) == {"f1": 2 / 3}
    assert task_metrics.binary_f1(CLASSES, PREDICTED_CLASSES, positive=2) == {"f1": 0.0}
    assert task_metrics.macro_f1(CLASSES, PREDICTED_CLASSES) == pytest.approx(
        {"macro_f1": (2 / 5 + 2 / 3) / 3}
    )
    assert task_metrics.binary_f1([0, 0], [0, 0]) == {"f1": 0.0}
    # A prediction that is not a label misses its target, and does not add a class.
    assert task_metrics.macro_f1(["a", "b"], ["a", "bb"]) == {"macro_f1": 0.5}


@pytest.mark.parametrize(
    "target, prediction, exact, f1",
    [
        ("The Eiffel Tower!", "eiffel  tower", 1, 1),
        ("the a an", "", 1, 1),  # Neither side has words.
        ("a word", "the", 0, 0),
        ("theatre", "atre", 0, 0),  # Articles are whole words, not parts of words.
        ("it's", "its", 1, 1),
        ("one two two three", "two two four", 0, 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4)),
        (["no", "yes, two"], "yes", 0, 2 / 3),
        (["no", "yes"], "Yes.", 1, 1),
    ],
)
def test_squad_by_hand(target, prediction, exact, f1):
    assert task_metrics.squad([target], [prediction]) == pytest.approx(
        {"exact_match": exact, "f1": f1}
    )


def test_squad_without_answers_raises():
    with refuses(ValueError, "target", "answer"):
        task_metrics.squad([[]], ["x"])


def test_rouge_by_hand():
    # Words: 3 of 4 and 3 of 3. Word pairs: 1 of 3 and 1 of 2. Line by line, 2 and 1 in order.
    got = task_metrics.rouge(["the old cat\nsleeps"], ["the cat\nsleeps"])
    assert got == pytest.approx({"rouge1": 6 / 7, "rouge2": 2 / 5, "rougeLsum": 6 / 7})
    # Swapped lines keep the order of words within each line, but not within the whole text.
    lines = task_metrics.rouge(["one two\nthree four"], ["three four\none two"])
    line = task_metrics.rouge(["one two three four"], ["three four one two"])
    assert (lines["rougeLsum"], line["rougeLsum"]) == pytest.approx((1, 1 / 2))


def test_bleu_by_hand():
    # 5 of 6 words match, 4 of 5 pairs, 3 of 4 triples and 2 of 3 quadruples. Lengths are equal.
    got = task_metrics.bleu(["a b c d e f"], ["a b c d e g"])
    mean = math.exp(sum(map(math.log, (5 / 6, 4 / 5, 3 / 4, 2 / 3))) / 4)
    assert got == pytest.approx({"bleu": 100 * mean})
    # Counts are added over the corpus, rather than averaging figures of sentences.
    corpus_bleu = task_metrics.bleu(["a b c d e f", "a b c d"], ["a b c d e g", "a b c d"])
    mean = math.exp(sum(map(math.log, (9 / 10, 7 / 8, 5 / 6, 3 / 4))) / 4)
    assert corpus_bleu == pytest.approx({"bleu": 100 * mean})


def test_bleu_uses_best_reference_translation():
    targets = [["never mind", "a b c d e"], "f g h i", ["j k l m"]]
    assert task_metrics.bleu(targets, ["a b c d e", "f g h i", "j k l m"]) == pytest.approx(
        {"bleu": 100.0}
    )


def test_correlations_by_hand():
    x, y = np.array(NUMBERS), np.array(PREDICTED_NUMBERS)
    pearson = np.mean((x - x.mean()) * (y - y.mean())) / (x.std() * y.std())
    # Ranks are [1, 2, 4, 3], and equal values share a rank.
    a, b = np.array([1, 2.5, 2.5, 4]), np.array([1, 2, 4, 3])
    spearman = np.mean((a - a.mean()) * (b - b.mean())) / (a.std() * b.std())
    got = task_metrics.pearson_and_spearman(NUMBERS, PREDICTED_NUMBERS)
    assert got == pytest.approx({"pearson": pearson, "spearman": spearman})
    opposite = task_metrics.pearson_and_spearman(NUMBERS, [-v for v in NUMBERS])
    assert opposite == pytest.approx({"pearson": -1.0, "spearman": -1.0})


@pytest.mark.parametrize("sides", [([1, 1], [1, 2]), ([1, 2], [3, 3]), ([1], [1])])
def test_correlation_with_constant_is_nan(sides):
    assert all(math.isnan(x) for x in task_metrics.pearson_and_spearman(*sides).values())


def test_majority_and_unigram_baselines():
    # The first of equally frequent answers.
    assert task_metrics.majority(iter(["b", "a", "a", "b", "c"])) == "b"
    assert task_metrics.majority([3, 1, 1]) == 1
    assert task_metrics.unigram(["x = y", "y", "y + z"]) == "y"
    for guess in (task_metrics.majority, task_metrics.unigram):
        with refuses(ValueError, "answers"):
            guess([])


def test_importing_task_metrics_loads_no_heavy_library():
    heavy = {"scipy", "sacrebleu", "rouge_score", "nltk", "seqio", "tensorflow", "jax"}
    program = f"import sys, pretrax.data.task_metrics; print(sorted({heavy} & set(sys.modules)))"
    completed = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tiny.ROOT,
        env=tiny.environment(),
        capture_output=True,
        text=True,
    )
    assert completed.stdout.strip() == "[]", completed.stderr
