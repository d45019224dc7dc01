"""Converts models: from Hugging Face or T5X to a run directory, and from a run to Hugging Face.

    pretrax convert --from=hf:t5-v1_1-small --to=runs/t5            import from transformers
    pretrax convert --from=runs/quickstart --to=hf:exported         export to transformers

    pretrax convert --from=runs/quickstart --to=hf:exported --push=me/quickstart    and to the hub

    pretrax convert --from=t5x:checkpoint_1000000 --to=runs/t5 --model=models/t5_1_1_base.gin

An export of a run has the settings of `generate` and a model card, README.md, with its figures.

An import is a run directory with a config.gin, the vocabulary and a checkpoint. The command prints
how to train the model on your own text and how to apply it. --sentinels and --specials add tokens
that an objective needs, and --tokenizer adds a tokenizer to a model without one:

    pretrax convert --from=hf:t5-v1_1-small --to=runs/t5 --sentinels=128 --specials=R,S,X
    pretrax convert --from=t5x:checkpoint_1000000 --to=runs/t5 --tokenizer=spiece.model \\
        --model=models/t5_1_1_base.gin
"""

import argparse
import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.progress import Progress

from ..corpora import vocabularies
from ..corpora.vocabularies.factories import Vocabulary
from ..inference import Decoding
from ..models import hugging_face
from ..models.builders import single_transformer
from ..models.hugging_face import hub, sentences
from ..models.hugging_face.kept import keep_files, kept_config, put_back
from ..objectives import PromptForm
from ..settings import atomic_writes, run_directory
from ..settings.command_line import (
    add_trust_argument,
    at_least,
    offer_completions,
    parse_options,
)
from ..settings.printable import PrintableConsole, print_note
from ..settings.user_errors import report_user_errors
from ..training.buckets import is_bucket, local_copy
from ..training.conversion.converted_vocabularies import (
    config_ids,
    export_vocabulary,
    saved_vocabulary,
    without_params,
)
from ..training.conversion.generation_files import search_options, writes_text
from ..training.conversion.imported_models import (
    Imported,
    from_hugging_face,
    from_t5x,
    model_of_export,
    t5x_preset,
)
from ..training.reporting.next_commands import next_lines, predict_command, tokenizer_lines
from ..training.run_configuration import read_directory
from ..training.saved.imported_runs import check_new, config_text, embedding_rows, write_parameters
from ..training.saved.kept_prompt_forms import prompt_forms, save_prompt_forms, write_prompt_record
from ..training.saved.model_card import model_card
from ..training.saved.runs import SavedModel, open_saved_model
from . import make_parser

HF = "hf:"
T5X = "t5x:"
UNTIED = (
    "transformers 5 warns about `tie_word_embeddings` when it loads this model, as it does for "
    "every T5 1.1 and mT5. It loads all weights as they are. Do not set tie_word_embeddings=False, "
    "as the warning proposes: the embeddings of the encoder and the decoder would be random."
)
CARD = "README.md"  # the model card, which the Hugging Face hub shows
# Option -> the sources for which it has a meaning.
USED_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("tokenizer", "sentinels", "specials"), (HF, T5X)),
    **dict.fromkeys(("model", "unscaled"), (T5X,)),
}


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    jax.config.update("jax_platforms", "cpu")  # an accelerator's memory may not hold a whole model
    console = PrintableConsole()
    with report_user_errors(options.traceback):
        if options.source.startswith((HF, T5X)):
            check_new(options.to)
            write_run(console, options, read(options))
        else:
            options.source = local_copy(options.source)
            repository = None
            if options.push:
                hub.check_empty(options.to.removeprefix(HF))
                repository = hub.open_repository(options.push)
            export(console, options)
            if repository:
                address = hub.push(options.to.removeprefix(HF), repository)
                print_note(console, f"Pushed to {address}")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(
        "convert", __doc__, usage="%(prog)s --from=hf:DIR|t5x:DIR|RUN --to=RUN|hf:DIR [options]"
    )
    add = parser.add_argument
    source = "a directory of transformers, a checkpoint of T5X, or a run to export"
    add("--from", dest="source", required=True, metavar="hf:DIR|t5x:DIR|RUN", help=source)
    to = "a new run directory for an import, a directory of transformers for an export"
    add("--to", required=True, metavar="RUN|hf:DIR", help=to)
    push = "upload the export to this repository of the hub; a new repository is private"
    add("--push", metavar="OWNER/NAME", help=push)
    dtype = (
        "dtype of an export's tensors (default: float32), or of an import's activations (default: "
        "--model's dtype, or float32); parameters are float32"
    )
    add("--dtype", choices=("float32", "bfloat16"), help=dtype)
    add("--model", metavar="GIN", help="for t5x: a gin file that binds the model")
    unscaled = "for t5x: names of norms that have no scale parameter, separated by commas"
    add("--unscaled", default="", help=unscaled)
    tokenizer = "tokenizer for an import that has none: a SentencePiece .model or a tokenizer.json"
    add("--tokenizer", metavar="FILE", help=tokenizer)
    sentinels = "number of sentinels in the imported vocabulary; missing ones are added"
    add("--sentinels", type=at_least(0), metavar="N", help=sentinels)
    specials = "special tokens to add to the imported vocabulary, such as R,S,X,mask"
    add("--specials", default="", help=specials)
    add_trust_argument(parser)
    offer_completions(parser)
    options = parse_options(parser, argv)
    into_run = options.source.startswith((HF, T5X))
    if into_run == options.to.startswith(HF) or options.to.startswith(T5X):
        parser.error(
            f"cannot convert from {options.source!r} to {options.to!r}: one of the two is a run "
            "directory, the other hf:DIR (or, to convert from, t5x:DIR)"
        )
    if is_bucket(options.to):
        parser.error(
            f"got --to={options.to}, expected a directory on this disk, which can be copied to a "
            "bucket afterwards"
        )
    if into_run and options.push:
        parser.error(f"got --push with --from={options.source}: only an export can be pushed")
    for name, of in USED_BY.items():
        if getattr(options, name) not in (None, "") and not options.source.startswith(of):
            parser.error(
                f"got --{name} with --from={options.source}, expected it with "
                f"{' or '.join(f'--from={kind}DIR' for kind in of)} alone: leave it out"
            )
    return options


