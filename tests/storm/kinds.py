"""Every kind of file that pretrax writes, and how it is read."""

import json
import pathlib
import random
import shutil
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from pretrax.comparison import results
from pretrax.comparison.eval_metrics.kept_figures import KeptFigures, Measured
from pretrax.comparison.variants import comparison_text, read_comparison
from pretrax.corpora import vocabularies
from pretrax.corpora.vocabularies import special_tokens
from pretrax.data.token_store import open_store
from pretrax.settings import atomic_writes, run_directory
from pretrax.settings.user_errors import explanation
from pretrax.training.saved.result import read_result
from pretrax.training.saved.runs import open_saved_model
from tests import conversion
from tests.comparison import planted, small
from tests.comparison.subjects import subject_of
from tests.data.stores import read as read_records
from tests.inference.runs import CLASSES, trained, write_run
from tests.models import t5x_checkpoints
from tests.storm.commands import assert_explained, run_here
from tests.training import tiny


class Rejected(NamedTuple):
    """The error message of a command, in place of a result."""

    words: str


class Kind(NamedTuple):
    """A kind of file: how to make and read a folder with it, and its properties."""

    make: Callable[[pathlib.Path], Any]  # fills a folder
    read: Callable[[pathlib.Path], Any]  # returns a result, or `Rejected`
    files: str  # glob pattern of the files in the folder
    has_checksum: bool = True
    named: tuple[str, ...] = ()  # other names that an error may give instead of the file


def answer(folder: pathlib.Path, *arguments: str) -> Any:
    """Returns what `pretrax predict` prints, without the path of the folder."""
    ended = run_here("predict", f"--run={folder}", *arguments)
    if ended.status:
        assert_explained(ended, "")
        return Rejected(ended.err)
    return ended.out.replace(str(folder), "")


def write_causal(folder):
    write_run(folder, "decoder", "causal_lm")


def write_sealed(folder):
    """Writes a run whose config.gin has a checksum, as in training."""
    write_causal(folder)
    config = folder / run_directory.CONFIG
    config.write_text(atomic_writes.sealed_text(config.read_text()))


def write_classifying(folder):
    write_run(folder, "encoder", "sequence_classification", classes=CLASSES, num_classes=3)


def write_embedding(folder):
    """Writes an imported model with a file of prompt forms."""
    write_run(folder, "encoder", "masked_lm")
    config = folder / run_directory.CONFIG
    config.write_text(config.read_text().replace("training.Run.objective = @", "# "))
    forms = [{"mode": "embed", "pooling": "mean"}]
    (folder / run_directory.PROMPT_FORMS).write_text(json.dumps(forms))


def with_tokenizer(make):
    def write(folder):
        tokenizer = make(folder)
        ids = special_tokens.token_ids(tokenizer, sentinels=2)
        vocabulary = vocabularies.Vocabulary(tokenizer, ids, {})
        vocabularies.save_vocabulary(str(folder / "run"), vocabulary)

    return write


def encoded(folder):
    """Returns the ids of a text, the decoded text, and the special ids of a vocabulary."""

    def read():
        vocabulary = vocabularies.load_vocabulary(str(folder / "run"))
        codec = special_tokens.codec(vocabulary.tokenizer, vocabulary.ids)
        ids = codec.encode("def the(a): return a")
        return list(map(int, ids)), codec.decode(ids), vocabulary.ids

    return result_or_rejection(read)


def result_or_rejection(read: Callable[[], Any]) -> Any:
    """Returns the result of `read`, or the message that a command would print for its error."""
    try:
        return read()
    except Exception as error:
        words = explanation(error)
        assert words is not None, f"a bare {type(error).__name__}: {error}"
        return Rejected(words)


def all_tokens(folder):
    def read():
        store = open_store(folder)
        pieces = read_records(store.records("train"), 200)
        return store.ids, [(piece.tokens.tolist(), piece.ends_document) for piece in pieces]

    return result_or_rejection(read)


EVERY_TWO_STEPS = {"training__Run__checkpoint_every": 2, "training__Run__evaluate_every": 2}


def write_trained(folder):
    """Trains a run for four steps."""
    run = tiny.Run(folder, tiny.write_documents(folder / "store"), STEPS=4)
    tiny.train_in_process(run.arguments(**EVERY_TWO_STEPS))


