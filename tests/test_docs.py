"""The documentation builds, and every command and every block of code in it runs.

A block that begins with `# name.py` or `# name.gin` is a file of the reader. Commands run in a
folder with these files and small stand-ins for the reader's data, runs and models. They train only
enough to show that they start. Commands for other machines are only parsed.
"""

import argparse
import dataclasses
import functools
import gzip
import importlib
import itertools
import json
import math
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import unittest.mock
from pathlib import Path
from pydoc_data import topics
from typing import NamedTuple

import numpy as np
import pytest

import pretrax
from benchmarks.common import read_options
from pretrax import cli
from pretrax.cli import compare, explore
from pretrax.comparison import results
from pretrax.comparison.eval_metrics import writing
from pretrax.comparison.scaling import laws_of_comparisons
from pretrax.comparison.variants import read_comparison, runs_of_variants
from pretrax.inference.answering.answers import answer
from pretrax.inference.prompting.prompts import fill_blanks
from pretrax.inference.trained import MODES
from pretrax.settings.partial import Partial
from pretrax.training import optimizers, planning, trainer
from pretrax.training.devices.topologies import read_topology
from pretrax.training.reporting.profiling import check_steps, read_steps
from pretrax.training.run_choices import add_run_arguments, parse_run
from pretrax.training.run_configuration import run_in
from pretrax.training.trained_models import open_run
from tests.comparison import planted
from tests.inference.runs import IDS, write_run
from tests.tasks.seqio_cache import write_cache
from tests.tasks.short_library import short_library
from tests.training import tiny
from tests.training.tiny import ROOT, mesh_of, on_one_device

# Pages are in the order of the site's navigation, since later pages use files of earlier pages.
# Copies of pages of the root are left out.
COPIES = ("security.md", "contributing.md", "changelog.md")
NAVIGATION = [
    page
    for page in re.findall(r"[:-] (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    if page not in COPIES
]
PAGES = [ROOT / "README.md", *(ROOT / "docs" / name for name in NAVIGATION)]


class Block(NamedTuple):
    place: str  # page and line
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """Returns the name of the reader's file in the block."""
        named = re.match(r"# (\w+\.(?:py|gin))\n", self.text)
        return named and named[1]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(f"{page.name}:{text[: m.start()].count(chr(10)) + 1}", m[1], m[2]) for m in found]


def commands_of(block: Block) -> list[str]:
    lines = re.sub(r"\\\n\s*", "", block.text).splitlines()
    return [line for line in lines if line and not line.startswith("#")]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
COMMANDS = {}  # each command once, by its first place
for _block in BLOCKS:
    if _block.language == "sh":
        for _command in commands_of(_block):
            COMMANDS.setdefault(_command, _block.place)
EXAMPLES = [block for block in BLOCKS if block.place.startswith("textbook_examples.md")]
PRINTED = {  # lines that a command prints
    command: after.text.splitlines()
    for block, after in itertools.pairwise(EXAMPLES)
    if (block.language, after.language) == ("sh", "text")
    for command in commands_of(block)
}


def test_every_code_block_declares_its_language():
    for block in BLOCKS:
        assert block.language in ("sh", "python", "gin", "text"), block.place
        assert block.language != "gin" or block.file, block.place


def test_descriptions_of_definition_lists_begin_a_line():
    """Markdown shows the colon of a description that is filled into the line of its name."""
    for page in PAGES:
        joined = re.search(r"^`.*` :   .*$", page.read_text(), re.MULTILINE)
        assert not joined, (page.name, joined[0])


def test_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= 10_500


