"""Modes that give vectors: an embedding of each text, or the hidden states of its tokens."""

import dataclasses
import os
import zipfile
from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console
from rich.text import Text

from ...objectives import PromptForm
from ...settings.printable import plain_table
from ...settings.progress_bar import progress_bar
from ..answering.answers import answer
from ..answering.embeddings import embed
from ..answering.masks import MASKED
from ..answering.options import Options
from ..answering.states import all_layers, states
from ..prompting.items import text_of_item
from ..reporting.printing import Request
from ..trained import Mode, Trained, cls_and_sep, register_mode

NEAREST = 3  # number of nearest tokens shown for each token
MAX_SIMILAR = 12  # maximum number of texts in a table of similarities


def _embed_form(trained: Trained, mode: str) -> PromptForm:
    for form in trained.prompt_forms:
        if form.mode in MASKED:
            return form._replace(mode=mode, head=None)
    for form in trained.prompt_forms:
        if form.mode == "classify":  # the states that the classification head reads
            return PromptForm(mode, form.before, form.after, pooling=form.pooling)
    return PromptForm(mode, *cls_and_sep(trained.ids))


def _embeddings(trained: Trained, texts: Sequence[str], options: Options) -> list[dict]:
    vectors = np.round(embed(trained, texts, options).astype(float), 7)
    return [{"embedding": vector} for vector in vectors.tolist()]


def _against_file(arguments) -> str | None:
    if arguments.against and arguments.file:
        return "--against does not apply to --file, whose embeddings are in --out"
    return None


def _show_embeddings(
    console: Console, trained: Trained, request: Request, records: list[dict]
) -> None:
    """Prints the cosines of items (rows) with the texts of --against, or with each other."""
    items = request.items
    options = request.options
    against: Sequence[dict] = [{"text": text} for text in options.mode_options["against"] or ()]
    # The second of two towers reads the texts of --against. A single encoder reads all texts.
    second = dataclasses.replace(options, second=True)
    against_records = answer(trained, "embed", against, second)
    size = len(records[0]["embedding"])
    console.print(f"{len(records)} embeddings of {size} numbers; --file and --out write them.")
    if not against:
        against = items
        against_records = records
        if len(items) == 1:
            return
    left = np.array([record["embedding"] for record in records])
    right = np.array([record["embedding"] for record in against_records])
    texts = [Text(item["text"][:16]) for item in against[:MAX_SIMILAR]]
    table = plain_table("", *texts, title="Cosines")
    for item, row in zip(items, (left @ right.T)[:, :MAX_SIMILAR]):
        table.add_row(Text(item["text"][:40]), *(f"{x:.3f}" for x in row))
    console.print(table)


def _no_records(trained: Trained, texts: Sequence[str], options: Options) -> list[dict]:
    raise ValueError(
        "Got mode 'states', which returns arrays: call inference.answering.states.states."
    )


def _not_npz(arguments) -> str | None:
    if arguments.mode == "states" and not (arguments.out or ".npz").endswith(".npz"):
        return "--out of --mode=states must end in .npz"
    return None


def _answer_states(console: Console, trained: Trained, request: Request) -> None:
    """Writes the hidden states of texts as arrays, or prints the nearest tokens of each token."""
    texts = [text_of_item(item) for item in request.items]
    out = request.arguments.out
    layers = _layers_named(trained, request.options.mode_options["layer"])
    if not out:
        return _print_states(console, trained, texts, layers)
    batch_size = request.options.decoding.batch_size
    with progress_bar("Reading", len(texts)) as advance:
        write_states(out, trained, texts, layers, batch_size, advance)
    console.print(f"{out} has the hidden states of {len(texts)} texts.", markup=False)


def _layers_named(trained: Trained, layer: str) -> list[int]:
    """Returns the layers for "3", "-1" or "all". `states` checks that they exist."""
    if layer == "all":
        return all_layers(trained)
    try:
        return [int(layer)]
    except ValueError:
        raise ValueError(f"Got --layer={layer}, expected a number or 'all'.") from None


