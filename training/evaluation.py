"""Held-out loss of every member of the objective, beside a baseline on the same targets.

The baseline is the objective's own loss of a model that looks at nothing: it predicts tokens by
their frequency among the training targets (a unigram model), classes by their share, and gives all
texts one embedding (the loss is then the logarithm of the batch).

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

from pretrax.objectives import members_of
from pretrax.objectives.losses import predictions
from pretrax.training.data import DocumentStream, Piece
from pretrax.training.mesh import batch_sharding, batch_shards, placed_on, replicated
from pretrax.training.packing import PackedRow, Packing, empty_row, rows_of_documents, stacked
from pretrax.training.step import Recipe, arranged, evaluate_batch

EVALUATION_SEED = 20_200_101  # noise of held-out rows; the same in every run


class Score(NamedTuple):
    """Held-out figures of one term of one member's loss."""

    member: str
    term: str  # "tokens" nearly always
    loss: float  # nats per target: token, pair, …
    baseline: float  # the same for a model that looks at nothing
    targets: int  # how many there were

    @property
    def name(self) -> str:
        return label(self.member, self.term)

    @property
    def of_tokens(self) -> bool:
        return self.term == "tokens" or self.term.startswith("ahead_")

    @property
    def gain(self) -> float:
        """Share of the baseline's nats that the model saves."""
        return 1.0 - self.loss / self.baseline if self.baseline else 0.0


def label(member: str, term: str) -> str:
    """How figures of a member's term are called.

    >>> label("x_3_50", "tokens"), label("x_3_50", "pair")
    ('x_3_50', 'x_3_50/pair')
    """
    return member if term == "tokens" else f"{member}/{term}"


class Evaluator:
    """Held-out rows for every member, prepared once; call it with parameters."""

    def __init__(
        self,
        recipe: Recipe,
        packing: Packing,
        mesh: Mesh,
        heldout: Sequence[Piece],
        training: DocumentStream,
        *,
        tokens: int,
        end_of_document: int | None,
        rows: int = 16,
    ):
        self._recipe, self._mesh = recipe, mesh
        size = _up(rows, int(np.lcm(2, batch_shards(mesh))))
        # Replicated, so that every process can read the figures.
        jit = functools.partial(jax.jit, out_shardings=replicated(mesh))
        self._score = jit(functools.partial(evaluate_batch, recipe))
        count = jit(functools.partial(_count_targets, recipe))
        # Frequencies for the baseline: of rather more text than is held out, from training.
        seen = _pieces(training, 8 * tokens)
        self._batches, self._constants, self._baselines = {}, {}, {}
        for group in recipe.groups:
            arrange = jax.jit(
                functools.partial(arranged, recipe, group), out_shardings=batch_sharding(mesh)
            )
            for member in group.members:

                def batches_of(pieces, tokens, member=member, group=group, arrange=arrange):
                    packed = rows_of_documents(
                        pieces,
                        packing.policy,
                        packing.limits[member],
                        end_of_document=end_of_document,
                        tokens=tokens,
                        column=packing.column,
                    )
                    blank = empty_row(packing.column)
                    packed += [blank] * (_up(len(packed), size) - len(packed))
                    return self._arranged(arrange, packed, member, group.row_length, size)

                self._batches[member] = batches_of(heldout, tokens)
                counts = self._sum(count(batch) for batch in batches_of(seen, 8 * tokens))
                self._constants[member] = {
                    head: _log_shares(count, _size_of(recipe, head))
                    for head, count in counts.items()
                }

    def __call__(self, params) -> list[Score]:
        scores = []
        for number, member in enumerate(members_of(self._recipe.objective)):
            batches = self._batches[number]
            terms = self._sum(self._score(params, batch) for batch in batches)
            if number not in self._baselines:
                constants = self._constants[number]
                blank = self._sum(self._score(params, batch, constants) for batch in batches)
                self._baselines[number] = blank
            share = terms.pop("replaced_share", None)
            for term in sorted(terms, key=lambda term: term != "tokens"):
                total, weight = terms[term]
                baseline = self._baselines[number][term][0]
                if term == "replaced":  # what was replaced changes with the generator
                    baseline = weight * _entropy(share[0] / max(weight, 1.0))
                mean = [float(x / max(weight, 1.0)) for x in (total, baseline)]
                scores.append(Score(member.name, term, *mean, targets=int(weight)))
        return scores

    def _arranged(self, arrange, packed: list[PackedRow], member: int, length: int, size: int):
        """Batches of `size` rows, a multiple of which there are, for the model."""
        keys = jax.random.split(jax.random.key(EVALUATION_SEED), len(packed))
        spread = functools.partial(_spread, sharding=batch_sharding(self._mesh))
        batches = []
        for i in range(0, len(packed), size):
            rows = stacked(packed[i : i + size], np.full(size, member), length)
            with placed_on(self._mesh):
                batches.append(arrange(keys[i : i + size], jax.tree.map(spread, rows)))
        return batches

    def _sum(self, trees) -> dict:
        """The sum of trees of arrays, computed one after another, as float64."""
        total = None
        with placed_on(self._mesh):
            for tree in trees:
                tree = jax.tree.map(lambda x: np.asarray(x, np.float64), jax.device_get(tree))
                total = tree if total is None else jax.tree.map(np.add, total, tree)
        return total


def _spread(x: np.ndarray, sharding) -> jax.Array:
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def _count_targets(recipe: Recipe, batch) -> dict:
    """{head: f32[classes]}: how often each class is what a head ought to say."""
    tokens, _, weights = predictions(batch)
    found = {}
    if tokens is not None:
        of_classes = "token_classes" in recipe.objective.heads
        names = ("token_classes",) if of_classes else ("vocabulary", "generator")
        for name in names:
            size = _size_of(recipe, name) if of_classes else recipe.ids.size
            found[name] = jnp.zeros(size).at[tokens].add((weights > 0).astype(jnp.float32))
    if "pools_labels" in batch:
        right = batch["pools_weights"].astype(jnp.float32)
        for name in {"pair", "classes"} & set(recipe.objective.heads):
            # A number that is to be told is no class.
            if _size_of(recipe, name) > 1:
                shares = jnp.zeros(_size_of(recipe, name))
                found[name] = shares.at[batch["pools_labels"]].add(right)
    return found


def _size_of(recipe: Recipe, head: str) -> int:
    """How many classes a head tells apart."""
    if head == "pair":
        return 2
    return recipe.model.config.num_classes if "classes" in head else recipe.model.vocab_size


def _log_shares(counts, classes: int):
    """Logits of the shares of these counts, each raised by one; classes beyond them never come."""
    never = jnp.full(classes - len(counts), -1e9)
    return jnp.concatenate([jnp.log(counts + 1).astype(jnp.float32), never])


def _entropy(share: float) -> float:
    """Nats per answer of saying yes with this probability, when it is right so often."""
    inside = [p for p in (share, 1 - share) if p > 0]
    return -sum(p * np.log(p) for p in inside)


def _pieces(stream: DocumentStream, tokens: int) -> list[Piece]:
    """The stream's next documents, until they hold so many tokens."""
    pieces = []
    while tokens > 0:
        pieces.append(stream.next_document())
        tokens -= pieces[-1].tokens.size
    return pieces


def _up(n: int, multiple: int) -> int:
    return -(-max(n, 1) // multiple) * multiple