def test_example_file_is_identical_on_every_page():
    files = {}
    for block in BLOCKS:
        if block.file:
            assert files.setdefault(block.file, block.text) == block.text, block.place


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built documentation."""
    pytest.importorskip("mkdocstrings", reason="pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    finished = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return folder


@pytest.mark.slow
def test_site_builds_without_warnings(site):
    reference = (site / "api/objectives/index.html").read_text()
    assert "share of noise tokens" in reference  # from a docstring's arguments
    page = (site / "objectives/span_corruption/index.html").read_text()
    builder = "api/objectives/#pretrax.objectives.denoising.span_corruption"
    assert f'href="../../{builder}"' in page


@pytest.mark.slow
def test_sidebar_has_fewer_than_60_links(site):
    for page in ("index.html", "objectives/masked_lm/index.html", "api/models/index.html"):
        sidebar = (site / page).read_text().split('<div class="md-content"')[0]
        links = re.findall(r'<a href="([^"#]*)" class="md-nav__link', sidebar)
        assert 3 < len(links) < 60, page


# --- the reader's folder --------------------------------------------------------------------------

ESM2 = dict(
    mlp_activations=("gelu_exact",),
    norm="layer",
    norm_epsilon=1e-5,
    biases=True,
    zeroed_token=IDS.mask,
    num_types=0,
    logits_via_embedding=True,
    vocabulary_layer=True,
    vocabulary_bias=True,
)
RUNS = {  # runs that commands require, in addition to the quickstart: model, objective, settings
    "decoder": ("decoder", "causal_lm", {}),
    "encoder": ("encoder", "masked_lm", {}),
    "causal": ("decoder", "causal_lm", {}),
    "masks": ("encoder", "masked_lm", {}),
    "uniform": ("encoder", "uniform_diffusion", {}),
    "insertions": ("encoder", "insertion_lm", {}),
    "spans": ("encoder_decoder", "span_corruption", {}),
    "bytes_ahead": ("decoder", "multi_token_prediction", {"num_layers": 2}),
    "word_lists": ("decoder", "causal_lm", {}),
    "finetune_text_to_text": ("encoder_decoder", "text_to_text", {}),
    "dna_causal": ("decoder", "causal_lm", {}),
    "small_esm2": ("encoder", "masked_lm", ESM2),
    "babylm": ("decoder", "causal_lm", {}),
}
RULE = 12  # number of characters of a ruler between members on the pages
SMALL = [  # arguments of `pretrax train` for two steps of few rows
    "--gin.training.Run.steps=2",
    "--gin.training.Run.batch_size=8",
    "--gin.training.Run.heldout_tokens=400",
    "--gin.optimizers.warmup_cosine.warmup_steps=1",
]
ONE_LAYER = [  # also with rows of one shape
    "--gin.training.Run.sequence_lengths={'encoder': 64, 'decoder': 64}",
    "--gin.models.encoder_decoder.num_encoder_layers=1",
    "--gin.models.encoder_decoder.num_decoder_layers=1",
    "--gin.models.encoder_decoder.scan_layers=False",
    "--gin.models.encoder_decoder.remat_policy='none'",
]
ONE_DENOISER = ["--gin_file=objectives/span_corruption.gin", *ONE_LAYER]  # instead of UL2's seven


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files of the pages, some text, and untrained models."""
    reader_dir = tmp_path_factory.mktemp("reader")
    # Modes that the blocks register are removed again at the end.
    modes = unittest.mock.patch.dict(MODES)
    with modes, pytest.MonkeyPatch.context() as patch, short_library() as library_files:
        patch.chdir(reader_dir)
        patch.syspath_prepend(str(reader_dir))
        patch.setenv("COLUMNS", "120")
        on_one_device(patch)
        # Runs for accelerators are planned on the available devices.
        patch.setattr(planning, "check_attention", lambda model, mesh: None)
        write_files(reader_dir, [document.read() for document in library_files])
        patch.setattr(
            laws_of_comparisons, "fit", functools.partial(laws_of_comparisons.fit, resamples=10)
        )
        patch.setattr(writing, "SENTENCES", {"train": 20, "validation": 4})
        results.write("comparisons/scaling", planted.scaling())
        for name, (model, objective, settings) in RUNS.items():
            write_run(reader_dir / f"runs/{name}", model, objective, **settings)
        cli.run("prepare", ["--files=raw/*.jsonl", "--out=stores/fineweb_sample", *MORE["prepare"]])
        cli.run("train", [*SMALL, "--gin_file=runs/quickstart.gin", *ONE_DENOISER])
        cli.run("convert", ["--from=runs/quickstart", "--to=hf:t5-v1_1-base"])
        cli.run("convert", ["--from=runs/small_esm2", "--to=hf:esm2_t6_8M_UR50D"])
        # Without these files it looks like another author's model.
        os.remove("t5-v1_1-base/vocabulary.json")
        os.remove("t5-v1_1-base/pretrax_checksums.json")
        os.remove("t5-v1_1-base/pretrax_prompt_forms.json")
        yield reader_dir