def move(config: pathlib.Path, before: str, now: str) -> None:
    """Updates the folder in a copied config.gin. Keeps a wrong checksum wrong."""
    content = config.read_bytes().replace(before.encode(), now.encode())
    try:
        atomic_writes.check_sealed_text(config, config.read_text())
        text, _, _ = content.decode().rpartition("# crc32: ")
        content = atomic_writes.sealed_text(text).encode()
    except ValueError:
        pass
    config.write_bytes(content)


def trained_on(steps: int):
    def train(folder):
        """Continues a run, and returns its lines of metrics and its parameters."""
        run = tiny.Run(folder, str(folder / "store"), STEPS=steps)
        original = (folder / "made").read_text()
        config = folder / "run" / run_directory.CONFIG
        if config.exists():
            move(config, original, str(folder))
        ended = run_here("train", *run.arguments(**EVERY_TWO_STEPS))
        if ended.status:
            assert_explained(ended, "")
            return Rejected(ended.err)
        arrays = tiny.saved_arrays(run.dir, steps)
        figures = read_result(str(run.dir))._replace(seconds={}, run_dir="")
        lines = [line for line in run.lines() if "loss" in line or line["step"] == steps]
        return lines, {name: array.tobytes() for name, array in arrays.items()}, figures

    return train


def converted(source: str, *more: str):
    """Returns a function that imports a model from a folder, and returns its parameters."""

    def read(folder):
        to = folder / "imported"
        options = [option.format(folder=folder) for option in more]
        ended = run_here(
            "convert", f"--from={source.format(folder=folder)}", f"--to={to}", *options
        )
        if ended.status:
            assert_explained(ended, "")
            assert not run_directory.is_run(to)
            return Rejected(ended.err)
        params = open_saved_model(str(to)).params
        return [
            (jax.tree_util.keystr(k), v.tobytes()) for k, v in jax.tree.leaves_with_path(params)
        ]

    return read


def write_compared(folder):
    """Writes a comparison and its results."""
    file = small.write(folder)
    results.write(folder / "compared", planted.results(["small", "large/2"], seeds=[0, 1]))
    comparison = read_comparison(file, trusted=TRUSTED)
    text = atomic_writes.sealed_text(comparison_text(comparison))
    (folder / "compared" / run_directory.COMPARISON).write_text(text)


def kept_comparison(folder):
    file = folder / "compared" / run_directory.COMPARISON
    return result_or_rejection(lambda: read_comparison(str(file), trusted=TRUSTED))


def kept_results(folder):
    return result_or_rejection(lambda: results.read(folder / "compared"))


def write_figures(folder):
    figures = tuple(small.layers(subject_of(trained("decoder")))) * 4
    measured = Measured(figures, "some text could not be read")
    KeptFigures(str(folder)).write(3, small.layers, measured)


def kept_figures(folder):
    return result_or_rejection(lambda: KeptFigures(str(folder)).read([3], [small.layers]))


def write_llama(folder):
    conversion.written(folder / "hf", conversion.llama())


def write_exported(folder):
    write_causal(folder / "run")
    assert run_here("convert", f"--from={folder}/run", f"--to=hf:{folder}/hf").status == 0


def write_bert(folder):
    conversion.written(folder / "hf", conversion.bert())
    conversion.word_pieces(folder / "hf")


def write_t5x(folder):
    t5x_checkpoints.write(
        folder / "checkpoint_7",
        t5x_checkpoints.as_t5x("t5_1_1", t5x_checkpoints.random_params("t5_1_1")),
    )
    settings = t5x_checkpoints.WIDTHS | {"scan_layers": False}
    lines = [f"models.encoder_decoder.{k} = {v!r}" for k, v in settings.items()]
    imports = "from __gin__ import dynamic_registration", "from pretrax import models"
    model_lines = "from pretrax import training", "training.Run.model = @models.encoder_decoder"
    (folder / "small.gin").write_text("\n".join([*imports, *model_lines, *lines, ""]))


ASK = ("Ada", "--max_new=4")

FROM_HF = converted("hf:{folder}/hf")

FROM_T5X = converted("t5x:{folder}/checkpoint_7", "--model={folder}/small.gin")

TRUSTED = ("tests.comparison.small",)

# If a variant is in only one of these files, an error may name either file.
RESULT_FILES = (results.COMPARISON, results.RESULTS)

CHECKPOINT = dict(named=("Checkpoint 0 of", "checkpoint 4 is damaged"))

