"""Hidden states of texts in any layer of a frozen model.

    for i, text_states in states(trained, ["import os", "def f(): pass"], layers=[0, -1]):
        text_states.layers           # f32[2, T, E]: the embeddings, and the last layer
        text_states.layers[:, text_states.text].mean(1)

A text is read as in training: both ways by an encoder, and from left to right by a decoder, unless
it was trained to read both ways (prefix language modeling, UL2).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ...models.builders import model_of, single_transformer
from ...models.hidden_states import layer_states
from ...models.unrolled import unrolled
from ..decoding.batching import by_length, encoder_batch, jitted, padded_width
from ..decoding.decoding import decoder_prompts
from ..prompting.prompts import reads_only_frame, text_frame
from ..prompting.windows import check_texts
from ..trained import Trained, mode_of, prompt_form
from .masks import batch_of

TOP = -1  # the last layer, after the final norm, which heads read


class TextStates(NamedTuple):
    layers: np.ndarray  # f32[N, T, E], the states of N layers
    tokens: list[int]  # T ids, of the text and of the frame around it
    text: slice  # the slots of the text without the frame


class TextRow(NamedTuple):
    """A text as a model reads it."""

    tokens: list[int]
    text: slice  # the slots of the text without the frame
    prefix: int  # number of leading tokens that a decoder reads both ways


def states(
    trained: Trained,
    texts: Sequence[str | Sequence[int]],
    *,
    layers: Sequence[int] = (TOP,),
    batch_size: int = 32,
) -> Iterator[tuple[int, TextStates]]:
    """Yields the number of each text with its states, shortest texts first.

    Args:
      texts: texts or their token ids.
      layers: numbers of layers; 0 is the embeddings, 1 the first layer, -1 the last layer.

    Raises:
      ValueError: A text has no tokens, or more than the model has positions. A layer does not
        exist. Models with two encoders have only the last layer.
    """
    layers = tuple(layers)
    model = trained.model
    params = trained.params
    if layers != (TOP,):
        check_layers(trained, layers)
        part = single_transformer(model, params)
        model, params = unrolled(model_of(part.config), part.params)
    run = jitted(_states, model, layers)
    texts_tokens = [trained.encode(x) if isinstance(x, str) else x for x in texts]
    rows = [text_row(trained, tokens) for tokens in texts_tokens]
    check_texts(trained, [row.tokens for row in rows])
    for chosen in by_length([len(row.tokens) for row in rows], batch_size):
        found_BxNxTxE = np.asarray(run(params, rows_batch(trained, [rows[i] for i in chosen])))
        for i, found_NxTxE in dict(zip(chosen, found_BxNxTxE)).items():
            tokens = rows[i].tokens
            yield i, TextStates(found_NxTxE[:, : len(tokens)], tokens, rows[i].text)


def all_layers(trained: Trained) -> list[int]:
    """Returns the numbers of all layers, including 0 for the embeddings.

    ELECTRA has its discriminator's layers. Other models of several networks have only the last
    layer.
    """
    model = trained.model
    if model.config is None and model.part is None:
        return [TOP]
    config = single_transformer(model, trained.params).config
    return list(range(1 + (config.num_encoder_layers or config.num_decoder_layers)))


def check_layers(trained: Trained, layers: Sequence[int]) -> None:
    """Raises ValueError for a layer that the model does not have."""
    available = list(dict.fromkeys([*all_layers(trained), TOP]))
    for layer in layers:
        if layer not in available:
            raise ValueError(
                f"Got layer {layer}, expected one of {available} of this model"
                + (", which is not a single Transformer." if available == [TOP] else ".")
            )


def text_row(trained: Trained, tokens: Sequence[int]) -> TextRow:
    """Returns the tokens of a text, framed as in training."""
    before, after = text_frame(trained)
    row = [*before, *tokens, *after]
    form = prompt_form(trained, mode_of(trained))
    prefix = 0
    if not form.causal and form.mode != "blocks":
        # Bos and the start of an answer may follow the text and its frame.
        prefix = len(row) - (0 if reads_only_frame(form) else 1 + len(form.start))
    return TextRow(row, slice(len(before), len(before) + len(tokens)), max(prefix, 0))


def ending_slot(trained: Trained, text: str, end: int, slots: slice) -> int:
    """Returns the slot of the token in which the first `end` characters of a text end.

    `slots` are the slots of the text's tokens, fewer if the text was cut.
    """
    tokens = len(trained.encode(text[:end]))
    return min(max(slots.start + tokens - 1, slots.start), slots.stop - 1)


def rows_batch(trained: Trained, rows: Sequence[TextRow]) -> dict:
    """Returns the batch in which the model's first stack reads these rows."""
    tokens = [row.tokens for row in rows]
    form = prompt_form(trained, mode_of(trained))
    if trained.model.layout == "encoder":
        return batch_of(trained, tokens)
    if trained.model.layout == "encoder_decoder":
        batch = encoder_batch(tokens, trained.model.max_positions)
        return batch | _block_intervals(batch, form.block_size) if form.mode == "blocks" else batch
    width = padded_width(tokens, trained.model.max_positions)
    prefixes = [row.prefix for row in rows]
    return decoder_prompts(tokens, prefixes, width, block_size=form.block_size).batch


def _block_intervals(batch: dict, size: int) -> dict:
    """Returns the encoder's key intervals, which end with the block of each query."""
    start_BxT, end_BxT = np.moveaxis(np.asarray(batch["encoder_key_intervals"]), 1, 0)
    block_end_BxT = (np.asarray(batch["encoder_positions"]) // size + 1) * size
    live_BxT = np.asarray(batch["encoder_segment_ids"]) > 0
    cut_BxT = np.where(live_BxT, np.minimum(end_BxT, block_end_BxT), end_BxT)
    return {"encoder_key_intervals": np.stack([start_BxT, cut_BxT], 1)}


def _states(model, layers, params, batch):
    """Returns f32[B, N, T, E]."""
    if layers == (TOP,):
        states_NxBxTxE = model.apply(params, batch).hidden["top"][None]
    else:
        states_NxBxTxE = layer_states(model.config, params, batch)[jnp.array(layers)]
    return jnp.swapaxes(states_NxBxTxE, 0, 1).astype(jnp.float32)
