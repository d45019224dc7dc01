"""GLUE and SuperGLUE as SeqIO tasks. The data must be prepared by TensorFlow Datasets.

    pretrax evaluate --run=RUN --task=glue_mrpc --data_dir=tensorflow_datasets

    glue_cola, glue_sst2, glue_mrpc, glue_qqp, glue_stsb, glue_mnli, glue_mnli_mismatched,
    glue_qnli, glue_rte, glue_wnli; super_glue_boolq, …_cb, …_copa, …_multirc, …_rte, …_wic, …_wsc

Texts have T5's format: each field follows its name. Answers are the names of the classes (Raffel et
al. 2020, arXiv:1910.10683, appendix D; `glue_utils.py` of T5's repository). In WSC the answer is a
class and marks surround the two spans, as in T5's `preprocessors.wsc`. The metrics are the
benchmarks' own (Wang et al. 2018, arXiv:1804.07461; Wang et al. 2019, arXiv:1905.00537). ReCoRD is
left out, since its answers are not classes. `register` does not read data or open network
connections.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...corpora.vocabularies.tokenization import T5_EXTRA_IDS
from ...data import task_metrics
from .quiet_tensorflow import seqio, tf

VERSIONS = {"glue": "2.0.0", "super_glue": "1.0.2"}
MNLI = ("entailment", "neutral", "contradiction")
_ANSWER = ("question", "answer", "paragraph")
NO_LABEL = "<unk>"  # class of an example without a public label, as in test splits


def _with_marked_spans(example: dict) -> dict:
    """Puts * around the noun and # around the pronoun of WSC, which begin at a numbered word."""
    first = example["span1_index"]
    second = example["span2_index"]
    text = _marked(example["text"], example["span1_text"], first, "*")
    shifted = second + 2 * tf.cast(first < second, second.dtype)  # the marks are words too
    return example | {"text": _marked(text, example["span2_text"], shifted, "#")}


def _marked(text: tf.Tensor, span: tf.Tensor, word: tf.Tensor, mark: str) -> tf.Tensor:
    number = tf.strings.as_string(word)
    pattern = tf.strings.join([r"^((?:\S+\s){", number, r"})(\Q", span, r"\E)"])
    return tf.strings.regex_replace(text, pattern, rf"\1{mark} \2 {mark}")


def _without_markup(example: dict) -> dict:
    return example | {field: _without_tags(example[field]) for field in _ANSWER}


def _without_tags(text: tf.Tensor) -> tf.Tensor:
    return tf.strings.regex_replace(tf.strings.regex_replace(text, "<br>", " "), "</?b>", "")


class ClassSet(NamedTuple):
    """A dataset: the fields that are read, how they are written, and how answers are scored."""

    fields: tuple[str, ...]  # fields of an example, in the order of the text
    classes: tuple[str, ...] = ()  # names of the labels; () if the label is a number from 0 to 5
    metrics: Sequence = (task_metrics.accuracy,)
    data_set: str | None = None  # name in TFDS, if it differs
    splits: Any = None  # name here -> name in TFDS, if they differ
    # Changes an example before its fields are written.
    prepared: Callable[[dict], dict] = lambda example: example  # noqa: E731


def _f1_and_accuracy(positive: str) -> tuple:
    return functools.partial(task_metrics.binary_f1, positive=positive), task_metrics.accuracy


_TRUE = ("False", "True")
_PAIR = ("sentence1", "sentence2")
_QUESTIONS = ("question1", "question2")
_CLAIM = ("hypothesis", "premise")
_MNLI_SPLITS = {
    part: {"train": "train", "validation": f"validation_{part}"}
    for part in ("matched", "mismatched")
}

