"""Converts models: from Hugging Face or T5X to a run directory, and from a run to Hugging Face.

    pretrax convert --from=hf:t5-v1_1-small --to=runs/t5            a directory of transformers
    pretrax convert --from=runs/quickstart --to=hf:exported         and back
    pretrax convert --from=t5x:checkpoint_1000000 --to=runs/t5 --model=models/t5_1_1_base.gin

A run directory that this makes is what a run leaves: its config.gin names the model, its vocabulary
and its checkpoint lie beside it. The last lines it prints are commands: one that trains the model on
with text of yours, one that asks it. Tokens that an objective needs and the tokenizer lacks are added
by --sentinels and --specials; a model that comes without a tokenizer gets one by --tokenizer:

    pretrax convert --from=hf:t5-v1_1-small --to=runs/t5 --sentinels=128 --specials=R,S,X
    pretrax convert --from=t5x:checkpoint_1000000 --to=runs/t5 --tokenizer=spiece.model \\
        --model=models/t5_1_1_base.gin
"""

import argparse
import dataclasses
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import Progress

from pretrax import models, objectives, verbs
from pretrax.models import Model, hugging_face, t5x
from pretrax.models.trees import nested
from pretrax.objectives import TokenIds, plan
from pretrax.objectives.layouts import LAYOUTS
from pretrax.tasks import vocabularies
from pretrax.tasks.tokenizer_json import write_tokenizer
from pretrax.tasks.vocabularies import Vocabulary
from pretrax.training import run_directory
from pretrax.training.bound import Bound
from pretrax.training.checkpoints import Checkpoints
from pretrax.training.command_line import mistakes_in_words
from pretrax.training.config_file import gin_text
from pretrax.training.configuration import read_fields
from pretrax.training.planning import padded_vocabulary
from pretrax.training.runs import SavedModel, open_run
from pretrax.training.state import State
from pretrax.verbs import as_typed

