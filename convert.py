"""Converts models: from Hugging Face or T5X to a run directory, and from a run to Hugging Face.

    python convert.py --from=hf:t5-v1_1-small --to=runs/t5            a directory of transformers
    python convert.py --from=runs/quickstart --to=hf:exported         and back
    python convert.py --from=t5x:checkpoint_1000000 --to=runs/t5 --model=gin_configs/models/t5_1_1_base.gin

A run directory that this makes is what a run leaves: its config.gin names the model, its vocabulary
and its checkpoint lie beside it. Go on from it with any objective:

    python train.py --gin_file=gin_configs/runs/own_text.gin --gin_file=runs/t5/config.gin \\
        --gin.RUN_DIR="'runs/t5_on_my_text'" --gin.FILES="'data/*.txt'"
"""

import argparse
import dataclasses
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import gin
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import Progress

from models import Model, hugging_face, t5x
from models.trees import nested
from tasks import vocabularies
from tasks.tokenizer_json import write_tokenizer
from tasks.vocabularies import Vocabulary
from training.checkpoints import Checkpoints
from training.configuration import configure, mistakes_in_words, save_config
from training.runs import Run, open_run
from training.setup import padded_vocabulary
from training.state import State

HF, T5X = "hf:", "t5x:"
KEPT = "hugging_face"  # a run's folder for what came with an imported model beside its weights
WEIGHTS = (".safetensors", ".bin", ".index.json", ".msgpack", ".h5", ".onnx", ".pt", ".gguf")
TOKENIZERS = ("tokenizer.json", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model")


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    jax.config.update("jax_platforms", "cpu")  # an accelerator's memory may not hold a whole model
    console = Console(highlight=False)
    with mistakes_in_words(options.traceback):
        if options.source.startswith(HF):
            import_hugging_face(console, options)
        elif options.source.startswith(T5X):
            import_t5x(console, options)
        else:
            export(console, options)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="source", required=True, metavar="hf:DIR|t5x:DIR|RUN")
    parser.add_argument("--to", required=True, metavar="RUN|hf:DIR")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="of an export's tensors, by default float32; of an import's activations, by default "
        "what --model says, or float32 (its parameters are float32)",
    )
    parser.add_argument("--model", metavar="GIN", help="for t5x: a gin file that binds the model")
    parser.add_argument(
        "--unscaled",
        default="",
        help="for t5x: scales of norms that are not there, for they have none; separated by commas",
    )
    parser.add_argument(
        "--sentinels",
        type=int,
        help="an import's vocabulary gets so many, those it names among them",
    )
    parser.add_argument(
        "--specials",
        default="",
        help="special tokens that an import's vocabulary gets beside its own, such as R,S,X,mask",
    )
    parser.add_argument("--traceback", action="store_true", help="show where an error came up")
    options = parser.parse_args(argv)
    into_run = options.source.startswith((HF, T5X))
    if into_run == options.to.startswith(HF) or options.to.startswith(T5X):
        parser.error(
            f"cannot convert from {options.source!r} to {options.to!r}: one of the two is a run "
            "directory, the other hf:DIR (or, to convert from, t5x:DIR)"
        )
    kind = next((k for k in (HF, T5X) if options.source.startswith(k)), "")
    for name, of in (("sentinels", HF), ("specials", HF), ("model", T5X), ("unscaled", T5X)):
        if getattr(options, name) not in (None, "") and kind != of:
            parser.error(
                f"got --{name} with --from={options.source}, expected it with --from={of}DIR alone: "
                "leave it out"
            )
    return options


# --- into a run ----------------------------------------------------------------------------------


def import_hugging_face(console: Console, options) -> None:
    source = hugging_face.open_source(options.source.removeprefix(HF))
    found = hugging_face.recognise(source)
    check_new(options.to)
    vocabulary = imported_vocabulary(source.path, source.config, options)
    rows = sized(found.model, vocabulary)
    arrays = hugging_face.read_params(source, found)
    keep_files(source.path, options.to)
    settings = found.settings | dtype_setting(options)
    write_run(console, options, found.family.layout, settings, rows, arrays, vocabulary)
    console.print(
        f"{options.to} holds {found.family.model_type}: config.gin, checkpoints/"
        + (", vocabulary.json" if vocabulary else "; no tokenizer came with it")
        + ".",
        markup=False,
        soft_wrap=True,
    )
    console.print(next_command(options.to), markup=False, soft_wrap=True)