def write_states(
    file: str,
    trained: Trained,
    texts: Sequence[str],
    layers: Sequence[int],
    batch_size: int,
    on_text: Callable[[int], None],
) -> None:
    """Writes the hidden states of texts as a NumPy .npz file, atomically.

        layers              i32[N], the numbers of the layers
        hidden_states_0     f32[N, T, E], the states of the first text; next is hidden_states_1
        input_ids_0         i32[T], the tokens of the first text, including special tokens

    `hidden_states_0[k]` equals `hidden_states[layers[k]][0]` of Hugging Face's
    output_hidden_states=True. One batch is in memory at a time, and `on_text` is called with 1
    after each text.
    """
    part = f"{file}.part"
    os.makedirs(os.path.dirname(file) or ".", exist_ok=True)

    def add(name: str, array: np.ndarray) -> None:
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)

    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
            add("layers", np.array(layers, np.int32))
            for i, text_states in states(trained, texts, layers=layers, batch_size=batch_size):
                add(f"hidden_states_{i}", text_states.layers)
                add(f"input_ids_{i}", np.array(text_states.tokens, np.int32))
                on_text(1)
        os.replace(part, file)
    finally:
        if os.path.exists(part):
            os.remove(part)


def _print_states(
    console: Console, trained: Trained, texts: Sequence[str], layers: Sequence[int]
) -> None:
    """Prints the norm of each token's state, and the nearest tokens of the text by cosine."""
    by_text = dict(states(trained, texts, layers=layers))
    for i in range(len(texts)):
        names = [repr(trained.decode([token])) for token in by_text[i].tokens]
        for layer, states_TxE in zip(layers, by_text[i].layers):
            title = f"Layer {layer}, of {states_TxE.shape[1]} numbers"
            columns = ("token", "norm", "nearest, by cosine")
            table = plain_table(*columns, text=(columns[0], columns[2]), title=title)
            for name, norm, near in zip(names, *_nearest(states_TxE)):
                nearest = ", ".join(f"{names[k]} {cosine:.2f}" for k, cosine in near)
                table.add_row(Text(name), f"{norm:.3g}", Text(nearest))
            console.print(table)
    console.print("--file and --out write the states.", soft_wrap=True)


def _nearest(states_TxE: np.ndarray) -> tuple[np.ndarray, list[list[tuple[int, float]]]]:
    """Returns each state's norm, and the indices and cosines of the nearest other states."""
    norms = np.linalg.norm(states_TxE, axis=-1)
    unit_TxE = states_TxE / np.maximum(norms, 1e-12)[:, None]
    cosines = unit_TxE @ unit_TxE.T
    order = np.argsort(-cosines, axis=-1, kind="stable")
    return norms, [
        [(int(k), float(cosines[i, k])) for k in row if k != i][:NEAREST]
        for i, row in enumerate(order)
    ]


register_mode(
    Mode(
        name="embed",
        about="computes an embedding of each text",
        layouts=("encoder",),
        form=_embed_form,
        answer=_embeddings,
        is_default=lambda model: model.layout == "encoder" and "vocabulary" not in model.heads,
        arguments={
            "pooling": {"help": "how to pool hidden states into an embedding: first, mean or last"},
            "against": {
                "nargs": "+",
                "action": "extend",
                "metavar": "TEXT",
                "help": "texts to compare with; repeatable",
            },
        },
        mistake=_against_file,
        show_all=_show_embeddings,
    )
)
register_mode(
    Mode(
        name="states",
        about="computes the hidden states of each token",
        answer=_no_records,
        needs_training=False,
        arguments={
            "layer": {
                "default": "-1",
                "metavar": "N",
                "help": "layer of the hidden states: 0 is the embeddings, -1 the last, or all",
            }
        },
        mistake=_not_npz,
        run=_answer_states,
    )
)
