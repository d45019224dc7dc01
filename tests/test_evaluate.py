"""The command line of `evaluate.py`, SeqIO tasks, and fine-tuning with scores."""

import json
import re
import types

import pytest
import seqio

from pretrax.cli import evaluate
from pretrax.comparison.eval_metrics import EVAL_METRICS
from pretrax.comparison.figures import HIGHER, Figure
from pretrax.data import task_metrics
from pretrax.inference.answering import task_scores
from pretrax.inference.answering.task_scores import score_task
from pretrax.tasks.seqio_evaluation import evaluation_tasks
from pretrax.training.evaluator import Evaluator
from pretrax.training.reporting.metrics import read_metrics
from pretrax.training.run_configuration import read_directory, run_of_directory
from pretrax.training.saved.runs import open_saved_model
from tests.inference.runs import CLASSES, trained, write_run
from tests.refusals import assert_named, error_of, refuses, warns
from tests.tasks.memory_tasks import memory_source, pair_columns
from tests.tasks.seqio_cache import write_cache
from tests.training import tiny

EXAMPLES = {
    "train": [("a", "red"), ("b", "blue"), ("c", "blue"), ("ç", "blue")],
    "validation": [("e", "red"), ("f", "green"), ("g", "blue"), ("h", "red")],
}


def register(
    name,
    metric_fns,
    pretokenized=True,
    postprocess_fn=None,
    features=("inputs", "targets"),
    splits=tuple(EXAMPLES),
):
    steps = [seqio.preprocessors.tokenize, seqio.preprocessors.append_eos]
    if not pretokenized:
        steps.append(
            lambda dataset: dataset.map(lambda x: {k: x[k] for k in ("inputs", "targets")})
        )
    feature = seqio.Feature(seqio.ByteVocabulary(extra_ids=100))
    if name not in seqio.TaskRegistry.names():
        seqio.TaskRegistry.add(
            name,
            source=memory_source(lambda split: pair_columns(EXAMPLES[split]), splits),
            preprocessors=steps,
            output_features={name: feature for name in features},
            metric_fns=metric_fns,
            postprocess_fn=postprocess_fn,
        )


def log_likelihood(targets, scores):
    return {"log_likelihood": sum(scores) / len(targets)}


def shouted(text, example, is_target):
    """A postprocessing function of a task, which knows the example."""
    assert "inputs" in example
    return f"{text.upper()} {example['inputs_pretokenized'].decode()}"


@pytest.fixture(autouse=True, scope="module")
def tasks():
    register("colors", [task_metrics.accuracy])
    register("colors_ids", [task_metrics.accuracy, log_likelihood], pretokenized=False)
    register("colors_shouted", [task_metrics.exact_match], postprocess_fn=shouted)
    register("colors_mute", [])
    register("colors_unasked", [task_metrics.accuracy], features=["targets"])
    if "all_colors" not in seqio.MixtureRegistry.names():
        seqio.MixtureRegistry.add("all_colors", ["colors", "colors_ids"], default_rate=1)