# --- into a run ---------------------------------------------------------------------------------


def read(options: argparse.Namespace) -> Imported:
    kind, directory = options.source.split(":", 1)
    specials = [name for name in options.specials.split(",") if name]
    vocabulary = dict(tokenizer=options.tokenizer, sentinels=options.sentinels, specials=specials)
    if kind == "hf":
        return from_hugging_face(directory, **vocabulary)
    if options.model is None:
        raise ValueError(
            "A T5X checkpoint does not say which model it is: give --model, such as "
            "--model=models/t5_1_1_base.gin."
        )
    unscaled = [name for name in options.unscaled.split(",") if name]
    return from_t5x(directory, t5x_preset(options.model), unscaled, **vocabulary)


def write_run(console: Console, options: argparse.Namespace, imported: Imported) -> None:
    """Writes the run directory and prints its contents and next commands."""
    run_dir = options.to
    vocabulary = imported.vocabulary
    rows = embedding_rows(imported.model, vocabulary and vocabulary.ids)
    settings = {**imported.settings, **({"dtype": options.dtype} if options.dtype else {})}
    config = config_text(run_dir, options.source, imported.model.layout, settings, rows)
    with atomic_writes.whole_folder(run_dir) as folder:
        check_new(run_dir)  # again, since another process may have written it since
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            count = write_parameters(folder, reported(progress, imported.arrays), rows)
        if imported.files:
            keep_files(imported.files, Path(folder) / run_directory.IMPORTED)
        if vocabulary is not None:
            vocabularies.save_vocabulary(folder, vocabulary)
        if imported.classes:
            run_directory.save_classes(folder, imported.classes)
        if imported.prompt_forms:
            save_prompt_forms(folder, imported.prompt_forms)
        atomic_writes.write_text(
            Path(folder) / run_directory.CONFIG, atomic_writes.sealed_text(config)
        )

    holds = "config.gin, checkpoints/" + (", vocabulary.json" if vocabulary else "")
    lines = [f"{run_dir} has {imported.kind}, {count:,} parameters: {holds}."]
    if vocabulary is None:
        words = [f"--from={options.source}", f"--to={run_dir}"]
        words += [f"--model={options.model}"] if options.model else []
        lines += tokenizer_lines(shlex.join(words), run_dir)
    else:
        trained = without_params(imported.model, vocabulary, imported.prompt_forms)
        lines += next_lines(run_dir, trained, rows, imported.shown_mode)
    kept = Path(run_dir) / run_directory.IMPORTED
    if writes_text(imported.model) and (chosen := search_options(kept, imported.model.layout)):
        lines.append(
            "To generate like transformers with this model's files, give `pretrax predict` the "
            f"options {' '.join(chosen)}."
        )
    for line in lines:
        print_note(console, line)