def write_files(reader_dir: Path, texts: list[str]):
    for block in BLOCKS:
        if block.file:
            (reader_dir / block.file).write_text(block.text)
    lines = [f"Line {i} says that {i} and {i} are {2 * i}.\n" for i in range(400)]
    for name, selected in (("train", lines), ("heldout", lines[:40])):
        (reader_dir / f"{name}.txt").write_text("".join(selected))
        (reader_dir / f"{name}.tsv").write_text("".join(f"{x[:-1]}\tyes\n" for x in selected))
    (reader_dir / "more").mkdir()
    for name in ("data", "texts"):
        (reader_dir / name).mkdir()
        for i, text in enumerate(texts):
            (reader_dir / f"{name}/{i}.txt").write_text(text)
    (reader_dir / "shakespeare.txt").write_text("".join(lines))
    with gzip.open(reader_dir / "more/lines.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    (reader_dir / "weighted").mkdir()
    weighted = [json.dumps({"text": text, "weights": [[0, 9, 0.1]]}) + "\n" for text in texts]
    (reader_dir / "weighted/lines.jsonl").write_text("".join(weighted))
    for name in ("genomes", "proteins", "transcripts"):
        (reader_dir / name).mkdir()
    for name, count in (("yeast", 3), ("worm", 1)):
        letters = np.random.default_rng(count).choice([*"ACGTacgt"], (count, 9000))
        records = [f">chr{i}\n{''.join(chosen)}\n" for i, chosen in enumerate(letters)]
        with gzip.open(reader_dir / f"genomes/{name}.fa.gz", "wt") as file:
            file.writelines(records)
    proteins = [f">p{i}\n{'MKTAYIAKQRQISFVKSHFSRQ' * (i + 2)}\n" for i in range(40)]
    (reader_dir / "proteins/mine.fasta").write_text("".join(proteins))
    transcripts = [f">t{i}\n{'ACGU' * (i + 20)}\n" for i in range(40)]
    (reader_dir / "transcripts/mine.fa").write_text("".join(transcripts))
    (reader_dir / "clusters.tsv").write_text("".join(f"p{i // 4 * 4}\tp{i}\n" for i in range(40)))
    (reader_dir / "raw").mkdir()
    lines = [json.dumps({"text": text}) + "\n" for text in topics.topics.values()]
    (reader_dir / "raw/topics.jsonl").write_text("".join(lines))
    (reader_dir / "CoLA").mkdir()
    for name in ("train", "dev"):
        lines = "".join(f"gj04\t{i % 2}\t\tLine {i} is here.\n" for i in range(12))
        (reader_dir / f"CoLA/{name}.tsv").write_text(lines)
    for name, letters, mutant in (("protein", "MKTAYIAKQR", "K2R"), ("promoter", "ACGTTG", "A1C")):
        (reader_dir / f"{name}.fasta").write_text(f">{name}\n{letters}\n")
        (reader_dir / f"{name}_variants.csv").write_text(f"mutant,DMS_score\n{mutant},0.5\n")
    (reader_dir / "genes.bed").write_text("chr0\t120\t300\texon\nchr0\t300\t450\tintron\n")
    write_slowrun(reader_dir, texts)
    (reader_dir / "train_10M").mkdir()
    (reader_dir / "train_10M/childes.train").write_text("".join(texts))
    (reader_dir / "in.jsonl").write_text('{"text": "a <extra_id_0> b"}\n')
    (reader_dir / "questions.jsonl").write_text('{"question": "What is 2 + 2?"}\n')
    (reader_dir / "examples.jsonl").write_text('{"question": "What is 1 + 1?", "answer": "2"}\n')


def write_slowrun(reader_dir: Path, texts: list[str]):
    """Writes what Slowrun's prepare_data.py and the program of the page write."""
    import tokenizers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bos = len(alphabet)
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: i for i, letter in enumerate(alphabet)}, [])
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    (reader_dir / "fineweb_data").mkdir()
    tokenizer.save(str(reader_dir / "fineweb_data/tokenizer.json"))
    documents = [[bos, *tokenizer.encode(text).ids] for text in texts]
    tokens = np.array(list(itertools.chain(*documents)), np.uint16)
    for split in ("train", "val"):
        tokens.tofile(reader_dir / f"fineweb_data/{split}.bin")
        if importlib.util.find_spec("torch"):
            import torch

            saved = {"tokens": torch.from_numpy(tokens), "bos_id": bos}
            torch.save(saved, reader_dir / f"fineweb_data/fineweb_{split}.pt")