def import_t5x(console: Console, options) -> None:
    if options.model is None:
        raise ValueError(
            "A T5X checkpoint does not say which model it is: give --model, such as "
            "--model=gin_configs/models/t5_1_1_base.gin."
        )
    source = t5x.open_t5x(options.source.removeprefix(T5X))
    configure([options.model], [])
    check_new(options.to)
    rows = source.shapes["token_embedder.embedding"][0]
    model = gin.get_configurable("models.encoder_decoder")(rows)
    settings = model_settings(model) | dtype_setting(options)
    unscaled = [name for name in options.unscaled.split(",") if name]
    arrays = t5x.read_params(source, model, unscaled=unscaled)
    write_run(console, options, model.layout, settings, rows, arrays, None)
    console.print(f"{options.to} holds the model of {options.source}.", markup=False)
    console.print(next_command(options.to), markup=False, soft_wrap=True)


def check_new(run_dir: str) -> None:
    if os.path.exists(os.path.join(run_dir, "config.gin")):
        raise ValueError(
            f"{run_dir} holds a run already: convert to a new directory, or delete it."
        )


def imported_vocabulary(path: Path, config: dict, options) -> Vocabulary | None:
    """The tokenizer of a directory with its special ids, or None where there is no tokenizer."""
    wanted = options.sentinels is not None or options.specials
    if (path / "vocabulary.json").exists():  # a run of ours was exported there
        if wanted:
            raise ValueError(
                f"Got --sentinels or --specials with {path}, which a run was exported to: expected "
                "neither, for its vocabulary.json says which special ids there are."
            )
        return vocabularies.load_vocabulary(str(path))
    file = next((path / name for name in TOKENIZERS if (path / name).exists()), None)
    if file is None:
        if wanted:
            raise ValueError(
                f"Got --sentinels or --specials with {path}, which holds no tokenizer (one of "
                f"{', '.join(TOKENIZERS)}): put one there, or leave them out."
            )
        return None
    tokenizer = vocabularies.open_tokenizer(str(file))
    specials = [name for name in options.specials.split(",") if name]
    ids = vocabularies.published_ids(tokenizer, path, config, options.sentinels, specials)
    return Vocabulary(tokenizer, ids, {"vocabulary": str(file)})


def sized(model: Model, vocabulary: Vocabulary | None) -> int:
    """Rows of the embedding: those of the model, and more where ids were added to its vocabulary."""
    rows = model.vocab_size
    if vocabulary is None or vocabulary.ids.size <= rows:
        return rows
    return padded_vocabulary(vocabulary.ids)


def write_run(
    console: Console,
    options,
    layout: str,
    settings: dict,
    rows: int,
    arrays: Iterable[tuple[str, np.ndarray]],
    vocabulary: Vocabulary | None,
) -> None:
    """A run directory of step 0: parameters, vocabulary, and the config that makes the model."""
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("Reading", total=None)

        def counted() -> Iterator[tuple[str, jax.Array]]:
            for path, array in arrays:
                progress.update(task, advance=1, description=f"Reading {path}")
                yield path, jax.device_put(grown(path, array, rows), may_alias=True)

        params = nested(counted())
        progress.update(task, description="Saving")
        os.makedirs(options.to, exist_ok=True)
        checkpoints = Checkpoints(os.path.join(options.to, "checkpoints"))
        checkpoints.save(State(jnp.int32(0), params, {}), {}, one_by_one=True)
        checkpoints.close()
    if vocabulary is not None:
        vocabularies.save_vocabulary(options.to, *vocabulary)
    # Last: a directory with a config is a whole one.
    save_config(options.to, config_text(options, layout, settings, rows, vocabulary is not None))
    count = sum(x.size for x in jax.tree.leaves(params))
    console.print(f"{count:,} parameters.")


def grown(path: str, array: np.ndarray, rows: int) -> np.ndarray:
    """With the mean of its rows for each id that the vocabulary got in addition."""
    axis = {"token_embedding": 0, "vocabulary/kernel": 1, "vocabulary/bias": 0}.get(path)
    if axis is None or array.shape[axis] == rows:
        return array
    mean = array.mean(axis, keepdims=True)
    return np.concatenate([array, np.repeat(mean, rows - array.shape[axis], axis)], axis)


def config_text(options, layout: str, settings: dict, rows: int, has_vocabulary: bool) -> str:
    run_dir = options.to
    lines = [
        f"# What `python convert.py --from={options.source} --to={run_dir}` made: a model to go on from.",
        "",
        "from __gin__ import dynamic_registration",
        "",
        "import models",
        "import train",
        *(["from tasks import corpora"] if has_vocabulary else []),
        "",
        f"train.train.model = @models.{layout}",
        f"train.train.initial_run = {run_dir!r}",
        f"train.train.vocabulary_rows = {rows}",
        *([f"corpora.text_files.vocabulary = {run_dir!r}"] if has_vocabulary else []),
        *([f"corpora.python_library.vocabulary = {run_dir!r}"] if has_vocabulary else []),
        "",
        *(f"models.{layout}.{name} = {value!r}" for name, value in settings.items()),
    ]
    return "\n".join(lines) + "\n"


