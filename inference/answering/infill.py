"""Predictions of the tokens that an objective hides, next to the true tokens."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ...models import Model
from ...objectives import Objective, Row, RowGroup, TokenIds, batched
from ...objectives.contract import Array
from ...objectives.layouts import LAYOUTS
from ...objectives.losses import at_slots, predictions
from ..decoding.decoding import next_logits
from ..trained import Trained, allowed_token_mask
from .mask_queries import states_and_head
from .masks import MASKED


class Infilled(NamedTuple):
    """A row as token ids, without padding or end-of-sequence."""

    given: list[int]  # the inputs, with a sentinel for each hidden span
    predicted: list[int]  # the predicted tokens
    truth: list[int]  # the hidden tokens


def infill(
    objective: Objective, trained: Trained, group: RowGroup, keys, rows: Row
) -> list[Infilled]:
    """Hides parts of rows of one document each, and predicts them.

    Targets are predicted greedily, and consist of text, sentinels and end-of-sequence. Each new
    token runs the whole model again, so use this only for a few short rows.

    Masks are predicted independently, and sentinel k stands for the k-th mask. Predictions without
    a mask, masks beyond the number of sentinels and rows without a mask are left out.
    """
    model = trained.model
    arrange = LAYOUTS[model.layout].arrange

    @jax.jit
    def corrupt(keys, rows):
        """Returns the features, and the model's batch, in which the targets are zeros."""
        features = batched(objective, group.features)(keys, rows)
        unknown = {}
        if "targets" in features:
            ones = jnp.ones_like(features["targets"])
            unknown = {"targets": 0 * ones, "targets_segments": ones, "targets_weights": ones}
        return features, jax.vmap(lambda row: arrange(row, group.stacks, trained.ids.bos, 1))(
            features | unknown
        )

    features, batch = corrupt(keys, rows)
    predicted = _targets if "targets" in features else _masks
    return predicted(objective, trained, features, batch)


def _targets(objective: Objective, trained: Trained, features, batch) -> list[Infilled]:
    ids = trained.ids
    model = trained.model
    allowed_V = allowed_token_mask(ids, model.vocab_size, special=(ids.eos, *ids.sentinels))
    predicted = _everywhere(
        lambda params: greedy_targets(model, params, batch, allowed_V), trained.params
    )
    arrays = jax.device_get((features["inputs"], predicted, features["targets"]))
    return [Infilled(*(_until(tokens.tolist(), ids.eos) for tokens in row)) for row in zip(*arrays)]


def _masks(objective: Objective, trained: Trained, features, batch) -> list[Infilled]:
    heads = [form.head for form in objective.facts.prompt_forms if form.mode in MASKED]
    allowed_V = allowed_token_mask(trained.ids, trained.model.vocab_size, special=())

    def predict(params):
        outputs = trained.model.apply(params, batch)
        _, slots, _ = predictions(batch)
        states, project = states_and_head(outputs, heads[0] if heads else None)
        logits = project(at_slots(states, slots))
        return jnp.argmax(jnp.where(allowed_V, logits, -jnp.inf), axis=-1)

    predicted = _everywhere(predict, trained.params)
    columns = ("inputs", "inputs_segments", "labels", "labels_slots", "labels_weights")
    arrays = jax.device_get([features[column] for column in columns])
    filled = [_numbered(trained.ids, *row) for row in zip(*arrays, np.asarray(predicted))]
    return [example for example in filled if example.truth]


def _numbered(ids: TokenIds, inputs, segments, labels, slots, weights, predicted) -> Infilled:
    """Returns a row with sentinels for its masks, in the order of the text."""
    live = np.flatnonzero((weights > 0) & (inputs[slots] == ids.mask))[: len(ids.sentinels)]
    sentinels = ids.sentinels[: live.size]
    given = inputs.copy()
    given[slots[live]] = sentinels
    answers = [[x for pair in zip(sentinels, y[live]) for x in pair] for y in (predicted, labels)]
    return Infilled(given[segments > 0].tolist(), *([int(x) for x in y] for y in answers))


def greedy_targets(
    model: Model, params: dict, batch: dict[str, Array], allowed_tokens: Array | None = None
):
    """Returns i32[B, T]: the greedy targets, each predicted given the targets before it.

    Args:
      batch: batch of the model. Decoder inputs after the slot of the first target are not used.
      allowed_tokens: bool[V], the allowed-token mask. None: all ids.
    """
    rows, targets = batch["decoder_target_tokens"].shape
    row = jnp.arange(rows)
    slots = batch.get("decoder_target_slots")
    if slots is None:
        slots = jnp.broadcast_to(jnp.arange(targets)[None], (rows, targets))

    def step(t, carry):
        tokens, predicted = carry
        outputs = model.apply(params, batch | {"decoder_input_tokens": tokens})
        hidden = outputs.hidden["top"][row, slots[:, t]]
        logits = next_logits(outputs, hidden, allowed_tokens)
        chosen = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        tokens = tokens.at[row, slots[:, t] + 1].set(chosen, mode="drop")
        return tokens, predicted.at[:, t].set(chosen)

    predicted = jnp.zeros((rows, targets), jnp.int32)
    return lax.fori_loop(0, targets, step, (batch["decoder_input_tokens"], predicted))[1]


def _everywhere(predict: Callable, params):
    """Returns the predictions, jitted and replicated over the parameters' mesh."""
    sharding = jax.tree.leaves(params)[0].sharding
    on_mesh = NamedSharding(sharding.mesh, P()) if isinstance(sharding, NamedSharding) else None
    return jax.jit(predict, out_shardings=on_mesh)(params)


def _until(tokens: list[int], eos: int) -> list[int]:
    return tokens[: tokens.index(eos)] if eos in tokens else tokens
