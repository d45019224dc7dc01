"""Models with unrolled layers, which decode fastest: every layer has separate arrays.

    model, params = unrolled(model, params)

With scanned layers, decoding would copy a layer's parameters before each product, which takes as
long as the product.
"""

import dataclasses

import jax

from .builders import Model, model_of, with_capacity
from .config import Config
from .tokens_ahead import NextModule
from .transformer import REPEATED, Block, LayerContext, Stack
from .trees import flattened, nested

STACKED = ("layers", "modules")


def unrolled(model: Model, params: dict, *, donate: bool = False) -> tuple[Model, dict]:
    """Returns (model, params) without scans over layers. The outputs are the same.

    A model without scans, or without a `Config`, is returned unchanged.

    Args:
      donate: whether to delete each stacked array after splitting it, so that the model is never in
        memory twice. `params` cannot be used afterwards.
    """
    config = model.config
    if config is None or not config.scan_layers:
        return model, params
    first = 0 if config.first_norm else 1
    config = without_scans(config)

    def split():
        for path, array in flattened(params).items():
            pieces = list(_split(path, array, first, config.repeated_layers))
            yield from pieces
            if donate and pieces[0][1] is not array:
                array.delete()

    return model_of(config), nested(split())


def without_scans(config: Config) -> Config:
    """Returns the settings of the same network with separate arrays for each layer."""
    return dataclasses.replace(config, scan_layers=False, unroll_scan=False, remat_policy="none")


def _split(path: str, array: jax.Array, first: int, repeated: int):
    """Yields (path, array) for each layer that is stacked in an array.

    If `repeated` is more than 1, the array has one of every `repeated` layers.
    """
    parts = path.split("/")
    index = next((i for i, part in enumerate(parts) if part in STACKED), None)
    if index is None:
        yield path, array
        return
    start = 0 if "ahead" in parts else first
    rest = parts[index + 1 :]
    if repeated > 1:
        start = int(rest[0].removeprefix(REPEATED))
        rest = rest[1:]
    for number in range(array.shape[0]):
        name = f"{parts[index]}_{start + number * repeated}"
        yield "/".join([*parts[:index], name, *rest]), array[number]


def next_token_only(model: Model, params: dict) -> tuple[Model, dict]:
    """Returns (model, params) that predict only the next token, without heads for tokens ahead.

    The first of the parallel last layers becomes the last layer of a plain stack. Sequential
    modules, linear heads and projections ahead are left out. The model and its parameters must be
    unrolled.
    """
    config = model.config
    if config is None or not config.num_ahead:
        return model, params
    last = config.num_decoder_layers - 1
    every = config.global_every
    if config.ahead == "parallel" and every and last % every != config.first_global:
        # Parallel layers are global, but the last layer of a plain stack would be local.
        return model, params
    plain = dataclasses.replace(config, num_ahead=0)
    renamed = {"decoder/ahead/final_norm": "decoder/final_norm"} | {
        "decoder/ahead/layers_0/layer": f"decoder/layers_{last}"
    }
    projections_ahead = tuple(f"projections_{name}/" for name in config.ahead_projections)
    result = {}
    for path, array in flattened(params).items():
        for old, new in renamed.items():
            path = path.replace(old, new)
        if "/ahead/" not in path and not path.startswith(projections_ahead):
            result[path] = array
    return model_of(plain), nested(result.items())


def sequential_module(config: Config):
    """Returns a function that runs one sequential module for tokens ahead.

        call(params, cache, states, embedded, batch, capacity) -> states, hidden, cache

    Args of `call`:
      params: parameters of one module.
      cache: KV cache of the module. None at the first call, which creates a cache.
      states, embedded: [B, T, E], the previous module's states, and the embedding of the token that
        the previous module predicts at each slot.
      batch: as in `Model.extend`, or as in `Model.prefill` if cache is None.
      capacity: number of slots of a new cache.

    `call` returns the states for the next module, the hidden states for a head, and the cache.

    Raises:
      ValueError: The model has relative positions.
    """
    if config.positions == "relative":
        raise ValueError(
            "Got positions='relative', expected other positions: sequential modules have no "
            "relative bias. Decode without own_drafts."
        )
    module = NextModule(config, Block)
    stack = Stack(config, config.num_decoder_layers, cross=False, bidirectional=False)

    def call(params, cache, states, embedded, batch, capacity):
        cache_slots = batch.get("decoder_cache_slots")
        intervals = batch["decoder_key_intervals"]
        pattern, local = stack.patterns(batch["decoder_positions"], intervals, cache_slots)
        segments = batch.get("decoder_segment_ids")
        context = LayerContext(pattern, local, cache_slots, segments)
        collections = {"cache": cache} if cache is not None else {}
        ((states, _), hidden), updated = module.apply(
            {"params": params, **collections},
            (states, embedded),
            states,
            context,
            mutable=["cache"],
        )
        new_cache = updated["cache"]
        if cache is None:
            new_cache = with_capacity(new_cache, capacity)
        return states, hidden, new_cache

    return call
