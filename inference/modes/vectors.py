"""Modes that give vectors: an embedding of each text, or the hidden states of its tokens."""

import dataclasses
import os
import zipfile
from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console
from rich.table import Column
from rich.text import Text

from ...objectives import PromptForm
from ..answering.answers import Options, answer
from ..answering.embeddings import embed
from ..answering.masks import MASKED
from ..answering.states import layers_of, states
from ..prompting.items import text_of
from ..reporting.predict_options import Request
from ..reporting.printing import plain_table, progress_of
from ..trained import Mode, Trained, cls_and_sep, register_mode

NEAREST = 3  # number of nearest tokens that are shown for each token
MOST_SIMILAR = 12  # texts whose similarities are shown as a table


def _embed_form(trained: Trained, mode: str) -> PromptForm:
    for form in trained.prompt_forms:
        if form.mode in MASKED:
            return form._replace(mode=mode, head=None)
    for form in trained.prompt_forms:
        if form.mode == "classify":  # what the head read
            return PromptForm(mode, form.before, form.after, pooling=form.pooling)
    return PromptForm(mode, *cls_and_sep(trained.ids))


def _embeddings(trained: Trained, texts: Sequence[str], options: Options) -> list[dict]:
    vectors = embed(
        trained,
        texts,
        pooling=options.pooling,
        second=options.second,
        batch_size=options.decoding.batch_size,
        on_batch=options.on_batch,
    )
    return [{"embedding": np.round(vector.astype(float), 7).tolist()} for vector in vectors]


def _against_file(arguments) -> str | None:
    if arguments.against and arguments.file:
        return "--against takes TEXTs; embeddings of --file are in --out"
    return None


def _show_embeddings(
    console: Console,
    trained: Trained,
    request: Request,
    options: Options,
    records: list[dict],
) -> None:
    """Prints cosines of the embeddings of items (rows) with those of others, else of each other."""
    items = request.items
    against: Sequence[dict] = [{"text": text} for text in options.own["against"] or ()]
    # The second of two towers reads the texts to compare with. A single encoder reads both alike.
    second = dataclasses.replace(options, second=True)
    their_records = answer(trained, "embed", against, second)
    size = len(records[0]["embedding"])
    console.print(f"{len(records)} embeddings of {size} numbers; --file and --out write them.")
    if not against:
        against = items
        their_records = records
        if len(items) == 1:
            return
    left, right = (np.array([x["embedding"] for x in some]) for some in (records, their_records))
    table = plain_table("", title="Cosines")
    for item in against[:MOST_SIMILAR]:
        table.add_column(Text(item["text"][:16]), justify="right")
    for item, row in zip(items, (left @ right.T)[:, :MOST_SIMILAR]):
        table.add_row(Text(item["text"][:40]), *(f"{x:.3f}" for x in row))
    console.print(table)


def _no_records(trained: Trained, texts: Sequence[str], options: Options) -> list[dict]:
    raise ValueError(
        "Hidden states are arrays, expected a call of inference.answering.states.states."
    )


def _not_npz(arguments) -> str | None:
    if arguments.mode == "states" and not (arguments.out or ".npz").endswith(".npz"):
        return "--out of --mode=states is NumPy's: give a name.npz"
    return None


def _answer_states(console: Console, trained: Trained, request: Request) -> None:
    """Writes the hidden states of texts as arrays, or prints what stands near to what."""
    texts = [text_of(item) for item in request.items]
    out = request.arguments.out
    layers = _layers_named(trained, request.options.own["layer"])
    if not out:
        return _print_states(console, trained, texts, layers)
    batch_size = request.options.decoding.batch_size
    with progress_of(console, len(texts)) as advance:
        write_states(out, trained, texts, layers, batch_size, advance)
    console.print(f"{out} holds the hidden states of {len(texts)} texts.", markup=False)


def _layers_named(trained: Trained, layer: str) -> list[int]:
    """Returns the layers that "3", "-1" or "all" means; `states` checks that there are such."""
    if layer == "all":
        return layers_of(trained)
    try:
        return [int(layer)]
    except ValueError:
        raise ValueError(f"Got --layer={layer}, expected a number, or all.") from None


def write_states(
    file: str,
    trained: Trained,
    texts: Sequence[str],
    layers: Sequence[int],
    batch_size: int,
    on_text: Callable[[int], None],
) -> None:
    """Writes the hidden states of texts as NumPy's .npz, whole or not at all.

        layers              i32[N], those asked for
        hidden_states_0     f32[N, T, E] of the first text, and so on: hidden_states_1 …
        input_ids_0         i32[T], its tokens, special ones included

    `hidden_states_0[k]` is `hidden_states[layers[k]][0]` of Hugging Face's
    output_hidden_states=True: embeddings are layer 0, and the last layer comes after the final
    norm. One batch is in memory at a time; `on_text` is called with 1 for each text.

    Raises ValueError as `states` does.
    """
    part = f"{file}.part"
    os.makedirs(os.path.dirname(file) or ".", exist_ok=True)

    def add(name: str, array: np.ndarray) -> None:
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)

    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
            add("layers", np.array(layers, np.int32))
            for i, found in states(trained, texts, layers=layers, batch_size=batch_size):
                add(f"hidden_states_{i}", found.layers)
                add(f"input_ids_{i}", np.array(found.tokens, np.int32))
                on_text(1)
        os.replace(part, file)
    finally:
        if os.path.exists(part):
            os.remove(part)


def _print_states(
    console: Console, trained: Trained, texts: Sequence[str], layers: Sequence[int]
) -> None:
    """Prints each token's norm, and the tokens of its text whose states are nearest by cosine."""
    found = dict(states(trained, texts, layers=layers))
    for i in range(len(texts)):
        names = [repr(trained.decode([token])) for token in found[i].tokens]
        for layer, states_TxE in zip(layers, found[i].layers):
            title = f"Layer {layer}, of {states_TxE.shape[1]} numbers; --file and --out write them"
            table = plain_table(
                "token", Column("norm", justify="right"), "nearest, by cosine", title=title
            )
            for name, norm, near in zip(names, *_nearest(states_TxE)):
                nearest = ", ".join(f"{names[k]} {cosine:.2f}" for k, cosine in near)
                table.add_row(Text(name), f"{norm:.3g}", Text(nearest))
            console.print(table)


def _nearest(states_TxE: np.ndarray) -> tuple[np.ndarray, list[list[tuple[int, float]]]]:
    """Returns the norm of each state, and the numbers of the nearest others with their cosines."""
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
        about="gives each text an embedding",
        layouts=("encoder",),
        answer=_embeddings,
        form=_embed_form,
        is_usual=lambda model: model.layout == "encoder" and "vocabulary" not in model.heads,
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
        about="gives each token its hidden states",
        layouts=("encoder", "decoder", "encoder_decoder"),
        answer=_no_records,
        needs_training=False,
        arguments={
            "layer": {
                "default": "-1",
                "metavar": "N",
                "help": "of hidden states: 0 the embeddings, -1, all",
            }
        },
        mistake=_not_npz,
        run=_answer_states,
    )
)