# --- commands and blocks that run -----------------------------------------------------------------


def layer_of(model: str) -> list[str]:
    """Returns arguments for a model of one layer."""
    settings = ("num_layers=1", "scan_layers=False", "remat_policy='none'")
    return [f"--gin.models.{model}.{setting}" for setting in settings]


ONE_DECODER_LAYER = ["--gin.training.Run.sequence_lengths={'decoder': 64}", *layer_of("decoder")]
# These runs are trained. Other runs are planned: their corpus is opened, and everything is checked.
TRAINED = {  # identified by one of their arguments
    "--gin_file=my_run.gin": ONE_DECODER_LAYER,
    "--gin_file=my_grain_run.gin": ONE_DECODER_LAYER,
    **dict.fromkeys(
        (f"--gin_file=my_{kind}_run.gin" for kind in ("model", "attention", "nnx", "equinox")),
        ["--gin.training.Run.sequence_lengths={'decoder': 32}"],
    ),
    "--gin_file=my_task_run.gin": ["--gin.models.decoder.num_layers=1"],
    "own_task": ONE_DENOISER,
    "proteins": [
        "--gin.synthetic_tasks.proteins.documents=200",
        "--gin.synthetic_tasks.proteins.sites=2",
        *layer_of("encoder"),
    ],
    "genes": [
        "--gin.synthetic_tasks.genes.documents=200",
        "--gin.synthetic_tasks.genes.sites=2",
        *layer_of("encoder"),
    ],
    "--run_dir=runs/new_genes": layer_of("decoder"),
    "--run_dir=runs/spans_and_ul2": ONE_LAYER,
    "--run_dir=runs/masks_and_causal": ONE_DECODER_LAYER,
    "--run_dir=runs/teacher": ONE_DECODER_LAYER,
    "--run_dir=runs/planted": ["--gin.corpora.planted_passages.passages=4", *layer_of("decoder")],
    "--run_dir=runs/lines": [
        "--gin.training.Run.initial_run=None",  # The stand-in has another size.
        *layer_of("encoder"),
        "--gin.labeled_evaluation.heldout_labels.examples=4",
    ],
}
# Arguments that keep other commands short.
MORE = {
    "show": [],
    "prepare": ["--gin.preprocessing.Preparation.executor=@executors.this_process"],
    "plan": [],
    "check": [],
    "predict": ["--max_new=4"],
    "teach": [],
    "evaluate": ["--examples=2"],
    "convert": [],
}
EVAL_METRICS = {
    "bits_per_byte": "--gin.bits_per_byte.tokens=200",
    "minimal_pairs": "--gin.minimal_pairs.pairs=2",
    "retrieve": "--gin.retrieve.candidates=4",
    "in_context": "--gin.in_context.examples=2",
    "finetune": "--gin.finetune.steps=2 --gin.finetune.peaks=[0.05]",
    "finetune_to_write": "--gin.finetune_to_write.steps=2 --gin.finetune_to_write.peaks=[0.05]",
}


# Extras that commands need.
NEEDED = {"my_grain": "grain", "my_equinox": "equinox", "runs/equinox": "equinox"}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: f"{COMMANDS[c]} {c[:40]}")
def test_documented_command_runs(folder, command, capsys):
    for part, package in NEEDED.items():
        if part in command:
            pytest.importorskip(package, reason=f"pip install {package}")
    capsys.readouterr()
    for word, *arguments in parts_of(command):
        TOOLS[word](arguments)
    output = capsys.readouterr().out.splitlines() if command in PRINTED else []
    output = iter([line[:RULE] if "──" in line else line.rstrip() for line in output])
    for line in PRINTED.get(command, []):
        assert line in output, line  # in order


def test_textbook_commands_show_their_output():
    assert len(PRINTED) == sum(block.language == "sh" for block in EXAMPLES) > 15