def keep_files(path: Path, run_dir: str) -> None:
    """What lies beside the weights, for an export to carry on: config, tokenizer, licence."""
    folder = Path(run_dir) / KEPT
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(path.iterdir()):
        if file.is_file() and not file.name.endswith(WEIGHTS):
            shutil.copyfile(file, folder / file.name)


def next_command(run_dir: str) -> str:
    return (
        f"Next: python train.py --gin_file=gin_configs/runs/own_text.gin "
        f"--gin_file={run_dir}/config.gin --gin.RUN_DIR=\"'{run_dir}_2'\" --gin.FILES=\"'data/*.txt'\""
    )


def dtype_setting(options) -> dict:
    return {} if options.dtype is None else {"dtype": options.dtype}


def model_settings(model: Model) -> dict:
    """The keywords that make this model, of those that say what it is."""
    values = dataclasses.asdict(model.config)
    for name in ("vocab_size", "heads", "num_ahead", "ahead"):
        del values[name]
    if model.layout != "encoder_decoder":
        values["num_layers"] = values.pop(f"num_{model.layout}_layers")
        values.pop("num_encoder_layers", None)
        values.pop("num_decoder_layers", None)
    return values


# --- out of a run --------------------------------------------------------------------------------


def export(console: Console, options) -> None:
    run: Run = open_run(options.source)
    target, dtype = options.to.removeprefix(HF), options.dtype or "float32"
    kept = Path(options.source) / KEPT
    extra = special_ids(options.source)
    if (kept / "config.json").exists():
        extra |= hugging_face.read_json(kept / "config.json")
    if run.model.config is None:
        raise ValueError(
            f"The model of {options.source} is no single Transformer: Hugging Face has no word for it."
        )
    family = None
    if "model_type" in extra:
        family = hugging_face.FAMILIES[extra["model_type"]]
    os.makedirs(target, exist_ok=True)
    if kept.exists():
        for file in sorted(kept.iterdir()):
            shutil.copyfile(file, Path(target) / file.name)
    lacking = export_vocabulary(options.source, target, kept.exists())
    family = hugging_face.write_model(
        target, run.model.config, run.params, family=family, dtype=dtype, extra=extra
    )
    architecture = family.architecture_of(run.model.config)
    said = f"{target} holds step {run.step} of {options.source} as {architecture}, {dtype}."
    if heads := hugging_face.left_out(family, run.model.config, run.params):
        said += f"\nLeft out, for transformers has no place for it: {', '.join(heads)}."
    said += lacking
    said += f"\nNext: transformers.{architecture}.from_pretrained({target!r})"
    console.print(said, markup=False, soft_wrap=True)


def special_ids(run_dir: str) -> dict:
    """The ids that config.json names, from the run's vocabulary."""
    try:
        ids = vocabularies.load_vocabulary(run_dir).ids
    except FileNotFoundError:
        return {}
    return {
        "pad_token_id": ids.pad,
        "eos_token_id": ids.eos,
        "bos_token_id": ids.bos,
        "decoder_start_token_id": ids.bos,
    }


def export_vocabulary(run_dir: str, target: str, imported: bool) -> str:
    """The run's vocabulary, also as a tokenizer of transformers; what is not in that, in words.

    Of one that was imported, whose files were copied, that is ids which it got in addition.
    """
    try:
        vocabulary = vocabularies.load_vocabulary(run_dir)
    except FileNotFoundError:
        return ""
    if imported and vocabulary.ids.size <= vocabulary.tokenizer.size:
        return ""
    if not imported:
        for name in ("vocabulary.json", "vocabulary.model", "tokenizer.json"):
            if (Path(run_dir) / name).exists():
                shutil.copyfile(Path(run_dir) / name, Path(target) / name)
    try:
        write_tokenizer(target, vocabulary)
    except ValueError as error:
        model = Path(target) / "vocabulary.model"
        if model.exists():  # under the name that transformers looks for
            shutil.copyfile(model, model.with_name("spiece.model"))
        what = "The ids that were added are in no" if imported else "It holds no"
        return f"\n{what} tokenizer.json: {error}."
    return ""


if __name__ == "__main__":
    main(sys.argv[1:])
