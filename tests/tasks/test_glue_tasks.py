"""GLUE and SuperGLUE: the texts of each dataset, written by hand and without a download."""

import json
import os
from pathlib import Path

import pytest
import seqio
import tensorflow_datasets as tfds

from pretrax.cli import evaluate
from pretrax.comparison.eval_metrics.parts.class_tasks import class_figures, class_task
from pretrax.comparison.eval_metrics.subject import Subject
from pretrax.inference.answering import task_scores
from pretrax.tasks.seqio import glue_tasks
from pretrax.tasks.seqio.seqio_tasks import found_tasks
from pretrax.tasks.seqio_evaluation import evaluation_tasks
from tests.inference.runs import write_run
from tests.refusals import refuses
from tests.tasks.memory_tasks import memory_source

SETS = [(benchmark, name) for benchmark, sets in glue_tasks.SETS.items() for name in sets]


@pytest.mark.parametrize(("benchmark", "name"), SETS)
def test_fields_classes_and_splits_match_tensorflow_datasets(tmp_path, benchmark, name):
    one = glue_tasks.SETS[benchmark][name]
    builder = tfds.builder(f"{benchmark}/{one.data_set or name}", data_dir=str(tmp_path))
    assert str(builder.version) == glue_tasks.VERSIONS[benchmark]
    features = builder.info.features
    assert {*one.fields, "label"} <= set(features)
    assert tuple(getattr(features["label"], "names", ())) == one.classes
    found, _ = found_tasks(f"{benchmark}_{name}", None, None)
    assert [task.name for task in found] == [f"{benchmark}_{name}"] and found[0].metric_fns


# --- as TensorFlow Datasets has them --------------------------------------------------------------

# Validation examples with the fields of TFDS, and the texts on which T5 was trained.
AS_T5_READS = {
    "glue_cola": [
        ({"sentence": "They drank the pub.", "label": 0}, "cola sentence: They drank the pub."),
        ({"sentence": "It rains.", "label": 1}, "cola sentence: It rains."),
    ],
    "glue_mrpc": [
        (
            {"sentence1": "He said so.", "sentence2": "So he said.", "label": 1},
            "mrpc sentence1: He said so. sentence2: So he said.",
        )
    ],
    "glue_stsb": [
        (
            {"sentence1": "A cat.", "sentence2": "A dog.", "label": 1.75},
            "stsb sentence1: A cat. sentence2: A dog.",
        ),
        (
            {"sentence1": "A cat.", "sentence2": "One cat.", "label": 4.5},
            "stsb sentence1: A cat. sentence2: One cat.",
        ),
    ],
    "glue_mnli": [
        (
            {"premise": "It rains.", "hypothesis": "It is dry.", "label": 2},
            "mnli hypothesis: It is dry. premise: It rains.",
        )
    ],
    "glue_mnli_mismatched": [
        ({"premise": "Hm.", "hypothesis": "Yes.", "label": 1}, "mnli hypothesis: Yes. premise: Hm.")
    ],
    "super_glue_boolq": [
        (
            {"question": "is it blue", "passage": "The sky is blue.", "label": 1},
            "boolq passage: The sky is blue. question: is it blue",
        )
    ],
    "super_glue_cb": [
        (
            {"premise": "Do I?", "hypothesis": "I do.", "label": 2},
            "cb hypothesis: I do. premise: Do I?",
        )
    ],
    "super_glue_copa": [
        (
            {
                "premise": "It fell.",
                "choice1": "It broke.",
                "choice2": "It flew.",
                "question": "effect",
                "label": 0,
            },
            "copa choice1: It broke. choice2: It flew. premise: It fell. question: effect",
        )
    ],
    "super_glue_wic": [
        (
            {
                "word": "bank",
                "sentence1": "A river bank.",
                "sentence2": "A bank.",
                "start1": 8,
                "end1": 12,
                "start2": 2,
                "end2": 6,
                "label": 0,
            },
            "wic sentence1: A river bank. sentence2: A bank. word: bank",
        )
    ],
    "super_glue_wsc": [
        (
            {
                "text": "This is a test sentence .",
                "span1_text": "test",
                "span1_index": 3,
                "span2_text": "This",
                "span2_index": 0,
                "label": 0,
            },
            "wsc text: # This # is a * test * sentence .",
        ),
        (
            {
                "text": "Mr. Smith (the elder) said that he knew.",
                "span1_text": "Mr. Smith (the elder)",
                "span1_index": 0,
                "span2_text": "he",
                "span2_index": 6,
                "label": 1,
            },
            "wsc text: * Mr. Smith (the elder) * said that # he # knew.",
        ),
    ],
    "super_glue_multirc": [
        (
            {
                "paragraph": "<b>Sent 1: </b>Ada wrote it.<br>",
                "question": "Who?",
                "answer": "Ada",
                "idx": {"paragraph": 3, "question": 1, "answer": 0},
                "label": 1,
            },
            "multirc question: Who? answer: Ada paragraph: Sent 1: Ada wrote it. ",
        )
    ],
}
ANSWERS = {
    "glue_cola": ["unacceptable", "acceptable"],
    "glue_mrpc": ["equivalent"],
    "glue_stsb": ["1.8", "4.4"],  # 22.5 fifths are rounded to even
    "glue_mnli": ["contradiction"],
    "glue_mnli_mismatched": ["neutral"],
    "super_glue_boolq": ["True"],
    "super_glue_cb": ["neutral"],
    "super_glue_copa": ["choice1"],
    "super_glue_wic": ["False"],
    "super_glue_wsc": ["False", "True"],
    "super_glue_multirc": ["True"],
}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> str:
    """Returns a folder in the format of TFDS, with these examples in the splits that tasks read."""
    folder = str(tmp_path_factory.mktemp("tensorflow_datasets"))
    written: dict[str, dict] = {}  # dataset -> split -> examples
    for benchmark, name in SETS:
        if rows := AS_T5_READS.get(f"{benchmark}_{name}"):
            one = glue_tasks.SETS[benchmark][name]
            of_set = written.setdefault(f"{benchmark}/{one.data_set or name}", {})
            for split in ("train", "validation"):
                named = (one.splits or {}).get(split, split)
                of_set[named] = [{"idx": 0} | example for example, _ in rows]
    for name, examples in written.items():
        write_set(folder, name, examples)
    return folder


