"""Metrics of downstream tasks, in SeqIO's interface: (targets, predictions) -> {name: figure}.

    seqio.TaskRegistry.add(…, metric_fns=[metrics.accuracy, metrics.macro_f1])

Each metric takes the outputs of a task's `postprocess_fn`, one target and one prediction for each
example, and returns fractions from 0 to 1. Only BLEU is from 0 to 100, as is usual. Lists of
different lengths and empty lists raise ValueError. `majority` and `unigram` are baseline
predictions that ignore the input.
"""

import collections
import itertools
import re
import string
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeVar

Answer = TypeVar("Answer", bound=Hashable)


def accuracy(targets: Sequence, predictions: Sequence) -> dict[str, float]:
    """Returns the share of predictions equal to their target: a text, class or number.

    >>> accuracy(["cat", "dog", "dog", "cow"], ["cat", "dog", "cat", "Cow"])
    {'accuracy': 0.5}
    """
    pairs = _pairs(targets, predictions)
    return {"accuracy": _mean(target == prediction for target, prediction in pairs)}


def exact_match(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns the share of predictions with their target's text, ignoring white space around it.

    >>> exact_match(["return x", "self", "Key"], [" return x", "self\\n", "key"])
    {'exact_match': 0.6666666666666666}
    """
    stripped = [[text.strip() for text in side] for side in (targets, predictions)]
    return {"exact_match": accuracy(*stripped)["accuracy"]}


def binary_f1(
    targets: Sequence, predictions: Sequence, *, positive: Hashable = 1
) -> dict[str, float]:
    """F1 of one label: the harmonic mean of precision and recall, 2 TP / (2 TP + FP + FN).

    The label is `positive`: bind another with `functools.partial`. 0.0 where neither targets nor
    predictions have it.

    >>> binary_f1([1, 1, 1, 0, 0], [1, 1, 0, 1, 0])  # two hits, one wrong, one missed
    {'f1': 0.6666666666666666}
    """
    return {"f1": _f1_of_label(_pairs(targets, predictions), positive)}


def macro_f1(targets: Sequence, predictions: Sequence) -> dict[str, float]:
    """Returns the mean F1 over the labels of the targets, unweighted.

    A prediction that is not a label of the targets counts as wrong, and does not add a class.

    >>> macro_f1(["a", "a", "a", "b"], ["a", "a", "b", "b"])  # F1 of a 4/5, of b 2/3
    {'macro_f1': 0.7333333333333334}
    """
    pairs = _pairs(targets, predictions)
    labels = dict.fromkeys(targets)
    return {"macro_f1": _mean(_f1_of_label(pairs, label) for label in labels)}


def matthews(targets: Sequence, predictions: Sequence) -> dict[str, float]:
    """The correlation of two classes (Matthews 1975), from -1 to 1; 0.0 where a side is constant.

    >>> got = matthews([1, 1, 1, 0, 0], [1, 1, 0, 0, 0])
    >>> {name: round(x, 4) for name, x in got.items()}  # 2 * 2 - 0 * 1, over sqrt(2 * 3 * 3 * 2)
    {'matthews': 0.6667}

    A prediction that is not a label of the targets counts as the other class.

    Raises ValueError for targets of more than two classes.
    """
    pairs = _pairs(targets, predictions)
    labels = sorted(set(targets))
    if len(labels) > 2:
        raise ValueError(f"Got targets of the classes {labels}, expected two classes.")
    hits, misses, false, right = (
        sum((target == labels[-1], predicted == labels[-1]) == each for target, predicted in pairs)
        for each in ((True, True), (True, False), (False, True), (False, False))
    )
    sides = (hits + false) * (hits + misses) * (right + false) * (right + misses)
    return {"matthews": (hits * right - false * misses) / sides**0.5 if sides else 0.0}


def multirc(targets: Sequence, predictions: Sequence) -> dict[str, float]:
    """MultiRC's F1 over all answers, and the share of questions with every answer right.

    Both sides have (question, "True" or "False") of each answer.

    >>> multirc([(1, "True"), (1, "False"), (2, "True")], [(1, "True"), (1, "True"), (2, "True")])
    {'f1': 0.8, 'exact_match': 0.5}
    """
    pairs = _pairs(targets, predictions)
    wrong = {question for (question, target), (_, predicted) in pairs if target != predicted}
    questions = {question for question, _ in targets}
    labels = [(target, predicted) for (_, target), (_, predicted) in pairs]
    return {"f1": _f1_of_label(labels, "True"), "exact_match": 1 - len(wrong) / len(questions)}


def squad(targets: Sequence, predictions: Sequence[str]) -> dict[str, float]:
    """SQuAD's exact match and F1 over words, after its normalization (Rajpurkar et al. 2016).

    Texts are lower-cased, without punctuation, the articles a, an, the, and repeated white space.
    A target is an answer, or a list of accepted ones, of which the best match counts. Two texts
    without words match, as in SQuAD 2.

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
    """ROUGE's F1 over words, over pairs of words, and by longest common subsequence (Lin 2004).

    The mean over examples, words as they are (not stemmed). A line is a sentence for rougeLsum.

    >>> rouge(["the cat sat"], ["the cat ran"])
    {'rouge1': 0.6666666666666666, 'rouge2': 0.5, 'rougeLsum': 0.6666666666666666}
    """
    from rouge_score import rouge_scorer

    names = ["rouge1", "rouge2", "rougeLsum"]
    scorer = rouge_scorer.RougeScorer(names)
    scores = [scorer.score(target, predicted) for target, predicted in _pairs(targets, predictions)]
    return {name: _mean(score[name].fmeasure for score in scores) for name in names}


def bleu(targets: Sequence, predictions: Sequence[str]) -> dict[str, float]:
    """BLEU of the corpus, from 0 to 100, by sacrebleu with its defaults (Papineni et al. 2002).

    A target is a translation, or a list of some.

    >>> {name: round(x, 2) for name, x in bleu(["the cat sat on it"], ["the cat sat on"]).items()}
    {'bleu': 77.88}

    The four words are right, all precisions are 1, and exp(1 - 5/4) is the penalty for being short.
    """
    import sacrebleu

    references = [_answers(target) for target, _ in _pairs(targets, predictions)]
    streams: Any = list(itertools.zip_longest(*references))
    return {"bleu": float(sacrebleu.corpus_bleu(list(predictions), streams).score)}


def pearson_and_spearman(
    targets: Sequence[float], predictions: Sequence[float]
) -> dict[str, float]:
    """The correlation of numbers (Pearson) and of their ranks (Spearman), from -1 to 1.

    nan where either side is constant, such as a single number.

    >>> got = pearson_and_spearman([1, 2, 3, 4], [1, 4, 9, 16])
    >>> {name: round(x, 4) for name, x in got.items()}
    {'pearson': 0.9844, 'spearman': 1.0}
    """
    import scipy.stats

    pairs = _pairs(targets, predictions)
    if any(len(set(side)) == 1 for side in zip(*pairs)):
        return {"pearson": float("nan"), "spearman": float("nan")}
    measures = {"pearson": scipy.stats.pearsonr, "spearman": scipy.stats.spearmanr}
    return {name: float(of(targets, predictions).statistic) for name, of in measures.items()}


def majority(train_targets: Iterable[Answer]) -> Answer:
    """Returns the most frequent answer, of equally frequent ones the first.

    >>> majority(["no", "yes", "yes"])
    'yes'
    """
    counts = collections.Counter(train_targets)
    if not counts:
        raise ValueError("Got no answers, expected those of the training split.")
    return counts.most_common(1)[0][0]


def unigram(train_targets: Iterable[str]) -> str:
    """Returns the most frequent word of the answers, a baseline where whole answers rarely repeat.

    >>> unigram(["the cat sat", "on the mat", "a dog"])
    'the'
    """
    return majority(word for target in train_targets for word in target.split())


def _pairs(targets: Sequence, predictions: Sequence) -> list[tuple]:
    """Returns (target, prediction) of each example."""
    if len(targets) != len(predictions):
        raise ValueError(
            f"Got {len(targets)} targets and {len(predictions)} predictions, expected equal "
            "numbers: one prediction for each example."
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
        raise ValueError("Got a target without any answer, expected a text or a list of some.")
    return answers


def _squad_words(text: str) -> list[str]:
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def _f1_of_words(answer: list[str], predicted: list[str]) -> float:
    if not answer or not predicted:
        return float(answer == predicted)
    common = (collections.Counter(answer) & collections.Counter(predicted)).total()
    return 2 * common / (len(answer) + len(predicted))
