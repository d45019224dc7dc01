"""Compares `seqio.Evaluator` on trained models with pretrax's evaluation of the same tasks."""

import zlib

import pytest
import seqio
import tensorflow as tf

from pretrax.data import task_metrics
from pretrax.inference.answering.task_scores import task_figures
from pretrax.tasks import seqio_evaluator
from pretrax.tasks.seqio.seqio_vocabularies import HuggingFaceVocabulary, RunVocabulary
from pretrax.tasks.seqio_evaluation import evaluation_tasks
from pretrax.tasks.seqio_evaluator import evaluator_functions
from pretrax.training.trained_models import open_run
from tests.inference.runs import CLASSES, trained, write_run
from tests.refusals import refuses
from tests.tasks.memory_tasks import renew_pairs

PAIRS = [("a text <extra_id_0>", "red"), ("é 🤖", "dark green"), ("more of it", "blue")]


def checksum(targets, predictions):
    """A metric that differs between any two lists of answers."""
    return {"answers": zlib.crc32(repr(predictions).encode())}


def log_likelihood(targets, scores):
    return {"log_likelihood": float(sum(scores)), "targets": zlib.crc32(repr(targets).encode())}


def register(name, vocabulary, metric_fns=(checksum, log_likelihood), add_eos=True):
    renew_pairs(name, PAIRS, vocabulary, add_eos=add_eos, metric_fns=list(metric_fns))


def evaluated(name, functions, converter=seqio.EncDecFeatureConverter, **settings):
    evaluator = seqio.Evaluator(name, converter(**settings), async_compute_metrics=False)
    found, _ = evaluator.evaluate(compute_metrics=True, **functions)
    return found.result()[name]


def own_figures(one, name):
    figures = task_figures(one, evaluation_tasks("", names=[name]))
    return {k.rpartition("/")[2]: v for k, v in figures.items() if k.startswith("task/")}


@pytest.mark.slow
def test_seqio_evaluator_matches_our_own_evaluation(tmp_path):
    """Compares both kinds of metrics, also for a model whose layout is not the converter's."""
    register("evaluated", seqio.ByteVocabulary(extra_ids=100))
    runs = {
        "encoder_decoder": write_run(tmp_path / "a", "encoder_decoder", "text_to_text"),
        "decoder": write_run(tmp_path / "b", "decoder", "text_to_text"),
    }
    for run in runs.values():
        opened_run = open_run(run)
        found = evaluated("evaluated", evaluator_functions(opened_run, "evaluated"), pack=False)
        assert found == pytest.approx(own_figures(opened_run, "evaluated"), rel=1e-5)
    assert found.keys() == {"answers", "log_likelihood", "targets"}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["sentencepiece", "hugging_face", "run"])
def test_task_with_another_vocabulary_is_evaluated(
    tmp_path, model, hugging_face, kind, monkeypatch
):
    """The model has a byte vocabulary. Its answers are returned as ids of the task's vocabulary."""
    vocabulary = {
        "sentencepiece": lambda: seqio.SentencePieceVocabulary(model, extra_ids=0),
        "hugging_face": lambda: HuggingFaceVocabulary(hugging_face["bpe"]),
        "run": lambda: RunVocabulary(write_run(tmp_path, "decoder", "causal_lm")),
    }[kind]()
    register("evaluated", vocabulary, [task_metrics.accuracy])
    read = []

    def right_but_once(trained, texts, mode, options):
        read.extend(texts)
        return [target for _, target in PAIRS[:2]] + [""]

    monkeypatch.setattr(seqio_evaluator, "written_answers", right_but_once)
    functions = evaluator_functions(trained("encoder_decoder", "text_to_text"), "evaluated")
    found = evaluated("evaluated", functions, pack=False)
    assert found == {"accuracy": pytest.approx(2 / 3)}
    assert [text.strip() for text in read] == [text for text, _ in PAIRS]


@pytest.mark.slow
def test_classifier_answers_with_classes_but_has_no_likelihoods():
    register("evaluated", seqio.ByteVocabulary(), [task_metrics.accuracy])
    trained_model = trained("encoder", "sequence_classification", classes=CLASSES, num_classes=3)
    functions = evaluator_functions(trained_model, "evaluated")
    assert evaluated("evaluated", functions, pack=False).keys() == {"accuracy"}
    register("evaluated", seqio.ByteVocabulary(), [log_likelihood])
    with refuses(ValueError, "classify"):
        evaluated("evaluated", functions, pack=False)


@pytest.mark.slow
def test_unsuitable_tasks_are_rejected(hugging_face):
    register("evaluated", seqio.ByteVocabulary())
    trained_model = trained("encoder_decoder", "text_to_text")
    functions = evaluator_functions(trained_model, "evaluated")
    with refuses(ValueError, "encoder_input_tokens"):
        evaluated("evaluated", functions, seqio.PrefixLMFeatureConverter, pack=False)
    nothing = tf.data.Dataset.from_tensor_slices([]).enumerate()
    with refuses(ValueError, "examples", "split"):
        functions["predict_fn"](nothing)
    register("evaluated", HuggingFaceVocabulary(hugging_face["wordpiece"]), add_eos=False)
    with refuses(ValueError, "evaluated"):
        evaluator_functions(trained_model, "evaluated")
    source = seqio.TaskRegistry.get("evaluated").source
    feature = {"targets": seqio.Feature(seqio.ByteVocabulary())}
    seqio.TaskRegistry.remove("evaluated")
    seqio.TaskRegistry.add("evaluated", source=source, preprocessors=[], output_features=feature)
    with refuses(ValueError, "evaluated"):
        evaluator_functions(trained_model, "evaluated")
