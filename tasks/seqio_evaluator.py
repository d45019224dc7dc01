"""A trained model as the functions that `seqio.Evaluator` calls.

    trained = open_trained("runs/my_task")
    evaluator = seqio.Evaluator("my_task", seqio.EncDecFeatureConverter(pack=False))
    metrics, _ = evaluator.evaluate(compute_metrics=True, **evaluator_functions(trained, "my_task"))
    metrics.result()                                   # {"my_task": {"accuracy": …}}

`pretrax evaluate --task` does the same by itself, and gives a baseline beside each figure.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ..corpora.vocabularies.special_tokens import codec
from ..inference import Decoding, Options, Trained, mode_of
from ..inference.answering.scoring import score
from ..inference.answering.task_scores import longest_answer, written_answers
from .seqio.quiet_tensorflow import seqio, tf
from .seqio.seqio_vocabularies import tokenizer_and_ids

# of the feature converter
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

    Texts are read back from the task's ids and given to the model in the form that it was trained
    for, so that the run may have another vocabulary and another layout than the task was made for.
    Predictions are ids of the task's vocabulary, with its end-of-sequence; scores are sums of
    log-probabilities, end-of-sequence included, in nats.

    Args:
        name: of the task or mixture that the evaluator was made with.
        mode: as for `inference.answer`; None: what the model was trained for.
        max_new: the most tokens of an answer; None: some more than the longest target has.

    Raises ValueError for an unknown task, one without inputs or targets, or whose vocabulary has no
    end-of-sequence. When called, for a mode that writes no answer, features of another converter
    than `seqio.EncDecFeatureConverter`, and scores of a model that classifies.
    """
    mode = mode or mode_of(trained)
    features = seqio.get_mixture_or_task(name).output_features
    if missing := {"inputs", "targets"} - features.keys():
        raise ValueError(
            f"{name!r} has no feature {', '.join(sorted(missing))}, expected inputs and targets, "
            f"got {', '.join(features)}: there is nothing to answer."
        )
    own = features["targets"].vocabulary
    if own.eos_id is None:
        raise ValueError(
            f"{name!r} has the vocabulary {own}, which has no end-of-sequence, where SeqIO would "
            "stop to read an answer: evaluate it with `pretrax evaluate --task`."
        )
    readers = [_reader(features[side].vocabulary) for side in ("inputs", "targets")]

    def predict(dataset: tf.data.Dataset, model_feature_shapes=None):
        """[(number of the example, ids of the answer)], all of one length."""
        numbers, texts, targets = _examples(dataset, *readers)
        most = max_new or longest_answer(targets, trained.encode)
        options = Options(decoding=Decoding(max_new=most, batch_size=batch_size))
        answers = written_answers(trained, texts, mode, options)
        rows = [[*own.encode(answer), own.eos_id] for answer in answers]
        width = max(map(len, rows))
        padded = [row + [own.pad_id] * (width - len(row)) for row in rows]
        return list(zip(numbers, padded))

    def score_targets(dataset: tf.data.Dataset, model_feature_shapes=None):
        """[(number of the example, log-probability of its target)]."""
        if mode in ("classify", "tag"):
            raise ValueError(
                f"Got a metric of scores for a model whose mode is {mode!r}, expected one that "
                "writes: a class has no log-probability as a text."
            )
        numbers, *pairs = _examples(dataset, *readers)
        scored = score(trained, list(zip(*pairs)), batch_size)
        return [(number, one.log_prob) for number, one in zip(numbers, scored)]

    return {"predict_fn": predict, "score_fn": score_targets}


def _reader(vocabulary: seqio.Vocabulary) -> Callable[[np.ndarray], str]:
    """ids of a task, padded -> their text, with special tokens by name."""
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
    """The numbers, the texts and the targets of examples."""
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
            "The evaluator has no examples: give it a split, or steps, that leave some."
        )
    numbers, texts, targets = zip(*examples)
    return numbers, texts, targets