def write_set(folder: str, name: str, examples: dict[str, list[dict]]) -> None:
    """Writes examples by split, as TFDS does."""
    info = tfds.builder(name, data_dir=folder).info
    os.makedirs(info.data_dir)
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=100)
    writer.initialize_splits(list(examples))
    writer.add_examples(examples)
    writer.close_all()


METRICS = {  # all other tasks have accuracy
    "glue_cola": ["matthews"],
    "glue_mrpc": ["f1", "accuracy"],
    "glue_stsb": ["pearson", "spearman"],
    "super_glue_cb": ["macro_f1", "accuracy"],
    "super_glue_multirc": ["f1", "exact_match"],
}


@pytest.fixture(scope="module")
def evaluated(data_dir, tmp_path_factory) -> Path:
    """The folder that `pretrax evaluate` writes for a run whose answers are all correct."""
    directory = tmp_path_factory.mktemp("run")
    write_run(directory, "encoder_decoder", "text_to_text")
    answers = {
        text: answer
        for task, rows in AS_T5_READS.items()
        for (_, text), answer in zip(rows, ANSWERS[task])
    }

    def answer(trained, mode, records, options):
        return [{"answer": answers.get(record["text"], "")} for record in records]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_scores, "answer", answer)
        tasks = [f"--task={task}" for task in AS_T5_READS]
        evaluate.main([f"--run={directory}", f"--data_dir={data_dir}", *tasks])
    return directory / "evaluation"


def lines_of(path: Path) -> list[dict]:
    return list(map(json.loads, path.read_text().splitlines()))


@pytest.mark.slow
@pytest.mark.parametrize("task", AS_T5_READS)
def test_texts_and_answers_match_t5_and_score_1(evaluated, task):
    kept = lines_of(evaluated / f"{task}-0.jsonl")
    assert [line["text"] for line in kept] == [text for _, text in AS_T5_READS[task]]
    assert [line["target"] for line in kept] == ANSWERS[task]
    (found,) = (line for line in lines_of(evaluated / "metrics.jsonl") if line["task"] == task)
    metrics = {name: value for name, value in found.items() if name not in ("task", "step")}
    assert metrics == pytest.approx(dict.fromkeys(METRICS.get(task, ["accuracy"]), 1))


def test_missing_data_directory_is_named(data_dir):
    with refuses(FileNotFoundError, "glue_rte", "data_dir"):
        evaluation_tasks("", names=["glue_rte"], data_dir=data_dir)


@pytest.mark.slow
def test_task_follows_the_data_directory_of_each_call(data_dir, tmp_path):
    example = {"sentence": "Elsewhere.", "label": 1, "idx": 0}
    write_set(str(tmp_path), "glue/cola", {"train": [example], "validation": [example]})

    def texts(**where) -> list[str]:
        (found,) = evaluation_tasks("", names=["glue_cola"], **where)
        return list(found.texts)

    first = [text for _, text in AS_T5_READS["glue_cola"]]
    assert texts(data_dir=data_dir) == first
    assert texts(data_dir=str(tmp_path)) == ["cola sentence: Elsewhere."]
    assert texts(data_dir=data_dir) == first
    with refuses(FileNotFoundError, "glue_cola"):
        texts()