HF, T5X = "hf:", "t5x:"
KEPT = "hugging_face"  # a run's folder for what came with an imported model beside its weights
WEIGHTS = (".safetensors", ".bin", ".index.json", ".msgpack", ".h5", ".onnx", ".pt", ".gguf")
CORPORA = ("text_files", "python_library")  # those that an import's vocabulary is bound to
TOKENIZERS = ("tokenizer.json", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model")

# For each layout, what may train it on: gin files, their objective, lengths. The first that suits.
STARTS = {
    "decoder": [(["runs/decoder.gin"], objectives.causal_lm, [{"decoder": 256}])],
    "encoder": [(["runs/encoder.gin"], objectives.masked_lm, [{"encoder": 128}])],
    "encoder_decoder": [
        (
            ["runs/quickstart.gin"],
            objectives.ul2,
            [{"encoder": 128, "decoder": 64}, {"encoder": 128, "decoder": 128}],
        ),
        (
            ["runs/quickstart.gin", "objectives/span_corruption.gin"],
            objectives.span_corruption,
            [{"encoder": 128, "decoder": 64}],
        ),
    ],
}


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
        prog=as_typed("pretrax convert"),
        description=as_typed(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
        "--tokenizer",
        metavar="FILE",
        help="an import's, where none came with it: a SentencePiece .model or a tokenizer.json",
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
    imports = dict.fromkeys(("tokenizer", "sentinels", "specials"), (HF, T5X))
    for name, of in (imports | dict.fromkeys(("model", "unscaled"), (T5X,))).items():
        if getattr(options, name) not in (None, "") and kind not in of:
            parser.error(
                f"got --{name} with --from={options.source}, expected it with "
                f"{' or '.join(f'--from={k}DIR' for k in of)} alone: leave it out"
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
    settings = found.settings | dtype_setting(options)
    layout, classes = found.model.layout, hugging_face.class_names(source.config)
    classes = classes if "classes" in found.heads else []
    write_run(
        console, options, layout, settings, rows, arrays, vocabulary, source.path, classes=classes
    )
    say_what_was_imported(console, options, found.family.model_type, found.model, vocabulary, rows)


def import_t5x(console: Console, options) -> None:
    if options.model is None:
        raise ValueError(
            "A T5X checkpoint does not say which model it is: give --model, such as "
            "--model=models/t5_1_1_base.gin."
        )
    source = t5x.open_t5x(options.source.removeprefix(T5X))
    check_new(options.to)
    vocabulary = imported_vocabulary(source.path, {}, options)
    model = preset(options.model)(t5x.vocabulary_rows(source))
    rows = sized(model, vocabulary)
    settings = model_settings(model) | dtype_setting(options)
    unscaled = [name for name in options.unscaled.split(",") if name]
    arrays = t5x.read_params(source, model, unscaled=unscaled)
    write_run(console, options, model.layout, settings, rows, arrays, vocabulary)
    say_what_was_imported(console, options, "a model of T5X", model, vocabulary, rows)


def preset(file: str) -> Callable[..., Model]:
    """The encoder-decoder that a gin file binds: vocabulary rows -> model."""
    build = read_fields([file]).get("model")
    if build is None or build(128).layout != "encoder_decoder":
        raise ValueError(
            f"{file} binds no encoder-decoder to training.Run.model, expected the gin file of one, "
            "such as models/t5_1_1_base.gin: T5X checkpoints of another kind are not read."
        )
    return build


def check_new(run_dir: str) -> None:
    if run_directory.is_run(run_dir):
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
        file = path / "vocabulary.json"
    else:
        file = next((path / name for name in TOKENIZERS if (path / name).exists()), None)
    if options.tokenizer is not None and file is not None:
        raise ValueError(
            f"Got --tokenizer={options.tokenizer} with {path}, which holds {file.name}: leave it out, "
            "for another tokenizer's ids are not those that the model learned."
        )
    if file is not None and file.name == "vocabulary.json":
        return vocabularies.load_vocabulary(str(path))
    if options.tokenizer is not None:
        file = Path(options.tokenizer)
    if file is None:
        if wanted:
            raise ValueError(
                f"Got --sentinels or --specials with {path}, which holds no tokenizer (one of "
                f"{', '.join(TOKENIZERS)}): give one with --tokenizer=FILE, or leave them out."
            )
        return None
    tokenizer = vocabularies.open_tokenizer(str(file))
    specials = [name for name in options.specials.split(",") if name]
    ids = vocabularies.published_ids(tokenizer, file.parent, config, options.sentinels, specials)
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
    kept_from: Path | None = None,
    classes: Sequence[str] = (),
) -> None:
    """A run directory of step 0: parameters, vocabulary, and the config that makes the model.

    `kept_from`: the directory whose other files are kept too. Nothing is written before all that
    is read was read.
    """
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
    if kept_from is not None:
        keep_files(kept_from, options.to)
    if vocabulary is not None:
        vocabularies.save_vocabulary(options.to, *vocabulary)
    if classes:
        vocabularies.save_classes(options.to, classes)
    # Last: a directory with a config is a whole one.
    config = config_text(options, layout, settings, rows)
    run_directory.write_text(os.path.join(options.to, run_directory.CONFIG), config)
    count = sum(x.size for x in jax.tree.leaves(params))
    console.print(f"{count:,} parameters.")


def grown(path: str, array: np.ndarray, rows: int) -> np.ndarray:
    """With the mean of its rows for each id that the vocabulary got in addition."""
    of_vocabulary = ("token_embedding", "vocabulary/embedding", "vocabulary/bias")
    if path not in of_vocabulary or len(array) == rows:
        return array
    mean = array.mean(0, keepdims=True)
    return np.concatenate([array, np.repeat(mean, rows - len(array), 0)])


def config_text(options, layout: str, settings: dict, rows: int) -> str:
    run_dir = options.to
    model = Bound(getattr(models, layout), **settings)
    fields = {"model": model, "initial_run": run_dir, "vocabulary_rows": rows}
    lines = [
        f"# What `pretrax convert --from={options.source} --to={run_dir}` made: a model to go on from.",
        "",
        gin_text(fields).text,
        "from pretrax.tasks import corpora",
        "",
        # Without one there too: to learn another vocabulary would make the embeddings nonsense.
        *(f"corpora.{name}.vocabulary = {run_dir!r}" for name in CORPORA),
    ]
    return "\n".join(lines) + "\n"


def keep_files(path: Path, run_dir: str) -> None:
    """What lies beside the weights, for an export to carry on: config, tokenizer, licence."""
    folder = Path(run_dir) / KEPT
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(path.iterdir()):
        if file.is_file() and not file.name.endswith(WEIGHTS):
            shutil.copyfile(file, folder / file.name)


def say_what_was_imported(
    console: Console, options, kind: str, model: Model, vocabulary: Vocabulary | None, rows: int
) -> None:
    """The closing lines: what the run directory holds, and commands that go on from it."""
    run_dir = options.to
    holds = "config.gin, checkpoints/" + (", vocabulary.json" if vocabulary else "")
    lines = [f"{run_dir} holds {kind}: {holds}."]
    if vocabulary is None:
        again = f"--from={options.source} --to={run_dir}"
        again += f" --model={options.model}" if options.model else ""
        lines += [
            "No tokenizer came with it, so it reads no text, and no corpus of text trains it. Delete "
            f"{run_dir} and give its own tokenizer, a SentencePiece .model or a tokenizer.json:",
            f"  pretrax convert {again} --tokenizer=FILE",
        ]
    else:
        if rows > model.vocab_size:
            lines.append(
                f"The tokenizer has {vocabulary.ids.size} ids, the model's table {model.vocab_size} "
                f"rows: grown by {rows - model.vocab_size} with the mean embedding."
            )
        train = train_command(run_dir, model, vocabulary.ids)
        if train is None:
            lines.append(
                "The tokenizer has not the special tokens that a plain command to train it would "
                "need: import it with --specials=mask (an encoder) or --sentinels=128 "
                "--specials=R,S,X (an encoder-decoder)."
            )
        else:
            lines.append(f"Next: {train}")
        lines.append(f"{'Or' if train else 'Next'}: {predict_command(run_dir, model, vocabulary)}")
    for line in lines:
        console.print(as_typed(line), markup=False, soft_wrap=True)


def train_command(run_dir: str, model: Model, ids: TokenIds) -> str | None:
    """A command that trains the model on with text of one's own; None where `ids` suffice for none."""
    longest = model.config.max_positions or 256
    for files, objective, lengths in STARTS[model.layout]:
        shapes = [{k: min(n, longest) for k, n in shape.items()} for shape in lengths]
        try:
            plan(objective(ids), LAYOUTS[model.layout], ids, shapes)
        except ValueError:  # it lacks special tokens
            continue
        files = " ".join(f"--gin_file={file}" for file in files)
        value = shapes[0] if len(shapes) == 1 else shapes
        return (
            f"pretrax train {files} --gin_file=corpora/text_files.gin "
            f"--gin_file={run_dir}/config.gin --gin.FILES=\"'data/*.txt'\" "
            f'--gin.RUN_DIR="\'{run_dir}_2\'" --gin.training.Run.sequence_lengths="{value}"'
        )
    return None


def predict_command(run_dir: str, model: Model, vocabulary: Vocabulary) -> str:
    names = vocabularies.special_names(vocabulary.tokenizer, vocabulary.ids)
    text, mode = "The capital of France is", ""
    if model.layout == "encoder":
        if "vocabulary" in model.config.heads and vocabulary.ids.mask is not None:
            text += f" {names[vocabulary.ids.mask]}."
        else:
            mode = " --mode=embed"
    return f'pretrax predict --run={run_dir}{mode} "{text}"'


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
    run: SavedModel = open_run(options.source)
    target, dtype = options.to.removeprefix(HF), options.dtype or "float32"
    kept = Path(options.source) / KEPT
    extra = special_ids(options.source)
    if (kept / "config.json").exists():
        extra |= hugging_face.read_json(kept / "config.json")
    names = vocabularies.load_classes(options.source)
    if names and "classes" in run.model.heads:
        extra["id2label"] = {str(number): name for number, name in enumerate(names)}
        extra["label2id"] = {name: number for number, name in enumerate(names)}
    if run.model.config is None:
        raise ValueError(
            f"The model of {options.source} is no single Transformer: Hugging Face has no word for it."
        )
    family = None
    if "model_type" in extra:
        family = hugging_face.FAMILIES[extra["model_type"]]
    # First, for it may refuse the model.
    family = hugging_face.write_model(
        target, run.model.config, run.params, family=family, dtype=dtype, extra=extra
    )
    if kept.exists():
        for file in sorted(kept.iterdir()):
            if file.name != "config.json":
                shutil.copyfile(file, Path(target) / file.name)
    with_tokenizer = any((kept / name).exists() for name in (*TOKENIZERS, "vocabulary.json"))
    lacking = export_vocabulary(options.source, target, with_tokenizer)
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
        what = "The ids that were added are in no" if imported else "It holds no"
        said = f"\n{what} tokenizer.json: {error}."
        model = Path(target) / "vocabulary.model"
        if model.exists():  # under the name that transformers looks for
            shutil.copyfile(model, model.with_name("spiece.model"))
            added = vocabulary.ids.size - vocabulary.tokenizer.size
            said += f" It reads spiece.model, without {added} ids that were added to it."
        return said
    return ""


if __name__ == "__main__":
    verbs.run("convert")