def parts_of(command: str) -> list[list[str]]:
    """Returns the words of each command of a line.

    >>> parts_of("cd a && ls 'b && c'")
    [['cd', 'a'], ['ls', 'b && c']]
    >>> parts_of("ls  # a comment")
    [['ls']]
    """
    parts: list[list[str]] = [[]]
    for word in shlex.split(command, comments=True):
        if word == "&&":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language == "python" and not b.file], ids=lambda b: b.place
)
def test_documented_python_block_runs(folder, block, monkeypatch):
    def two_steps(run):
        optimizer = Partial(
            optimizers.adamw, learning_rate=Partial(optimizers.warmup_constant, peak=0.1)
        )
        small = {
            "sequence_lengths": {"decoder": 64},
            "steps": 2,
            "batch_size": 8,
            "heldout_tokens": 400,
            "optimizer": optimizer,
        }
        return trainer.train(dataclasses.replace(run, **small))

    monkeypatch.setattr(pretrax, "train", two_steps)
    exec(compile(block.text, block.place, "exec"), {"__name__": "__main__"})


@pytest.mark.slow
def test_documented_objective_tasks_give_seqio_features(folder):
    import seqio

    importlib.import_module("my_objective_tasks")
    spans, masks = (seqio.get_mixture_or_task(name) for name in ("my_spans", "my_masks"))
    example = next(iter(spans.get_dataset({"inputs": 64, "targets": 32}, "train")))
    assert sorted(example) == ["inputs", "targets"]
    example = next(iter(masks.get_dataset({"inputs": 64}, "train")))
    assert {"inputs", "labels", "labels_slots", "labels_weights"} <= set(example)