@pytest.fixture(autouse=True)
def clean_gin(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    yield


def run(capsys, *arguments) -> list[str]:
    evaluate.main(list(arguments))
    return capsys.readouterr().out.strip().split("\n")


def fails(capsys, *arguments) -> str:
    return " ".join(error_of(capsys, evaluate.main, arguments).split())


# --- tasks of SeqIO -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["colors", "colors_ids"])
def test_examples_are_decoded_to_texts(name):
    (task,) = evaluation_tasks("", names=[name])
    assert (task.texts, task.targets) == (list("efgh"), ["red", "green", "blue", "red"])
    # The most frequent answer of the training examples.
    assert (task.name, task.guess) == (name, "blue")
    assert task.guessed_from == "training"
    assert len(task.score_metrics) == (name == "colors_ids")
    (first,) = evaluation_tasks("", names=[name], split="train", examples=3)
    assert first.texts == list("abc")


def test_baseline_of_a_long_task_names_the_counted_examples(monkeypatch):
    monkeypatch.setattr("pretrax.tasks.seqio_evaluation.MAX_COUNTED", 2)
    (task,) = evaluation_tasks("", names=["colors"])
    assert task.guessed_from == "the first 2 examples of training"


def test_baseline_without_training_examples_uses_the_evaluated_ones():
    """Evaluation suites have such tasks. Their baseline is counted in the evaluated examples."""
    register("colors_unseen", [task_metrics.accuracy], splits=["validation"])
    (task,) = evaluation_tasks("", names=["colors_unseen"])
    assert (task.guess, task.guessed_from) == ("red", "these examples")


def test_scalar_seqio_metrics_are_kept_and_unsupported_ones_warned_about():
    def rich(targets, predictions):
        return {"right": seqio.metrics.Scalar(0.5), "shown": seqio.metrics.Text("a"), "n": 2}

    def auxiliary(targets, predictions, aux_values):
        return {"confidence": 1.0}

    register("colors_rich", [rich, auxiliary])
    with warns(UserWarning, "'colors_rich'", 1):
        (task,) = evaluation_tasks("", names=["colors_rich"])
    assert [metric([], []) for metric in task.predict_metrics] == [{"right": 0.5, "n": 2}]


@pytest.mark.slow
def test_mixture_expands_to_its_tasks_without_duplicates():
    found = evaluation_tasks("", names=["colors", "all_colors"])
    assert [task.name for task in found] == ["colors", "colors_ids"]


def test_answers_are_postprocessed_with_their_examples(monkeypatch):
    (task,) = evaluation_tasks("", names=["colors_shouted"])
    assert task.postprocess("red", 0, True) == "RED e" and task.postprocess("x", 3, False) == "X h"
    trained_model = trained("encoder_decoder", "text_to_text")
    for answers, right in ((task.targets, 1.0), (["red"] * 4, 0.5)):
        records = [{"answer": answer.swapcase()} for answer in answers]
        monkeypatch.setattr(task_scores, "answer", lambda *_, r=records: r)
        found = score_task(trained_model, task)
        assert found.metrics == {"exact_match": right}
        assert found.baseline == {"exact_match": 0.25}


@pytest.mark.parametrize(
    "settings, values",
    [
        (dict(names=["color"]), ["'color'", "colors"]),
        (dict(names=["colors_mute"]), ["'colors_mute'", "metric_fns", "--heldout"]),
        (dict(names=["colors_unasked"]), ["'colors_unasked'", "'inputs'", "--heldout"]),
        (dict(names=["colors"], split="test"), ["'test'", "'validation'"]),
        (dict(names=["colors"], examples=0), ["'colors'", "'validation'"]),
    ],
)
def test_unscorable_tasks_are_rejected(settings, values):
    with refuses(ValueError, *values):
        evaluation_tasks("", **settings)


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answering(tmp_path_factory):
    return write_run(
        tmp_path_factory.mktemp("answering"), "encoder_decoder", "text_to_text", steps=(3, 8)
    )


def kept(directory, name="metrics"):
    with open(f"{directory}/evaluation/{name}.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.slow
def test_mixture_scores_are_printed_and_stored(answering, capsys):
    out = run(capsys, f"--run={answering}", "--task=all_colors", "--examples=3", "--beams=2")
    assert out[0].startswith(f"{answering}: respond, validation, 3 examples, 3 examples")
    table = [line.split() for line in out[1:5]]
    assert table[0] == ["task", "step", "metric", "score", "baseline"]
    assert table[1][:3] == ["colors", "8", "accuracy"] and table[1][4] == "0.3333"
    assert table[2][:3] == ["colors_ids", "8", "accuracy"]
    assert table[3][:3] == ["colors_ids", "8", "log_likelihood"] and len(table[3]) == 4
    assert any("the most frequent answer of training, always: 'blue', 'blue'" in x for x in out)
    first, second = kept(answering)
    assert first.keys() == {"task", "step", "accuracy"} and first["step"] == 8
    assert f"{second['log_likelihood']:.4g}" == table[3][3]
    answers = kept(answering, "colors-8")
    assert [(x["text"], x["target"]) for x in answers] == EXAMPLES["validation"][:3]
    assert all(isinstance(x["answer"], str) for x in answers)


@pytest.mark.slow
def test_cached_task_needs_its_cache_directory(answering, capsys, tmp_path):
    task = seqio.TaskRegistry.get("colors")
    steps = [seqio.preprocessors.tokenize, seqio.CacheDatasetPlaceholder(required=True)]
    cached = task.replace(name="colors_cached", preprocessors=steps)
    seqio.TaskRegistry.add_provider("colors_cached", cached)
    arguments = f"--run={answering}", "--task=colors_cached", "--examples=1", "--max_new=2"
    assert "--cache_dir" in fails(capsys, *arguments)
    try:
        write_cache(cached, tmp_path)
        out = run(capsys, *arguments, f"--cache_dir={tmp_path}")
        assert out[0].endswith("validation, 1 examples")
    finally:
        seqio.set_global_cache_dirs([])


@pytest.mark.slow
def test_chosen_checkpoints_are_scored(answering, capsys):
    run(capsys, f"--run={answering}", "--task=colors", "--examples=1", "--max_new=2")
    before = len(kept(answering))
    run(capsys, f"--run={answering}", "--task=colors_ids", "--all_checkpoints", "--max_new=2")
    run(capsys, f"--run={answering}", "--task=colors_ids", "--step=3", "--max_new=2")
    lines = kept(answering)[before:]
    assert [line["step"] for line in lines] == [3, 8, 3]
    assert lines[0] == lines[2] and lines[0]["log_likelihood"] != lines[1]["log_likelihood"]


@pytest.mark.slow
def test_classifier_answers_with_its_class_names(tmp_path, capsys):
    directory = write_run(
        tmp_path, "encoder", "sequence_classification", classes=CLASSES, num_classes=3
    )
    out = run(capsys, f"--run={directory}", "--task=colors")
    assert out[0].startswith(f"{directory}: classify, validation, 4 examples")
    assert {x["answer"] for x in kept(directory, "colors-0")} <= set(CLASSES)


@pytest.mark.slow
def test_classifier_is_scored_on_a_labeled_file(tmp_path, capsys):
    directory = write_run(
        tmp_path / "run", "encoder", "sequence_classification", classes=CLASSES, num_classes=3
    )
    file = tmp_path / "colors.tsv"
    file.write_text("text\tlabel\na\tred\nb\tblue\nc\tblue\n")
    out = run(capsys, f"--run={directory}", f"--labeled={file}")
    assert out[0] == f"{directory}: classify, {file}, 3 examples"
    assert [line.split()[:3] for line in out[2:4]] == [
        ["colors", "0", "accuracy"],
        ["colors", "0", "macro_f1"],
    ]
    assert out[2].split()[4] == "0.6667"
    assert "the most frequent answer of these texts, always: 'blue'" in "".join(out)
    assert {x["answer"] for x in kept(directory, "colors-0")} <= set(CLASSES)
    file.write_text("text\tlabel\na\tpink\n")
    assert_named(fails(capsys, f"--run={directory}", f"--labeled={file}"), f"{file}:2", "'pink'")


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective, heads, predicted",
    [("sequence_regression", 1, "number"), ("token_classification", 3, "word")],
)
def test_labeled_file_is_rejected_for_regression_and_tagging(
    tmp_path, capsys, objective, heads, predicted
):
    directory = write_run(tmp_path / "run", "encoder", objective, num_classes=heads)
    file = tmp_path / "a.tsv"
    file.write_text("text\tlabel\na\t0.5\n")
    asked = f"--run={directory}", f"--labeled={file}"
    assert_named(fails(capsys, *asked), predicted, "labeled")


@pytest.mark.slow
def test_invalid_commands_are_rejected(answering, capsys, tmp_path):
    masked = write_run(tmp_path / "masked", "encoder", "masked_lm")
    for run_dir, options, values in (
        (answering, [], ["--task=NAME", "--labeled=FILE", "--heldout"]),
        (answering, ["--task=a", "--heldout"], ["--task", "--heldout"]),
        (answering, ["--task=a", "--step=3", "--all_checkpoints"], ["--step", "--all_checkpoints"]),
        (answering, ["--heldout", "--beams=4"], ["--beams", "--task"]),
        (answering, ["--labeled=a.tsv", "--split=x"], ["--split", "--task"]),
        (answering, ["--labeled=no.tsv"], ["no.tsv"]),
        (
            answering,
            ["--variants=a.csv", "--wild_type=MK", "--out=./a.csv"],
            ["--out=./a.csv"],
        ),
        (answering, ["--heldout", "--split=x"], ["--split", "--task"]),
        (answering, ["--heldout", "--split=validation"], ["--split", "--task"]),
        (answering, ["--task=a", "--objective=clm"], ["--objective", "--heldout"]),
        (answering, ["--heldout", "--gin.a.b=1"], ["--gin.a.b=1", "--eval_metric"]),
        (answering, ["--heldout", "--text=1"], ["'--text=1'"]),
        (answering, ["--eval_metric=lengths"], ["'lengths'"]),
        (answering, ["--task=colors", "--examples=0"], ["--examples", 1, "'0'"]),
        (answering, ["--task=color"], ["'color'", "colors"]),
        (answering, ["--task=colors_mute"], ["'colors_mute'", "metric_fns"]),
        (answering, ["--task=colors", "--step=4"], ["step 4", 3, 8]),
        (answering, ["--task=colors", "--mode=embed"], ["'embed'"]),
        (answering, ["--task=colors", "--module=none.py"], ["none.py"]),
        (answering, ["--heldout"], ["config.gin", "corpus"]),
        (masked, ["--task=colors"], ["'mask'"]),
        (tmp_path, ["--heldout"], [tmp_path, "config.gin"]),
    ):
        assert_named(fails(capsys, f"--run={run_dir}", *options), *values)


def test_eval_metric_measures_the_latest_checkpoint(tmp_path):
    directory = write_run(tmp_path, "decoder", "causal_lm", steps=(3, 8))
    options = evaluate.parse([f"--run={directory}", "--eval_metric=classify"])
    assert evaluate.steps_of(options) == [8]


@pytest.mark.parametrize("kind", ["--heldout", "--task=colors"])
def test_latest_checkpoint_is_resolved_when_it_is_read(tmp_path, kind):
    """A run that is still training may remove its previous checkpoint."""
    directory = write_run(tmp_path, "decoder", "causal_lm", steps=(3, 8))
    (step,) = evaluate.steps_of(evaluate.parse([f"--run={directory}", kind]))
    (tmp_path / "checkpoints/8").rename(tmp_path / "checkpoints/9")
    assert open_saved_model(directory, step).step == 9


# --- held-out text --------------------------------------------------------------------------------


@pytest.mark.slow
def test_heldout_losses_match_the_losses_logged_in_training(tmp_path, capsys):
    one = tiny.Run(tmp_path, tiny.write_documents(tmp_path / "data"), STEPS=4)
    one.train_in_process(capsys, training__Run__evaluate_every=2, training__Run__checkpoint_every=2)
    trusted = f"--trust={tiny.__name__}"
    out = run(capsys, f"--run={one.dir}", trusted, "--heldout", "--all_checkpoints")
    rows = [line.split() for line in out if re.match(r" *\d+ +(span|prefix)/tokens ", line)]
    assert [row[:2] for row in rows] == [
        [step, name] for step in ("2", "4") for name in ("span/tokens", "prefix/tokens")
    ]
    lines = read_metrics(one.dir)
    written = {line["step"]: line for line in lines if "heldout/span/tokens" in line}
    fields = read_directory(str(one.dir), [tiny.__name__])
    plan = tiny.planned(run_of_directory(str(one.dir), fields))
    evaluator = Evaluator(plan, plan.run.heldout_tokens)
    # No bits per byte, since there are only ids.
    for step, name, nats, perplexity, baseline, targets in rows:
        figures = written[int(step)]
        assert nats == f"{figures[f'heldout/{name}']:.3f}"
        assert baseline == f"{figures[f'baseline/{name}']:.3f}"
        model = open_saved_model(str(one.dir), int(step), plan.mesh, fields=fields)
        scores = evaluator(model.params)
        (score,) = (score for score in scores if score.name == name)
        assert score.loss == pytest.approx(figures[f"heldout/{name}"], rel=1e-5)
        assert int(targets.replace(",", "")) == score.targets and float(perplexity) > 1


# --- eval metrics ---------------------------------------------------------------------------------


def words(subject, *, of: str = "checkpoint", times: int = 1) -> list[Figure]:
    return [Figure("words", subject.step * times, "words", HIGHER, 0.5, f"not of {of}")]


def test_eval_metric_is_computed_by_name_with_its_settings(answering, capsys, monkeypatch):
    monkeypatch.setitem(EVAL_METRICS, "words", words)
    arguments = f"--run={answering}", "--eval_metric=words", "--all_checkpoints"
    out = run(capsys, *arguments, "--gin.words.times", "2", "--gin.mine.words.of='text'")
    assert [line.split() for line in out[1:3]] == [
        ["3", "words", "6", "0.5", "words"],
        ["8", "words", "16", "0.5", "words"],
    ]
    assert "words: not of text" in out
    first, second = kept(answering, "eval_metrics")
    assert (first["eval_metric"], first["step"], second["step"]) == ("words", 3, 8)
    assert (
        first["settings"]["eval_metric.times"] == 2
        and first["settings"]["eval_metric.of"] == "text"
    )
    assert (
        Figure(**second["figures"][0])
        == words(types.SimpleNamespace(step=8), of="text", times=2)[0]
    )
    for setting, values in (
        ("words.tims=2", ["words", "'tims'", "times"]),
        ("other.times=2", ["'other.times=2'", "words"]),
        ("words.of=[text", ["words.of", "[text"]),
        ("words.times='a'", ["times", "'a'"]),
    ):
        assert_named(fails(capsys, *arguments, f"--gin.{setting}"), *values)


# --- fine-tuning that is scored as it goes --------------------------------------------------------

FINETUNING = """
from __gin__ import dynamic_registration

from pretrax import models
from pretrax import objectives
from pretrax import training
from pretrax.tasks.seqio import seqio_corpora
from pretrax.tasks import seqio_evaluation
from pretrax.tasks.seqio import seqio_tasks
from pretrax.tasks.seqio import seqio_vocabularies
from pretrax.training import optimizers

RUN_DIR = None

training.Run.run_dir = %RUN_DIR
training.Run.corpus = @seqio_corpora.seqio_pairs
seqio_corpora.seqio_pairs.tasks = @seqio_tasks.SeqioTasks()
seqio_tasks.SeqioTasks.mixture_or_task_name = "colors"
seqio_corpora.seqio_pairs.given_tokens = 8
seqio_corpora.seqio_pairs.answer_tokens = 8
seqio_corpora.seqio_pairs.vocabulary = @seqio_vocabularies.from_task
seqio_vocabularies.from_task.sentinels = 4
training.Run.objective = @objectives.text_to_text
objectives.text_to_text.longest_answer = 8
training.Run.packing = "single"
training.Run.model = @models.encoder_decoder
models.encoder_decoder.emb_dim = 16
models.encoder_decoder.num_heads = 2
models.encoder_decoder.head_dim = 8
models.encoder_decoder.mlp_dim = 16
models.encoder_decoder.num_encoder_layers = 1
models.encoder_decoder.num_decoder_layers = 1
models.encoder_decoder.remat_policy = "none"
models.encoder_decoder.scan_layers = False
training.Run.optimizer = @optimizers.adamw
optimizers.adamw.learning_rate = @optimizers.warmup_constant
optimizers.warmup_constant.peak = 1e-3
training.Run.sequence_lengths = {"encoder": 20, "decoder": 10}
training.Run.batch_size = 8
training.Run.data_shards = 1
training.Run.steps = 4
training.Run.evaluate_every = 2
training.Run.heldout_tokens = 40
training.Run.evaluation_tasks = @seqio_evaluation.evaluation_tasks
seqio_evaluation.evaluation_tasks.names = ["all_colors"]
"""


@pytest.mark.slow
def test_fine_tuning_scores_tasks_during_training(tmp_path, capsys):
    config = tmp_path / "tuning.gin"
    config.write_text(FINETUNING)
    directory = str(tmp_path / "run")
    tiny.train_in_process([f"--gin_file={config}", f"--gin.RUN_DIR={directory!r}"])
    output = capsys.readouterr().out
    scored = [line for line in read_metrics(directory) if "task/colors/accuracy" in line]
    assert [line["step"] for line in scored] == [2, 4]
    for line in scored:
        assert {"task/colors_ids/log_likelihood", "heldout/all/tokens"} <= line.keys()
        assert line["baseline/task/colors/accuracy"] == 0.25
        assert "baseline/task/colors_ids/log_likelihood" not in line
    assert "step 2 task/colors/accuracy: 0" in re.sub(" +", " ", output)
    assert "(the most frequent answer: 0.25)" in output
    # The scores during training equal the scores of the last checkpoint.
    run(capsys, f"--run={directory}", "--task=colors_ids")
    (line,) = kept(directory)
    expected = scored[-1]["task/colors_ids/log_likelihood"]
    assert line["log_likelihood"] == pytest.approx(expected, rel=1e-4)
