"""The same network in the form that decodes fastest: every layer with arrays of its own.

Training scans one layer over stacked parameters. In a loop that makes one token at a time the slice
of a layer would be copied before each product, as much work as the product itself.

    model, params = unrolled(model, params)
"""

import dataclasses

import jax

from pretrax.models.builders import Model, model_of, with_room
from pretrax.models.config import Config
from pretrax.models.transformer import Block, Context, NextModule, Stack
from pretrax.models.trees import named, nested

STACKED = ("layers", "modules")


def unrolled(model: Model, params: dict, *, donate: bool = False) -> tuple[Model, dict]:
    """(model, params) without scans; the outputs are the same. Nothing to do where there are none.

    Args:
      donate: gives up each stacked array as soon as it is taken apart, so that the model is never
        held twice; `params` cannot be used after that.
    """
    config = model.config
    if not config.scan_layers:
        return model, params
    first = 0 if config.first_norm else 1
    config = dataclasses.replace(config, scan_layers=False, remat_policy="none")

    def apart():
        for path, array in named(params).items():
            pieces = list(_split(path, array, first))
            yield from pieces
            if donate and pieces[0][1] is not array:
                array.delete()

    return model_of(config), nested(apart())


def _split(path: str, array: jax.Array, first: int):
    """(path, array) of each layer that an array holds."""
    parts = path.split("/")
    where = next((i for i, part in enumerate(parts) if part in STACKED), None)
    if where is None:
        yield path, array
        return
    start = 0 if "ahead" in parts else first
    for layer in range(array.shape[0]):
        name = f"{parts[where]}_{start + layer}"
        yield "/".join([*parts[:where], name, *parts[where + 1 :]]), array[layer]


def next_token_alone(model: Model, params: dict) -> tuple[Model, dict]:
    """(model, params) of the next token, where a model also predicts those after it.

    Of parallel last layers the first becomes the last layer of a plain stack; sequential modules are
    left out. Parameters as `unrolled` gives them.
    """
    config = model.config
    if not config.num_ahead:
        return model, params
    last = config.num_decoder_layers - 1
    if config.ahead == "parallel" and config.global_every and last % config.global_every:
        return model, params  # parallel layers see all, and a plain one would be local there
    plain = dataclasses.replace(config, num_ahead=0)
    renamed = {"decoder/ahead/final_norm": "decoder/final_norm"} | {
        "decoder/ahead/layers_0/layer": f"decoder/layers_{last}"
    }
    result = {}
    for path, array in named(params).items():
        for old, new in renamed.items():
            path = path.replace(old, new)
        if "/ahead/" not in path:
            result[path] = array
    return model_of(plain), nested(result.items())


def module_ahead(config: Config):
    """One of the sequential modules for tokens ahead, to be called by itself.

        call(params, cache, states, embedded, batch, room) -> states, hidden, cache

    `params` of one module; `states` and `embedded` [B, T, E] are what the module before it gave and
    the embedding of each token that it predicts; `batch` as in `Model.extend`, or, with cache None,
    as in `Model.prefill`. A loss or a sampler goes on from `hidden`.
    """
    if config.positions == "relative":
        raise ValueError(
            "Got positions='relative', expected others: sequential modules alone know no relative "
            "positions. Decode plainly."
        )
    module = NextModule(config, Block)
    stack = Stack(config, config.num_decoder_layers, cross=False, bidirectional=False)

    def call(params, cache, states, embedded, batch, room):
        places = batch.get("decoder_places")
        intervals = batch["decoder_key_intervals"]
        seen, local = stack.seen(batch["decoder_positions"], intervals, places)
        context = Context(seen, local, None, None, None, places)
        kept = {"cache": cache} if cache is not None else {}
        ((states, _), hidden), kept = module.apply(
            {"params": params, **kept}, (states, embedded), context, mutable=["cache"]
        )
        after = kept["cache"] if cache is not None else with_room(kept["cache"], room)
        return states, hidden, after

    return call
