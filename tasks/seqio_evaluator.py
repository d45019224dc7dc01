"""Lets `seqio.Evaluator` evaluate a trained model.

    trained = open_run("runs/my_task")
    evaluator = seqio.Evaluator("my_task", seqio.EncDecFeatureConverter(pack=False))
    metrics, _ = evaluator.evaluate(compute_metrics=True, **evaluator_functions(trained, "my_task"))
    metrics.result()                                   # {"my_task": {"accuracy": …}}

`pretrax evaluate --task` does the same without such code, and adds a baseline to each result.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ..corpora.vocabularies.special_tokens import codec
from ..inference import Decoding, Options, Trained, mode_of
from ..inference.answering.scoring import score
from ..inference.answering.task_scores import longest_answer, written_answers
from .seqio.quiet_tensorflow import seqio, tf
from .seqio.seqio_vocabularies import tokenizer_and_ids

# names of the feature converter's features
_INPUTS = "encoder_input_tokens"
_TARGETS = "decoder_target_tokens"


def evaluator_functions(
    trained: Trained,
    name: str,
    *,
    mode: str | None = None,
    max_new: int | None = None,
    batch_size: int = 32,
) -> dict[str, Callable]:
    """Returns `predict_fn` and `score_fn`, for metrics of predictions and of scores.

    The task's ids are decoded to text, and the text is given to the model in the form that it was
    trained on. The vocabulary and the layout of the run may therefore differ from the task's.
    Predictions are ids of the task's vocabulary and end with end-of-sequence. Scores are sums of
    log-probabilities in nats, end-of-sequence included.

    Args:
        name: name of the task or mixture of the evaluator.
        mode: how the model answers, see `inference.answer`; by default as it was trained to.
        max_new: largest number of tokens of an answer; by default a little more than the longest
            target has.
        batch_size: number of examples that are computed together.

    Raises:
        ValueError: for an unknown task, a task without inputs or targets, or a vocabulary without
            end-of-sequence. The returned functions raise it for a mode that does not write answers,
            for features of a converter other than `seqio.EncDecFeatureConverter`, and for scores
            of a model that classifies.
    """
    mode = mode or mode_of(trained)
    features = seqio.get_mixture_or_task(name).output_features
    if missing := {"inputs", "targets"} - features.keys():
        raise ValueError(
            f"{name!r} has no feature {', '.join(sorted(missing))}. Got {', '.join(features)}, "
            "expected inputs and targets: evaluate a supervised task."
        )
    vocabulary = features["targets"].vocabulary
    if vocabulary.eos_id is None:
        raise ValueError(
            f"{name!r} has the vocabulary {vocabulary} without end-of-sequence, at which SeqIO "
            "ends an answer: evaluate it with `pretrax evaluate --task`."
        )
    readers = [_reader(features[side].vocabulary) for side in ("inputs", "targets")]

    def predict(dataset: tf.data.Dataset, model_feature_shapes=None):
        """Returns [(number of the example, padded ids of the answer)]."""
        numbers, texts, targets = _examples(dataset, *readers)
        most = max_new or longest_answer(targets, trained.encode)
        options = Options(decoding=Decoding(max_new=most, batch_size=batch_size))
        answers = written_answers(trained, texts, mode, options)
        rows = [[*vocabulary.encode(answer), vocabulary.eos_id] for answer in answers]
        width = max(map(len, rows))
        padded = [row + [vocabulary.pad_id] * (width - len(row)) for row in rows]
        return list(zip(numbers, padded))

    def score_targets(dataset: tf.data.Dataset, model_feature_shapes=None):
        """Returns [(number of the example, log-probability of its target)]."""
        if mode in ("classify", "tag"):
            raise ValueError(
                f"Got a metric of scores for a model with mode {mode!r}, expected a mode that "
                "writes answers: a class has no log-probability as text."
            )
        numbers, *pairs = _examples(dataset, *readers)
        scored = score(trained, list(zip(*pairs)), Options(Decoding(batch_size=batch_size)))
        return [(number, target.log_prob) for number, target in zip(numbers, scored)]

    return {"predict_fn": predict, "score_fn": score_targets}


def _reader(vocabulary: seqio.Vocabulary) -> Callable[[np.ndarray], str]:
    """Returns a function from padded ids of a task to text, with special tokens by name."""
    tokenizer, ids = tokenizer_and_ids(vocabulary, sentinels=vocabulary.extra_ids)
    decode = codec(tokenizer, ids).decode

    def read(tokens: np.ndarray) -> str:
        ends = np.flatnonzero(tokens == vocabulary.eos_id)
        tokens = tokens[: ends[0]] if ends.size else tokens
        kept = np.flatnonzero(tokens != vocabulary.pad_id)
        return decode(tokens[: kept[-1] + 1].tolist() if kept.size else [])

    return read


def _examples(
    dataset: tf.data.Dataset, read_inputs: Callable, read_targets: Callable
) -> tuple[Sequence[int], Sequence[str], Sequence[str]]:
    examples = []
    for number, example in dataset.as_numpy_iterator():
        if not {_INPUTS, _TARGETS} <= example.keys():
            raise ValueError(
                f"The evaluator's feature converter gives {', '.join(sorted(example))}, expected "
                f"{_INPUTS} and {_TARGETS}: make the evaluator with "
                "seqio.EncDecFeatureConverter(pack=False), also for a model of another layout."
            )
        text = read_inputs(example[_INPUTS])
        target = read_targets(example[_TARGETS])
        examples.append((int(number), text, target))
    if not examples:
        raise ValueError(
            "The evaluator has no examples: choose a split and preprocessors that leave some."
        )
    numbers, texts, targets = zip(*examples)
    return numbers, texts, targets
