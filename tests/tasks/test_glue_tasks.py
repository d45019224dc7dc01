"""GLUE and SuperGLUE: what is read of each data set, by hand, without a download."""

import pytest
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from pretrax.comparing.yardsticks.parts.class_tasks import class_figures, class_task
from pretrax.comparing.yardsticks.subject import Subject
from pretrax.tasks.evaluation.seqio_evaluation import evaluation_tasks
from pretrax.tasks.seqio import glue_tasks
from pretrax.tasks.seqio.seqio_tasks import found_tasks

SETS = [(benchmark, name) for benchmark, sets in glue_tasks.SETS.items() for name in sets]


@pytest.mark.parametrize(("benchmark", "name"), SETS)
def test_fields_classes_and_splits_are_those_of_tensorflow_datasets(tmp_path, benchmark, name):
    one = glue_tasks.SETS[benchmark][name]
    builder = tfds.builder(f"{benchmark}/{one.data_set or name}", data_dir=str(tmp_path))
    assert str(builder.version) == glue_tasks.VERSIONS[benchmark]
    features = builder.info.features
    assert {*one.fields, "label"} <= set(features)
    assert tuple(getattr(features["label"], "names", ())) == one.classes
    found, _ = found_tasks(f"{benchmark}_{name}", None, None)
    assert [task.name for task in found] == [f"{benchmark}_{name}"] and found[0].metric_fns


def register(name: str, examples: list[dict]) -> str:
    """A task of a data set of glue_tasks.SETS with these examples; returns its name."""
    benchmark = "super_glue" if name in glue_tasks.SETS["super_glue"] else "glue"
    task = f"tiny_{benchmark}_{name}_{len(examples)}"

    def read(split, shuffle_files=False, seed=None):
        columns = {key: [example[key] for example in examples] for key in examples[0]}
        if "idx" in columns:
            columns["idx"] = {k: [x[k] for x in columns["idx"]] for k in columns["idx"][0]}
        return tf.data.Dataset.from_tensor_slices(columns)

    if task not in seqio.TaskRegistry.names():
        source = seqio.FunctionDataSource(read, splits=["train", "validation"])
        glue_tasks.add_class_task(task, name, glue_tasks.SETS[benchmark][name], source)
    return task


def read(name: str, examples: list[dict]):
    (found,) = evaluation_tasks("", names=[register(name, examples)])
    return found


def scored(found, answers) -> dict[str, float]:
    targets = [found.postprocess(text, i, True) for i, text in enumerate(found.targets)]
    predicted = [found.postprocess(text, i, False) for i, text in enumerate(answers)]
    return {k: v for metric in found.predict_metrics for k, v in metric(targets, predicted).items()}


def test_texts_and_classes_by_hand():
    pairs = [{"sentence1": f"a{i}", "sentence2": f"b{i}", "label": i % 2} for i in range(4)]
    found = read("mrpc", pairs)
    assert found.texts[1] == "mrpc sentence1: a1 sentence2: b1"
    assert list(found.targets) == ["not_equivalent", "equivalent"] * 2
    got = scored(found, ["equivalent", "equivalent", "nothing", "equivalent"])
    assert got == {"f1": 0.8, "accuracy": 0.5}  # 2 found, 1 wrong
    kept_back = read("sst2", [{"sentence": "x", "label": -1}])
    assert list(kept_back.targets) == [glue_tasks.UNTOLD]


def test_numbers_and_correlations_by_hand():
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


def test_a_registered_task_gives_classes():
    pairs = [{"sentence1": str(i), "sentence2": "", "label": int(i % 3 == 0)} for i in range(20)]
    task = class_task(Subject("runs/x"), register("wnli", pairs))
    assert task.classes == ["entailment", "not_entailment"]
    (always,) = class_figures("x", task, ["not_entailment"] * 20)
    assert always.unit == "accuracy"
    assert always.value == always.baseline == 13 / 20
    (right,) = class_figures("x", task, task.labels["validation"])
    assert right.value == 1 and right.name == "x"


def test_a_task_of_many_answers_has_no_classes(tmp_path):
    rows = [{"sentence1": "", "sentence2": "", "label": 0.2 * i} for i in range(20)]
    name = register("stsb", rows)
    with pytest.raises(ValueError, match="different answers to"):
        class_task(Subject("runs/x"), name)
