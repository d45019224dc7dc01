"""A run that is killed at random moments and started again equals an uninterrupted run."""

import json
import time

import numpy as np
import pytest

from pretrax.models.trees import flattened
from pretrax.training.run_configuration import read_directory
from pretrax.training.saved.result import read_result
from pretrax.training.saved.runs import open_saved_model
from tests.storm.commands import KILLS, start, storm, timed
from tests.training import tiny, two_processes

pytestmark = pytest.mark.storm

STORE = """
training.Run.corpus = @tiny.slow_token_store
tiny.slow_token_store.path = %DATA
"""
TEXT = """
from pretrax import corpora
from pretrax.corpora import vocabularies
training.Run.corpus = @corpora.text_files
corpora.text_files.files = %DATA
corpora.text_files.vocabulary = @vocabularies.trained
vocabularies.trained.size = 512
"""
TASK = """
from pretrax.tasks.seqio import seqio_corpora
from pretrax.tasks.seqio import seqio_tasks
from pretrax.tasks.seqio import seqio_vocabularies
training.Run.corpus = @seqio_corpora.seqio_mixture
seqio_corpora.seqio_mixture.tasks = @seqio_tasks.SeqioTasks()
seqio_tasks.SeqioTasks.mixture_or_task_name = "storm_text"
seqio_tasks.SeqioTasks.module = %DATA
seqio_corpora.seqio_mixture.vocabulary = @seqio_vocabularies.from_task
"""
MODULE = """
import seqio

seqio.TaskRegistry.add(
    "storm_text",
    source=seqio.TextLineDataSource({{"train": {file!r}, "validation": {file!r}}}),
    preprocessors=[
        lambda lines: lines.map(lambda line: {{"targets": line}}),
        seqio.preprocessors.tokenize,
    ],
    output_features={{"targets": seqio.Feature(seqio.ByteVocabulary(), add_eos=False)}},
)
"""


def write_text(folder) -> str:
    lines = [f"{i} is half of {2 * i}, and {i * i} its square.\n" for i in range(3000)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": x}) + "\n" for x in lines))
    (folder / "text.txt").write_text("".join(lines))
    return str(folder / "text.jsonl")


def write_task(folder) -> str:
    write_text(folder)
    (folder / "my_tasks.py").write_text(MODULE.format(file=str(folder / "text.txt")))
    return str(folder / "my_tasks.py")


SOURCES = {
    "text": (TEXT, write_text),
    "token store": (STORE, lambda folder: tiny.write_documents(folder / "store")),
    "SeqIO task": (TASK, write_task),
}


def state(run: tiny.Run) -> dict[str, np.ndarray]:
    """Returns all saved arrays of the last step."""
    return tiny.saved_arrays(run.dir, 12)


def parameters(run: tiny.Run) -> dict[str, np.ndarray]:
    """Returns the parameters of the last step. One process reads what several have saved."""
    fields = read_directory(str(run.dir), ["tests.training.tiny"])
    params = flattened(open_saved_model(str(run.dir), 12, fields=fields).params)
    return {name: np.asarray(array) for name, array in params.items()}


def assert_same_run(run: tiny.Run, whole: tiny.Run, saved=state) -> None:
    """Asserts that two runs have the same results, lines of metrics and saved bits."""

    def lines(training_run):
        return [line for line in training_run.lines() if "loss" in line or line["step"] == 12]

    def result(training_run):
        return read_result(str(training_run.dir))._replace(run_dir="", seconds={})

    assert lines(run) == lines(whole) and result(run) == result(whole)
    tiny.assert_same(saved(run), saved(whole))


@pytest.mark.parametrize("source", SOURCES)
def test_killed_training_equals_uninterrupted_run(source, draw, tmp_path):
    lines, write = SOURCES[source]
    data = write(tmp_path)
    whole, killed = (tiny.Run(tmp_path / name, data) for name in ("whole", "killed"))
    for run in (whole, killed):
        run.config.write_text(tiny.CONFIG.replace(STORE.lstrip(), lines.lstrip()))
    slowly = {"WAIT": "0.01"}  # seconds for each document that a token store reads
    lasts = timed(lambda: start("train", *whole.arguments(), **slowly))
    storm(lambda: start("train", *killed.arguments(), **slowly), draw, lasts)
    assert_same_run(killed, whole)


def test_killed_two_process_training_equals_uninterrupted_run(draw, tmp_path):
    """Kills one process or both. If one is killed, the other must end without help."""
    data = tiny.write_documents(tmp_path / "store")
    whole, killed = (tiny.Run(tmp_path / name, data) for name in ("whole", "killed"))
    began = time.monotonic()
    two_processes.finish_both(whole)
    lasts = time.monotonic() - began
    for _ in range(KILLS):
        processes = two_processes.start_both(killed, env={"WAIT": "0.01"})
        victims = draw.choice([processes, processes[:1], processes[1:]])
        time.sleep(draw.uniform(0.3, 1.0) * lasts)
        for process in victims:
            process.kill()
        for process in processes:
            process.communicate(timeout=240)
    two_processes.finish_both(killed)
    assert_same_run(killed, whole, parameters)