SETS: dict[str, dict[str, ClassSet]] = {
    "glue": {
        "cola": ClassSet(("sentence",), ("unacceptable", "acceptable"), (task_metrics.matthews,)),
        "sst2": ClassSet(("sentence",), ("negative", "positive")),
        "mrpc": ClassSet(_PAIR, ("not_equivalent", "equivalent"), _f1_and_accuracy("equivalent")),
        "qqp": ClassSet(_QUESTIONS, ("not_duplicate", "duplicate"), _f1_and_accuracy("duplicate")),
        "stsb": ClassSet(_PAIR, (), (task_metrics.pearson_and_spearman,)),
        "mnli": ClassSet(_CLAIM, MNLI, splits=_MNLI_SPLITS["matched"]),
        "mnli_mismatched": ClassSet(
            _CLAIM, MNLI, data_set="mnli", splits=_MNLI_SPLITS["mismatched"]
        ),
        "qnli": ClassSet(("question", "sentence"), ("entailment", "not_entailment")),
        "rte": ClassSet(_PAIR, ("entailment", "not_entailment")),
        "wnli": ClassSet(_PAIR, ("not_entailment", "entailment")),
    },
    "super_glue": {
        "boolq": ClassSet(("passage", "question"), _TRUE),
        "cb": ClassSet(
            _CLAIM,
            ("entailment", "contradiction", "neutral"),
            (task_metrics.macro_f1, task_metrics.accuracy),
        ),
        "copa": ClassSet(("choice1", "choice2", "premise", "question"), ("choice1", "choice2")),
        "multirc": ClassSet(_ANSWER, _TRUE, (task_metrics.multirc,), prepared=_without_markup),
        "rte": ClassSet(_CLAIM, ("entailment", "not_entailment")),
        "wic": ClassSet(("sentence1", "sentence2", "word"), _TRUE),
        "wsc": ClassSet(("text",), _TRUE, data_set="wsc.fixed", prepared=_with_marked_spans),
    },
}


def register() -> None:
    """Registers all tasks. A second call does nothing."""
    for benchmark, sets in SETS.items():
        for name, class_set in sets.items():
            if f"{benchmark}_{name}" in seqio.TaskRegistry.names():
                return
            tfds_name = f"{benchmark}/{class_set.data_set or name}:{VERSIONS[benchmark]}"
            source = seqio.TfdsDataSource(tfds_name, splits=class_set.splits)
            first_word = name.partition("_")[0]  # "mnli" for both of its splits
            add_class_task(f"{benchmark}_{name}", first_word, class_set, source)


def add_class_task(task: str, name: str, class_set: ClassSet, source: seqio.DataSource) -> None:
    """Registers a dataset as the task `task`, whose texts begin with `name`.

    The examples of `source` have the fields of `class_set`, and a `label` that is a class index or
    a number.
    """
    feature = seqio.Feature(seqio.ByteVocabulary(extra_ids=T5_EXTRA_IDS), add_eos=True)
    seqio.TaskRegistry.add(
        task,
        source=source,
        preprocessors=[
            functools.partial(_written, name=name, class_set=class_set),
            seqio.preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            seqio.preprocessors.append_eos_after_trim,
        ],
        postprocess_fn=functools.partial(_value, class_set=class_set),
        output_features={"inputs": feature, "targets": feature},
        metric_fns=list(class_set.metrics),
    )


def _written(dataset: tf.data.Dataset, name: str, class_set: ClassSet) -> tf.data.Dataset:
    """Writes texts as T5 does: "mrpc sentence1: … sentence2: …" -> "equivalent"."""

    def written(example):
        example = class_set.prepared(example)
        parts = [name]
        for field in class_set.fields:
            parts += [f"{field}:", example[field]]
        label = example["label"]
        if class_set.classes:
            number = tf.where(label < 0, tf.constant(len(class_set.classes), label.dtype), label)
            answer = tf.gather([*class_set.classes, NO_LABEL], number)
        else:  # T5 rounds to fifths
            answer = tf.strings.as_string(tf.round(label * 5) / 5, precision=1)
        texts = {"inputs": tf.strings.join(parts, " "), "targets": answer}
        if "paragraph" not in class_set.fields:
            return texts
        # MultiRC's metric scores whole questions.
        place = [example["idx"][key] for key in ("paragraph", "question")]
        return texts | {"question_number": tf.stack(place)}

    return dataset.map(written, tf.data.AUTOTUNE)


def _value(text: str, class_set: ClassSet, example=None, is_target: bool = False):
    """Returns what metrics compare: a class, a number, or (question, class) for MultiRC."""
    if not class_set.classes:
        try:
            return float(text)
        except ValueError:  # an answer that is not a number counts as 0
            return 0.0
    if example is not None and "question_number" in example:
        return tuple(int(x) for x in example["question_number"]), text
    return text
