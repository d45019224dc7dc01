"""Metrics of downstream tasks with SeqIO's interface: (targets, predictions) -> {name: figure}.

    seqio.TaskRegistry.add(…, metric_fns=[metrics.accuracy, metrics.macro_f1])

Each metric takes the outputs of a task's `postprocess_fn`, with one target and one prediction for
each example. Shares, F1 and ROUGE are from 0 to 1, correlations from -1 to 1, and BLEU from 0 to
100, as usual. Lists of different lengths and empty lists raise ValueError. `majority` and `unigram`
are baseline predictions that ignore the input.
"""

import collections
import itertools
import re
import string
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeVar

Answer = TypeVar("Answer", bound=Hashable)


def accuracy(targets: Sequence, predictions: Sequence) -> dict[str, float]:
    """Returns the share of predictions that equal their target, which may be of any type.

    >>> accuracy(["cat", "dog", "dog", "cow"], ["cat", "dog", "cat", "Cow"])
    {'accuracy': 0.5}
    """
    pairs = _pairs(targets, predictions)
    return {"accuracy": _mean(target == prediction for target, prediction in pairs)}


def exact_match(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns the share of predictions that equal their target, ignoring white space around both.

    >>> exact_match(["return x", "self", "Key"], [" return x", "self\\n", "key"])
    {'exact_match': 0.6666666666666666}
    """
    stripped = [[text.strip() for text in side] for side in (targets, predictions)]
    return {"exact_match": accuracy(*stripped)["accuracy"]}


def binary_f1(
    targets: Sequence, predictions: Sequence, *, positive: Hashable = 1
) -> dict[str, float]:
    """Returns the F1 of the label `positive`, 2 TP / (2 TP + FP + FN).

    F1 is the harmonic mean of precision and recall. It is 0.0 if neither the targets nor the
    predictions have the label. Use `functools.partial` to choose another label.

    >>> binary_f1([1, 1, 1, 0, 0], [1, 1, 0, 1, 0])  # TP = 2, FP = 1, FN = 1
    {'f1': 0.6666666666666666}
    """
    return {"f1": _f1_of_label(_pairs(targets, predictions), positive)}


def macro_f1(targets: Sequence, predictions: Sequence) -> dict[str, float]:
    """Returns the mean F1 over the labels of the targets, unweighted.

    A prediction that is not a label of the targets counts as wrong, and does not add a class.

    >>> macro_f1(["a", "a", "a", "b"], ["a", "a", "b", "b"])  # F1: 4/5 for a, 2/3 for b
    {'macro_f1': 0.7333333333333334}
    """
    pairs = _pairs(targets, predictions)
    labels = dict.fromkeys(targets)
    return {"macro_f1": _mean(_f1_of_label(pairs, label) for label in labels)}


def matthews(targets: Sequence, predictions: Sequence) -> dict[str, float]:
    """Returns the Matthews correlation of two classes (Matthews 1975), from -1 to 1.

    >>> got = matthews([1, 1, 1, 0, 0], [1, 1, 0, 0, 0])
    >>> {name: round(x, 4) for name, x in got.items()}  # (2 * 2 - 0 * 1) / sqrt(2 * 3 * 3 * 2)
    {'matthews': 0.6667}

    It is 0.0 if all targets or all predictions are the same. A prediction that is not a label of
    the targets counts as the first of the sorted labels.

    Raises ValueError for targets of more than two classes.
    """
    pairs = _pairs(targets, predictions)
    labels = sorted(set(targets))
    if len(labels) > 2:
        raise ValueError(
            f"Got targets with the classes {labels}, expected at most two: use accuracy or "
            "macro_f1."
        )
    hits, misses, false, right = (
        sum((target == labels[-1], predicted == labels[-1]) == case for target, predicted in pairs)
        for case in ((True, True), (True, False), (False, True), (False, False))
    )
    sides = (hits + false) * (hits + misses) * (right + false) * (right + misses)
    return {"matthews": (hits * right - false * misses) / sides**0.5 if sides else 0.0}


def multirc(targets: Sequence, predictions: Sequence) -> dict[str, float]:
    """Returns MultiRC's F1 over all answers, and the share of questions with no wrong answer.

    Targets and predictions are pairs (question, "True" or "False"), one for each answer.

    >>> multirc([(1, "True"), (1, "False"), (2, "True")], [(1, "True"), (1, "True"), (2, "True")])
    {'f1': 0.8, 'exact_match': 0.5}
    """
    pairs = _pairs(targets, predictions)
    wrong = {question for (question, target), (_, predicted) in pairs if target != predicted}
    questions = {question for question, _ in targets}
    labels = [(target, predicted) for (_, target), (_, predicted) in pairs]
    return {"f1": _f1_of_label(labels, "True"), "exact_match": 1 - len(wrong) / len(questions)}


def squad(targets: Sequence, predictions: Sequence[str]) -> dict[str, float]:
    """Returns SQuAD's exact match and F1 over words (Rajpurkar et al. 2016).

    Texts are converted to lower case. Punctuation, the articles a, an and the, and repeated white
    space are removed. A target is an answer or a list of accepted answers; the best match counts.
    Two texts without words match, as in SQuAD 2.

    >>> squad([["the Nile", "Nile river"], "In 1969."], ["The river Nile", "july 1969"])
    {'exact_match': 0.0, 'f1': 0.75}
    """
    matches = []
    scores = []
    for target, prediction in _pairs(targets, predictions):
        predicted = _squad_words(prediction)
        answers = [_squad_words(answer) for answer in _answers(target)]
        matches.append(max(predicted == answer for answer in answers))
        scores.append(max(_f1_of_words(answer, predicted) for answer in answers))
    return {"exact_match": _mean(matches), "f1": _mean(scores)}


def rouge(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns ROUGE's F1 over words, word pairs, and longest common subsequences (Lin 2004).

    The figures are means over the examples. Words are not stemmed. For rougeLsum, each line is a
    sentence.

    >>> rouge(["the cat sat"], ["the cat ran"])
    {'rouge1': 0.6666666666666666, 'rouge2': 0.5, 'rougeLsum': 0.6666666666666666}
    """
    from rouge_score import rouge_scorer

    names = ["rouge1", "rouge2", "rougeLsum"]
    scorer = rouge_scorer.RougeScorer(names)
    scores = [scorer.score(target, predicted) for target, predicted in _pairs(targets, predictions)]
    return {name: _mean(score[name].fmeasure for score in scores) for name in names}


def bleu(targets: Sequence, predictions: Sequence[str]) -> dict[str, float]:
    """Returns corpus BLEU from 0 to 100 (Papineni et al. 2002), by sacrebleu with its defaults.

    A target is a translation or a list of translations.

    >>> {name: round(x, 2) for name, x in bleu(["the cat sat on it"], ["the cat sat on"]).items()}
    {'bleu': 77.88}

    In this example all precisions are 1, since the four words are correct. The brevity penalty is
    exp(1 - 5/4).
    """
    import sacrebleu

    references = [_answers(target) for target, _ in _pairs(targets, predictions)]
    streams: Any = list(itertools.zip_longest(*references))
    return {"bleu": float(sacrebleu.corpus_bleu(list(predictions), streams).score)}


def pearson_and_spearman(
    targets: Sequence[float], predictions: Sequence[float]
) -> dict[str, float]:
    """Returns the correlation of numbers (Pearson) and of their ranks (Spearman), from -1 to 1.

    Both are nan if all targets or all predictions are the same, for example for a single example.

    >>> got = pearson_and_spearman([1, 2, 3, 4], [1, 4, 9, 16])
    >>> {name: round(x, 4) for name, x in got.items()}
    {'pearson': 0.9844, 'spearman': 1.0}
    """
    import scipy.stats

    pairs = _pairs(targets, predictions)
    if any(len(set(side)) == 1 for side in zip(*pairs)):
        return {"pearson": float("nan"), "spearman": float("nan")}
    measures = {"pearson": scipy.stats.pearsonr, "spearman": scipy.stats.spearmanr}
    return {
        name: float(correlation(targets, predictions).statistic)
        for name, correlation in measures.items()
    }


def auroc(targets: Sequence[int], predictions: Sequence[float]) -> dict[str, float]:
    """Returns the area under the receiver operating characteristic curve.

    This is the share of pairs (example with target 1, example with target 0) in which the first has
    the greater prediction. Ties count half. It is nan if all targets are the same.

    >>> auroc([0, 1, 1], [0.2, 0.1, 0.4])
    {'auroc': 0.5}
    """
    from scipy import stats

    is_one = [target == 1 for target, _ in _pairs(targets, predictions)]
    ones = sum(is_one)
    pairs = ones * (len(is_one) - ones)
    ranks = stats.rankdata(predictions)[is_one]
    area = float((ranks.sum() - ones * (ones + 1) / 2) / pairs) if pairs else float("nan")
    return {"auroc": area}


def majority(train_targets: Iterable[Answer]) -> Answer:
    """Returns the most frequent answer, or the first of equally frequent answers.

    >>> majority(["no", "yes", "yes"])
    'yes'
    """
    counts = collections.Counter(train_targets)
    if not counts:
        raise ValueError("Got no answers, expected the answers of the training split.")
    return counts.most_common(1)[0][0]


def unigram(train_targets: Iterable[str]) -> str:
    """Returns the most frequent word of the answers, a baseline if answers rarely repeat.

    >>> unigram(["the cat sat", "on the mat", "a dog"])
    'the'
    """
    return majority(word for target in train_targets for word in target.split())


def _pairs(targets: Sequence, predictions: Sequence) -> list[tuple]:
    if len(targets) != len(predictions):
        raise ValueError(
            f"Got {len(targets)} targets and {len(predictions)} predictions, expected the same "
            "number: give one prediction for each example."
        )
    if not len(targets):
        raise ValueError(
            "Got no targets and no predictions, expected one example or more: is the split empty?"
        )
    return list(zip(targets, predictions))


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return float(sum(values) / len(values))


def _f1_of_label(pairs: list[tuple], label: Hashable) -> float:
    hits = sum(target == label == predicted for target, predicted in pairs)
    errors = sum((target == label) != (predicted == label) for target, predicted in pairs)
    return 2 * hits / (2 * hits + errors) if hits else 0.0


def _answers(target: str | Sequence[str]) -> list[str]:
    answers = [target] if isinstance(target, str) else list(target)
    if not answers:
        raise ValueError("Got a target without any answer, expected a text or a list of texts.")
    return answers


def _squad_words(text: str) -> list[str]:
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def _f1_of_words(answer: list[str], predicted: list[str]) -> float:
    if not answer or not predicted:
        return float(answer == predicted)
    common = (collections.Counter(answer) & collections.Counter(predicted)).total()
    return 2 * common / (len(answer) + len(predicted))