def reported(progress: Progress, arrays: Iterable) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the arrays and shows progress for each. The last step is saving them."""
    task = progress.add_task("Reading", total=None)
    for path, array in arrays:
        progress.update(task, advance=1, description=f"Reading {path}")
        yield path, array
    progress.update(task, description="Saving")


# --- out of a run -------------------------------------------------------------------------------


class SourceRun(NamedTuple):
    """A run to export."""

    saved: SavedModel
    vocabulary: Vocabulary | None
    forms: tuple[PromptForm, ...]


class Exported(NamedTuple):
    """An export to `transformers`."""

    architecture: str  # class of `transformers`, such as "LlamaForCausalLM"
    lacking: list[str]  # sentences about the parts of the run that it lacks
    loading: list[str]  # sentences about loading it, as in its model card


def export(console: Console, options: argparse.Namespace) -> None:
    target = options.to.removeprefix(HF)
    dtype = options.dtype or "float32"
    hugging_face.check_holds_no_model(target)
    source = open_source(options)
    check_direction(source.saved.model.layout, source.forms)
    writing = atomic_writes.naming(target), atomic_writes.whole_folder(target)
    with console.status(f"Writing {target}"), writing[0], writing[1] as folder:
        hugging_face.check_holds_no_model(target)  # again: another process may have written it
        exported = write_export(folder, source, dtype, options.push or Path(target).name)
        atomic_writes.write_checksums(folder)

    name = exported.architecture
    lines = [f"{target} has step {source.saved.step} of {options.source} as {name}, {dtype}."]
    lines += [*exported.lacking, *exported.loading]
    if source.vocabulary:
        trained = without_params(source.saved.model, source.vocabulary, source.forms)
        command = predict_command(options.source, trained, trusted=options.trust)
        lines.append(f"To apply the run to a text: {command}")
    lines.append(f"Next, in Python: transformers.{name}.from_pretrained({target!r})")
    print_note(console, "\n".join(lines))


def open_source(options: argparse.Namespace) -> SourceRun:
    directory = options.source
    fields = read_directory(directory, options.trust)
    saved = open_saved_model(directory, fields=fields)
    vocabulary = saved_vocabulary(directory)
    forms = prompt_forms(directory, fields, vocabulary.ids) if vocabulary else ()
    return SourceRun(saved, vocabulary, forms)


def write_export(folder: str, source: SourceRun, dtype: str, title: str) -> Exported:
    """Writes the files of an export. `title` is the title of its model card."""
    directory = source.saved.directory
    model = source.saved.model
    config, params, others = single_transformer(model, source.saved.params)
    kept = Path(directory) / run_directory.IMPORTED
    ids = config_ids(directory, model.layout)
    extra = ids | kept_config(kept)
    if config.num_classes:
        extra |= hugging_face.class_labels(run_directory.load_classes(directory))
    family = hugging_face.FAMILIES[extra["model_type"]] if "model_type" in extra else None
    family = hugging_face.write_model(
        folder, config, params, family=family, dtype=dtype, extra=extra
    )
    put_back(kept, folder)
    architecture = family.architecture_of(config)
    loading = [UNTIED] if hugging_face.has_untied_warning(family, config) else []
    if "corpus" in source.saved.fields:  # the run was trained, not only imported
        parameters = sum(map(math.prod, hugging_face.open_source(folder).shapes.values()))
        card = model_card(title, source.saved, architecture, parameters, loading)
        atomic_writes.write_text(Path(folder) / CARD, card)
        if architecture.endswith(hugging_face.WRITING):
            starts = {"decoder_start_token_id": None} if model.layout == "decoder" else {}
            hugging_face.write_generation_config(folder, ids | starts, Decoding().max_new)
    about_vocabulary = export_vocabulary(directory, folder, model, source.forms)
    left_out = {*others, *hugging_face.left_out(family, config, params)}
    form = next((form for form in source.forms if form.mode == "embed"), None)
    if form is not None and form.pooling:
        head = params["projections_embedding"]["layer"] if form.head else None
        sentences.write_modules(folder, config.emb_dim, form.pooling, head)
        left_out -= {"projections_embedding"} if form.head else set()
    lacking = []
    if left_out:
        parts = ", ".join(sorted(left_out))
        lacking.append(f"Left out, since transformers does not support it: {parts}.")
    if source.vocabulary:
        again = model_of_export(folder)
        if lost := write_prompt_record(folder, source.forms, source.vocabulary.ids, again):
            lacking.append(f"Modes that an import of it lacks: {', '.join(lost)}.")
    if about_vocabulary:
        lacking.append(about_vocabulary)
    return Exported(architecture, lacking, loading)


def check_direction(layout: str, forms: Sequence[PromptForm]) -> None:
    """Raises ValueError for a decoder that classifies text with bidirectional attention."""
    for form in forms:
        if layout == "decoder" and form.mode in ("classify", "tag") and not form.causal:
            raise ValueError(
                "Got a decoder that was trained to classify text with bidirectional attention. "
                "Decoders in transformers read from left to right and would predict other "
                "classes. Train an encoder on these classes "
                "(`pretrax train finetune_classification`) and convert the encoder."
            )
