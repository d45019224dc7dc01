"""Held-out loss of every member of the objective, beside a unigram baseline on the same targets.

All members are given the same held-out text, cut to their own raw lengths, with noise that depends
on the row's number alone: the figures of two checkpoints, or two runs, can be compared.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from objectives import Row, members_of
from training.batches import ShardReader, rows_of, with_end
from training.data import Piece
from training.mesh import batch_sharding, batch_shards, placed_on, replicated
from training.step import Recipe, arranged, evaluate_batch

EVALUATION_SEED = 20_200_101  # noise of held-out rows; the same in every run


class Score(NamedTuple):
    """Held-out figures of one member."""

    member: str
    loss: float  # nats per target token
    unigram: float  # the same for a unigram model of the training targets
    targets: int  # how many target tokens were predicted

    @property
    def perplexity(self) -> float:
        return float(np.exp(min(self.loss, 700.0)))

    @property
    def gain(self) -> float:
        """Share of the baseline's nats that the model saves."""
        return 1.0 - self.loss / self.unigram if self.unigram else 0.0


class _Batch(NamedTuple):
    rows: Row
    keys: jax.Array


class Evaluator:
    """Held-out rows for every member, prepared once; call it with parameters."""

    def __init__(
        self,
        recipe: Recipe,
        mesh: Mesh,
        heldout: Sequence[Piece],
        training: ShardReader,
        *,
        tokens: int,
        end_of_document: int | None,
        rows: int = 16,
    ):
        self._recipe, self._mesh = recipe, mesh
        size = _up(rows, int(np.lcm(2, batch_shards(mesh))))
        texts = [with_end(piece, end_of_document) for piece in heldout]
        heldout_tokens = np.concatenate([np.zeros(0, np.int32), *texts])[:tokens]
        # Targets for the unigram baseline: rather more text than is held out, from training.
        training_tokens = training.take(8 * tokens)
        self._batches, self._score_of, self._unigram = {}, {}, {}
        for group in recipe.groups:
            # Replicated, so that every process can read the figures.
            jit = functools.partial(jax.jit, out_shardings=replicated(mesh))
            score = jit(functools.partial(evaluate_batch, recipe, group))
            count = jit(functools.partial(_count_targets, recipe, group))
            for member, raw in zip(group.members, group.raw_lengths):
                cut = functools.partial(self._cut, raw, member, group.row_length, size)
                self._batches[member] = cut(heldout_tokens)
                self._score_of[member] = score
                self._unigram[member] = _unigram_loss(
                    self._sum(count, cut(training_tokens)),
                    self._sum(count, self._batches[member]),
                )

    def __call__(self, params) -> list[Score]:
        scores = []
        for number, member in enumerate(members_of(self._recipe.objective)):
            with placed_on(self._mesh):
                totals = [self._score_of[number](params, *batch) for batch in self._batches[number]]
            sums, weights = np.sum(np.asarray(jax.device_get(totals), np.float64), axis=0)
            loss = sums / max(weights, 1.0)
            scores.append(Score(member.name, float(loss), self._unigram[number], int(weights)))
        return scores

    def _cut(self, raw: int, member: int, length: int, size: int, text: np.ndarray):
        """Batches of `size` rows of this text; the last row may be short, rows of padding follow."""
        stretches = [text[i : i + raw] for i in range(0, len(text), raw)]
        stretches += [text[:0]] * (_up(len(stretches), size) - len(stretches))
        sharding = batch_sharding(self._mesh)
        keys = jax.random.split(jax.random.key(EVALUATION_SEED), len(stretches))
        batches = []
        for i in range(0, len(stretches), size):
            rows = rows_of(stretches[i : i + size], np.full(size, member), length)
            spread = functools.partial(_spread, sharding=sharding)
            batches.append(_Batch(jax.tree.map(spread, rows), keys[i : i + size]))
        return batches

    def _sum(self, count, batches) -> np.ndarray:
        with placed_on(self._mesh):
            return np.sum([np.asarray(count(*batch), np.float64) for batch in batches], axis=0)


def _spread(x: np.ndarray, sharding) -> jax.Array:
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def _count_targets(recipe: Recipe, group, rows: Row, keys):
    """f32[V]: how often each id is a target that counts."""
    batch = arranged(recipe, group, keys, rows)
    counts = jnp.zeros(recipe.ids.size, jnp.float32)
    return counts.at[batch["decoder_target_tokens"]].add(batch["decoder_loss_weights"] * 1.0)


def _unigram_loss(training_counts: np.ndarray, heldout_counts: np.ndarray) -> float:
    """Nats per token of held-out targets under training frequencies, each count raised by one."""
    log_probability = np.log(training_counts + 1) - np.log(np.sum(training_counts + 1))
    return float(-np.sum(heldout_counts * log_probability) / max(heldout_counts.sum(), 1.0))


def _up(n: int, multiple: int) -> int:
    return -(-max(n, 1) // multiple) * multiple