@pytest.mark.slow
def test_documented_torch_batch_has_torch_shapes_and_types(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch", reason="pip install -e '.[parity]'")
    (block,) = (block for block in BLOCKS if block.file == "torch_batch.py")
    (tmp_path / block.file).write_text(block.text)
    monkeypatch.syspath_prepend(tmp_path)
    batch = importlib.import_module("torch_batch").torch_batch(np.full((4, 62), 5), seed=0)
    assert batch["inputs"].shape == (4, 64) and batch["inputs"].dtype == torch.int64
    assert (batch["labels"][batch["labels_weights"] == 1] == 5).all()


@pytest.mark.slow
def test_documented_transformers_trainer_takes_two_steps(folder):
    pytest.importorskip("accelerate", reason="pip install -e '.[parity]'")
    texts = ["import os, sys, and a </s>, an [X] and an <extra_id_0> that a text may hold"] * 16
    trainer = importlib.import_module("train_spans").train(texts, "t5-v1_1-base")
    assert trainer.state.global_step == 2


@pytest.mark.slow
def test_export_fills_blanks_in_transformers_like_the_run(folder):
    pytest.importorskip("torch", reason="pip install -e '.[parity]'")
    pytest.importorskip("transformers", reason="pip install -e '.[parity]'")
    text = "import <extra_id_0> as np"
    cli.run("convert", ["--from=runs/quickstart", "--to=hf:to_fill"])
    written = importlib.import_module("fill_with_transformers").fill("to_fill", text)
    (expected,) = answer(open_run("runs/quickstart"), "infill", [{"text": text}])
    answered = written.removeprefix("<pad>").partition("</s>")[0]
    assert fill_blanks(text, answered)[0] == expected["filled"] != text


@pytest.mark.slow
def test_documented_harness_task_is_scored(folder):
    pytest.importorskip("lm_eval", reason="pip install -e '.[lm-eval]'")
    datasets = importlib.import_module("datasets")
    lines = datasets.Dataset.from_list([{"text": "import os, sys"}, {"text": "def open("}])
    task = {
        "task": "lines",
        "test_split": "test",
        "custom_dataset": lambda **_: {"test": lines},
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    }
    found = importlib.import_module("with_harness").evaluate("runs/decoder", [task])
    assert found["lines"]["bits_per_byte,none"] > 0


def run_command(arguments):
    command, *rest = arguments
    if command == "train":
        start(rest)
    elif command == "compare":
        options, given = compare.parse(rest)
        if options.comparison.startswith("docs/"):
            assert options.report and (ROOT / options.comparison / results.COMPARISON).exists()
        else:
            comparison = read_comparison(options.comparison, given.bindings)
            assert runs_of_variants(comparison) or options.report
    elif command == "explore":
        options = explore.parse(rest)
        if not options.export:  # tests/explorer writes the pages, and opens them in a browser
            asked = {"objective": options.objective, "text": "to be or not to be"}
            shown = explore.explorer_of(options).site().calls["draw"](asked)
            assert "not" in shown.text
    elif "t5x:" in " ".join(rest):
        with pytest.raises(SystemExit):  # The checkpoint does not exist.
            cli.run(command, rest)
    else:
        asked = [EVAL_METRICS[name] for name in EVAL_METRICS if f"--eval_metric={name}" in rest]
        eval_metrics = " ".join(asked).split()
        own = ("--heldout", "--eval_metric", "--variants", "--regions")
        names_metric = any(word.startswith(own) for word in rest)
        cli.run(command, rest + (eval_metrics or ([] if names_metric else MORE[command])))


def start(arguments):
    parser = argparse.ArgumentParser()
    # tests/training/test_compile_check.py and test_profiling.py cover these arguments.
    parser.add_argument("--compile", type=read_topology)
    parser.add_argument("--profile", type=read_steps)
    add_run_arguments(parser)
    options, given, _ = parse_run(parser, arguments, required=True)
    run = run_in(given.reader())
    if "one_device" in run.run_dir:
        assert math.prod(run.mesh.settings.values()) == 1
    if named := next((one for one in arguments if one in TRAINED), None):
        cli.run("train", [*arguments, *SMALL, *TRAINED[named]])
    elif options.profile:
        check_steps(options.profile, 0, run.steps)
    elif options.compile:
        assert options.compile.chips == math.prod(run.mesh.settings.values())
    elif "tensorflow_datasets" not in str(arguments):  # C4 is not available.
        # Use a separate directory, since others have stand-ins, and one device, like a laptop.
        tiny.planned(
            dataclasses.replace(run, run_dir=tempfile.mkdtemp(dir="."), mesh=lambda: mesh_of(1))
        )


def run_script(arguments):
    script, *rest = arguments
    if Path(script).parent.name == "benchmarks":  # tests/test_benchmarks.py runs these.
        benchmark = importlib.import_module(f"benchmarks.{Path(script).stem}")
        read_options(rest, None, **benchmark.OPTIONS)
    elif Path(script).parent.name == "docs":  # tests/test_guide.py draws the pages.
        assert (ROOT / script).is_file()
    else:
        runpy.run_path(script, run_name="__main__")


def cache_tasks(arguments):
    """Caches tasks as `seqio_cache_tasks` does, but without Beam."""
    import seqio

    options = dict(argument.removeprefix("--").split("=") for argument in arguments)
    importlib.import_module(options["module_import"])
    write_cache(seqio.TaskRegistry.get(options["tasks"]), options["output_cache_dir"])


def check_extras(arguments):
    """Checks that the installed extras of this project are in setup.py."""
    setup = (ROOT / "setup.py").read_text()
    for extras in re.findall(r"\.\[([\w,-]+)\]", " ".join(arguments)):
        assert all(f'"{extra}":' in setup for extra in extras.split(","))


def check_paths(arguments):
    assert all((ROOT / path).exists() for path in arguments)


def on_other_machines(arguments):
    """Parses what a command runs on other machines."""
    for argument in arguments:
        for word, *rest in parts_of(argument.removeprefix("--command=")):
            if word == "pretrax":
                run_command(rest)


def upload(arguments):
    """Checks an upload as `hf upload REPOSITORY DIRECTORY` does, without the hub."""
    command, repository, directory = arguments
    assert command == "upload" and "/" in repository
    assert {"README.md", "config.json", "tokenizer.json"} <= set(os.listdir(directory))


def run_after_setting(arguments):
    TOOLS[arguments[0]](arguments[1:])


def check_clone(arguments: list[str]) -> None:
    """Checks the command that clones the repository, which only a network could run."""
    command, address = arguments
    assert command == "clone" and address.endswith("/pretrax")


def check_folder_of_clone(arguments: list[str]) -> None:
    assert arguments == ["pretrax"]


TOOLS = {
    "git": check_clone,
    "cd": check_folder_of_clone,
    "pretrax": run_command,
    "python": run_script,
    "pip": check_extras,
    "hf": upload,
    "pytest": check_paths,
    "PYTHONPATH=.": run_after_setting,
    "JAX_PLATFORMS=cpu": run_after_setting,
    "seqio_cache_tasks": cache_tasks,
    "gcloud": on_other_machines,
    "srun": lambda arguments: run_command(arguments[arguments.index("pretrax") + 1 :]),
}