def test_mixture_rates_follow_the_data_directory(data_dir):
    by_examples = lambda task: task.source.num_input_examples("validation")  # noqa: E731
    inner, name = "tiny_inner_mixture", "tiny_mixture_of_mixtures"
    if name not in seqio.MixtureRegistry.names():
        seqio.MixtureRegistry.add(inner, [("glue_cola", by_examples)])
        seqio.MixtureRegistry.add(name, [(inner, 3), ("glue_mrpc", by_examples)])
    tasks, rates = found_tasks(name, None, data_dir)
    by_name = dict(zip((task.name for task in tasks), rates))
    assert by_name == {"glue_cola": 3.0, "glue_mrpc": 1.0}
    with refuses(ValueError, "glue_cola"):
        found_tasks(name, None, None)


# --- examples by hand -----------------------------------------------------------------------------


def register(name: str, examples: list[dict]) -> str:
    """Registers a task for a dataset in `glue_tasks.SETS`, and returns the name of the task."""
    benchmark = "super_glue" if name in glue_tasks.SETS["super_glue"] else "glue"
    task = f"tiny_{benchmark}_{name}_{len(examples)}"

    columns = {key: [example[key] for example in examples] for key in examples[0]}
    if "idx" in columns:
        columns["idx"] = {k: [x[k] for x in columns["idx"]] for k in columns["idx"][0]}
    if task not in seqio.TaskRegistry.names():
        source = memory_source(columns)
        glue_tasks.add_class_task(task, name, glue_tasks.SETS[benchmark][name], source)
    return task


def read(name: str, examples: list[dict]):
    (found,) = evaluation_tasks("", names=[register(name, examples)])
    return found


def scored(found, answers) -> dict[str, float]:
    targets = [found.postprocess(text, i, True) for i, text in enumerate(found.targets)]
    predicted = [found.postprocess(text, i, False) for i, text in enumerate(answers)]
    return {k: v for metric in found.predict_metrics for k, v in metric(targets, predicted).items()}


def test_texts_classes_and_f1_match_hand_computed_values():
    pairs = [{"sentence1": f"a{i}", "sentence2": f"b{i}", "label": i % 2} for i in range(4)]
    found = read("mrpc", pairs)
    assert found.texts[1] == "mrpc sentence1: a1 sentence2: b1"
    assert list(found.targets) == ["not_equivalent", "equivalent"] * 2
    got = scored(found, ["equivalent", "equivalent", "nothing", "equivalent"])
    assert got == {"f1": 0.8, "accuracy": 0.5}  # two hits and a false positive
    kept_back = read("sst2", [{"sentence": "x", "label": -1}])
    assert list(kept_back.targets) == [glue_tasks.NO_LABEL]


def test_numbers_and_correlations_match_hand_computed_values():
    found = read(
        "stsb", [{"sentence1": "a", "sentence2": "b", "label": x} for x in (1.0, 2.74, 5.0)]
    )
    assert list(found.targets) == ["1.0", "2.8", "5.0"]
    assert scored(found, ["1.0", "2.8", "5.0"])["pearson"] == pytest.approx(1)
    assert scored(found, ["5.0", "2.8", "none"])["spearman"] == pytest.approx(-1)
    cola = read("cola", [{"sentence": "x", "label": i % 2} for i in range(4)])
    assert scored(cola, cola.targets) == {"matthews": 1.0}
    assert scored(cola, ["acceptable"] * 4) == {
        "matthews": 0.0
    }  # a constant answer is worth nothing


def test_answers_of_a_question_are_scored_together():
    def answer(question, label):
        idx = {"paragraph": 0, "question": question, "answer": 0}
        return {"paragraph": "p", "question": "q", "answer": "a", "idx": idx, "label": label}

    found = read("multirc", [answer(0, 1), answer(0, 0), answer(1, 1)])
    assert scored(found, ["True", "True", "True"]) == {"f1": 0.8, "exact_match": 0.5}


@pytest.mark.slow
def test_registered_task_provides_classes():
    pairs = [{"sentence1": str(i), "sentence2": "", "label": int(i % 3 == 0)} for i in range(20)]
    task = class_task(Subject("runs/x"), register("wnli", pairs))
    assert task.classes == ["entailment", "not_entailment"]
    (always,) = class_figures("x", task, ["not_entailment"] * 20)
    assert always.unit == "accuracy"
    assert always.value == always.baseline == 13 / 20
    (right,) = class_figures("x", task, task.labels["validation"])
    assert right.value == 1 and right.name == "x"


def test_task_with_many_answers_is_rejected_as_classification(tmp_path):
    rows = [{"sentence1": "", "sentence2": "", "label": 0.2 * i} for i in range(20)]
    name = register("stsb", rows)
    with refuses(ValueError, name, 20):
        class_task(Subject("runs/x"), name)
