"""A trained model as the functions that `seqio.Evaluator` calls.

    trained = open_trained("runs/my_task")
    evaluator = seqio.Evaluator("my_task", seqio.EncDecFeatureConverter(pack=False))
    metrics, _ = evaluator.evaluate(compute_metrics=True, **evaluator_functions(trained, "my_task"))
    metrics.result()                                   # {"my_task": {"accuracy": …}}

The evaluator reads the task and applies its metrics; `pretrax evaluate --task` does the same by
itself, and gives a baseline beside each figure.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...inference import Decoding, Options, Trained, mode_of
from ...inference.answering.scoring import score
from ...inference.answering.task_scores import longest_answer, written_answers
from ..seqio.quiet_tensorflow import seqio, tf
from ..seqio.seqio_vocabularies import tokenizer_and_ids
from ..vocabularies.special_tokens import codec

_INPUTS, _TARGETS = "encoder_input_tokens", "decoder_target_tokens"  # of the feature converter


class _Example(NamedTuple):
    number: int
    text: str
    target: str


def evaluator_functions(
    trained: Trained,
    name: str,
    *,
    mode: str | None = None,
    max_new: int | None = None,
    batch_size: int = 32,
) -> dict[str, Callable]:
    """Returns `predict_fn` and `score_fn`, for metrics of (targets, predictions) and (targets,
    scores).

    Texts are read back from the task's ids and given to the model in the form that it was trained
    for, so that the run may have another vocabulary and another layout than the task was made for.
    Predictions are ids of the task's vocabulary, with its end-of-sequence; scores are sums of
    log-probabilities, end-of-sequence included, in nats.

    Args:
        trained: of `trained_models.open_trained`.
        name: of the task or mixture that the evaluator was made with.
        mode: as for `inference.answer`; None: what the model was trained for.
        max_new: the most tokens of an answer; None: some more than the longest target has.
        batch_size: rows that are decoded or scored at a time.

    Raises:
        ValueError: an unknown task; one without inputs or targets; one whose vocabulary has no
            end-of-sequence; a mode that writes no answer. When called, for features of another
            converter than `seqio.EncDecFeatureConverter`, and for scores of a model that
            classifies.
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
        examples = _examples(dataset, *readers)
        most = max_new or longest_answer([one.target for one in examples], trained.encode)
        options = Options(decoding=Decoding(max_new=most, batch_size=batch_size))
        answers = written_answers(trained, [one.text for one in examples], mode, options)
        rows = [[*own.encode(answer), own.eos_id] for answer in answers]
        width = max(map(len, rows))
        padded = [row + [own.pad_id] * (width - len(row)) for row in rows]
        return [(one.number, row) for one, row in zip(examples, padded)]

    def score_targets(dataset: tf.data.Dataset, model_feature_shapes=None):
        """[(number of the example, log-probability of its target)]."""
        if mode in ("classify", "tag"):
            raise ValueError(
                f"Got a metric of scores for a model whose mode is {mode!r}, expected one that "
                "writes: a class has no log-probability as a text."
            )
        examples = _examples(dataset, *readers)
        scored = score(trained, [(one.text, one.target) for one in examples], batch_size)
        return [(one.number, found.log_prob) for one, found in zip(examples, scored)]

    return {"predict_fn": predict, "score_fn": score_targets}


def _reader(vocabulary: seqio.Vocabulary) -> Callable[[Sequence[int]], str]:
    """ids of a task, padded -> their text, with special tokens by name."""
    tokenizer, ids = tokenizer_and_ids(vocabulary, sentinels=vocabulary.extra_ids)
    decode = codec(tokenizer, ids).decode

    def read(tokens: Sequence[int]) -> str:
        tokens = list(tokens)
        if vocabulary.eos_id in tokens:
            tokens = tokens[: tokens.index(vocabulary.eos_id)]
        while tokens and tokens[-1] == vocabulary.pad_id:
            tokens.pop()
        return decode(tokens)

    return read


def _examples(dataset: tf.data.Dataset, read_inputs, read_targets) -> list[_Example]:
    found = []
    for number, example in dataset.as_numpy_iterator():
        if not {_INPUTS, _TARGETS} <= example.keys():
            raise ValueError(
                f"The evaluator's feature converter gives {', '.join(sorted(example))}, expected "
                f"{_INPUTS} and {_TARGETS}: make the evaluator with "
                "seqio.EncDecFeatureConverter(pack=False), also for a model of another layout."
            )
        text, target = (
            read_inputs(example[_INPUTS].tolist()),
            read_targets(example[_TARGETS].tolist()),
        )
        found.append(_Example(int(number), text, target))
    if not found:
        raise ValueError(
            "The evaluator has no examples: give it a split, or steps, that leave some."
        )
    return found