KINDS = {
    "config.gin": Kind(write_sealed, lambda f: answer(f, *ASK), "config.gin"),
    "vocabulary.json": Kind(write_causal, lambda f: answer(f, *ASK), "vocabulary.json"),
    "vocabulary.model": Kind(with_tokenizer(conversion.trained), encoded, "run/vocabulary.model"),
    "tokenizer.json": Kind(with_tokenizer(conversion.hugging_faces), encoded, "run/tokenizer.json"),
    "classes.json": Kind(
        write_classifying, lambda f: answer(f, "Ada", "--mode=classify"), "classes.json", False
    ),
    "prompt_forms.json": Kind(
        write_embedding, lambda f: answer(f, "Ada", "--mode=embed"), "prompt_forms.json", False
    ),
    "arrays": Kind(
        write_causal, lambda f: answer(f, *ASK), "checkpoints/0/state/**/d/*", **CHECKPOINT
    ),
    "metadata": Kind(
        write_causal, lambda f: answer(f, *ASK), "checkpoints/0/**/_*METADATA", **CHECKPOINT
    ),
    "checksums": Kind(
        write_causal, lambda f: answer(f, *ASK), "checkpoints/0/data/*.json", **CHECKPOINT
    ),
    "resumed arrays": Kind(
        write_trained, trained_on(6), "run/checkpoints/4/state/**/d/*", **CHECKPOINT
    ),
    "resumed position": Kind(
        write_trained, trained_on(6), "run/checkpoints/4/data/*", **CHECKPOINT
    ),
    "metrics.jsonl": Kind(write_trained, trained_on(6), "run/metrics.jsonl", False),
    "result.json": Kind(write_trained, trained_on(4), "run/result.json"),
    "config.gin of a resumed run": Kind(
        write_trained, trained_on(6), "run/config.gin", True, ("of a run with other values",)
    ),
    "store.json": Kind(tiny.write_documents, all_tokens, "store.json"),
    "blocks": Kind(tiny.write_documents, all_tokens, "train.blocks"),
    "tokens": Kind(tiny.write_documents, all_tokens, "train/*.tokens"),
    "index": Kind(tiny.write_documents, all_tokens, "train/*.index"),
    "exported": Kind(write_exported, FROM_HF, "hf/*.safetensors"),
    "exported settings": Kind(write_exported, FROM_HF, "hf/*.json"),
    "safetensors": Kind(write_llama, FROM_HF, "hf/model.safetensors", False, ("left over",)),
    "config.json": Kind(write_bert, FROM_HF, "hf/config.json", False, ("config.json", "hf")),
    "imported tokenizer.json": Kind(write_bert, FROM_HF, "hf/tokenizer.json", False),
    "T5X arrays": Kind(write_t5x, FROM_T5X, "checkpoint_7/*/*", True, ("checkpoint_7",)),
    "T5X checkpoint": Kind(
        write_t5x, FROM_T5X, "checkpoint_7/checkpoint", False, ("checkpoint_7",)
    ),
    "comparison.gin": Kind(
        write_compared, kept_comparison, "compared/comparison.gin", True, ("has no value",)
    ),
    **{
        name: Kind(write_compared, kept_results, f"compared/{name}", True, RESULT_FILES)
        for name in (results.COMPARISON, results.RUNS, results.RESULTS)
    },
    "eval_metrics.jsonl": Kind(write_figures, kept_figures, "evaluation/eval_metrics.jsonl"),
}


def made_folder(kind: Kind, tmp_path: pathlib.Path) -> pathlib.Path:
    """Makes a folder of this kind. Its file `made` contains its original path."""
    whole = tmp_path / "whole"
    whole.mkdir()
    kind.make(whole)
    (whole / "made").write_text(str(whole))
    return whole


def read_after_changes(
    kind: Kind,
    whole: pathlib.Path,
    times: int,
    change: Callable[[pathlib.Path, random.Random], str],
    draw: random.Random,
) -> Iterator[tuple[pathlib.Path, str, Any]]:
    """Changes a file in copies of a folder. Yields the file, the change, and the result."""
    for i in range(times):
        folder = shutil.copytree(whole, whole.with_name(f"changed_{i}"))
        files = sorted(file for file in folder.glob(kind.files) if file.stat().st_size)
        change_description = change(file := draw.choice(files), draw)
        try:
            found = kind.read(folder)
        except BaseException as error:
            error.add_note(change_description)
            raise
        yield file, change_description, found
