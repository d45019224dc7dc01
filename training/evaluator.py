"""Held-out loss and metrics of every member of the objective, compared with a baseline.

The baseline is the loss of a model that ignores its input (`training.baselines`). For a term
without labels, it is the loss of constant outputs, such as the logarithm of the number of texts for
a contrastive loss. If this is 0, for example if hidden states predict each other, there is no
baseline.

All members are scored on the same held-out text, unless the corpus has a text for each member. The
noise depends only on the row's number, so scores of checkpoints and runs can be compared.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..data.corpus import Document, first_documents
from ..data.packing import empty_row, rows_of_documents, stacked
from ..objectives import Labels, Objective, members_of
from ..objectives.contract import ProgressSchedule, scale_at
from .baselines import Tally, constant_outputs, tally, trivial_hits, trivial_loss
from .devices.mesh import batch_sharding, batch_shards, placed_on, replicated
from .heldout_scores import Score
from .planning import Plan
from .step import Recipe, corrupt_and_arrange

EVALUATION_SEED = 20_200_101  # seed of the noise of held-out rows, the same in every run


class _HeldOutMember(NamedTuple):
    name: str
    batches: list[dict]
    term_sums: Callable  # (params, batch) -> {term: TermSums}
    training: dict[str, Tally]  # term -> tally of its labels in training text
    weight: float  # 0 if only earlier phases of training have rows of the member, else 1


class Evaluator:
    """Scores parameters on held-out rows of every member. The rows are prepared once."""

    def __init__(self, plan: Plan, tokens: int, rows: int = 16):
        """Prepares the held-out rows.

        Args:
          plan: plan of a run. Scheduled weights of terms are taken at the last step of the run.
          tokens: number of tokens of held-out text for each member.
          rows: number of rows in a batch. It is rounded up to what the mesh needs.
        """
        recipe = plan.recipe
        corpus = plan.corpus
        self._plan = plan
        self._size = _up(rows, math.lcm(2, batch_shards(plan.mesh)))  # number of rows in a batch
        self._programs: dict = {}
        # The baseline needs frequencies of labels. They are from eight times as much training text.
        training_pieces = [
            first_documents(iter(text.open_shard(0, 1).next_document, None), 8 * tokens)
            for text in corpus.texts
        ]
        heldout_pieces = [text.heldout(tokens) for text in corpus.texts]
        self._members: dict[int, _HeldOutMember] = {}
        for group in recipe.groups:
            arrange = jax.jit(
                functools.partial(corrupt_and_arrange, recipe, group),
                out_shardings=batch_sharding(plan.mesh),
            )
            for number in group.members:
                source = corpus.source_of(number)
                batches_of = functools.partial(self._batches, arrange, group.row_length, number)
                member = members_of(recipe.objective)[number]
                sums, tallies = self._programs_of(member.objective)
                self._members[number] = _HeldOutMember(
                    name=member.name,
                    term_sums=sums,
                    training=self._sum(
                        map(tallies, batches_of(training_pieces[source], 8 * tokens))
                    ),
                    batches=batches_of(heldout_pieces[source], tokens),
                    weight=_weight_at_end(member.rate),
                )

    def _programs_of(self, objective: Objective) -> tuple[Callable, Callable]:
        """Returns the jitted `term_sums` and `training_tallies` of a member.

        Members that differ only in their noise share them.
        """
        key = objective.loss, tuple(objective.facts.heads.items()), objective.facts.likelihood
        if key not in self._programs:
            # The sums are replicated, so that every process can read them.
            jit = functools.partial(jax.jit, out_shardings=replicated(self._plan.mesh))
            self._programs[key] = (
                jit(functools.partial(term_sums, self._plan.recipe, objective)),
                jit(functools.partial(training_tallies, self._plan.recipe, objective)),
            )
        return self._programs[key]

    def __call__(self, params) -> list[Score]:
        scores = []
        steps = self._plan.run.steps
        for number in range(len(self._members)):
            member = self._members[number]
            sums_by_term = self._sum(member.term_sums(params, batch) for batch in member.batches)
            for term, sums in sums_by_term.items():
                weight = float(sums.weight) or 1.0
                if sums.tally is None:
                    baseline = float(sums.constant)
                else:
                    trivial = trivial_hits if sums.metric else trivial_loss
                    baseline = trivial(sums.tally, member.training.get(term))
                mean_baseline = baseline / weight if baseline or sums.metric else None
                score = Score(
                    member=member.name,
                    term=term,
                    loss=float(sums.sum) / weight,
                    baseline=mean_baseline,
                    targets=int(sums.weight),
                    has_perplexity=sums.has_perplexity,
                    metric=sums.metric,
                    is_likelihood=sums.is_likelihood,
                    scale=member.weight * float(scale_at(sums.scale, steps, steps)),
                )
                scores.append(score)
        return scores

    def _batches(
        self, arrange: Callable, length: int, member: int, pieces: Sequence[Document], tokens: int
    ) -> list[dict]:
        """Returns the model's batches of a member's rows, which have up to `tokens` tokens."""
        packed = rows_of_documents(pieces, self._plan.packing, member, tokens)
        size = self._size
        blank = empty_row(self._plan.packing.columns, member)
        packed += [blank] * (_up(len(packed), size) - len(packed))
        sharding = batch_sharding(self._plan.mesh)

        def sharded(x: np.ndarray) -> jax.Array:
            return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

        batches = []
        # Keys from outside the mesh have another type, so that `arrange` would be traced again.
        with placed_on(self._plan.mesh):
            # JAX compiles `split` for each number of keys. Powers of two are few, and the first
            # keys do not depend on the number.
            number = 1 << (len(packed) - 1).bit_length()
            keys = jax.random.split(jax.random.key(EVALUATION_SEED), number)
            for i in range(0, len(packed), size):
                rows = stacked(packed[i : i + size], length)
                batches.append(arrange(keys[i : i + size], jax.tree.map(sharded, rows)))
        return batches

    def _sum(self, trees) -> dict:
        """Returns the float64 sum of trees of arrays, which are computed one after another."""
        total: dict = {}
        with placed_on(self._plan.mesh):
            for tree in trees:
                tree = jax.tree.map(lambda x: np.asarray(x, np.float64), jax.device_get(tree))
                total = jax.tree.map(np.add, total, tree) if total else tree
        return total


def _weight_at_end(rate: Any) -> float:
    """Returns 0 for a rate that follows training progress and is 0 at the end, else 1."""
    return 0.0 if isinstance(rate, ProgressSchedule) and not rate.at(1.0) else 1.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TermSums:
    """Sums of one term over rows."""

    sum: Any  # sum of the loss
    weight: Any  # sum of the weights
    tally: Tally | None  # tally of the labels; None: a term without labels
    constant: Any  # sum of the loss for constant outputs; None: a term with labels
    has_perplexity: bool = dataclasses.field(metadata={"static": True})
    scale: Any = dataclasses.field(metadata={"static": True})  # weight in the loss, see `Term`
    is_likelihood: bool = dataclasses.field(metadata={"static": True})

    @property
    def metric(self) -> bool:
        return self.scale is None


def term_sums(recipe: Recipe, objective: Objective, params, batch) -> dict[str, TermSums]:
    """Returns the sums of each term of a member's loss on an arranged batch, without dropout."""
    loss = objective.loss(batch)
    terms = loss.scored(recipe.model.apply(params, batch))
    constant = {}
    if any(term.labels is None for term in terms.values()):
        constant = loss.scored(constant_outputs(recipe.model, params, batch))
    return {
        name: TermSums(
            sum=jnp.sum(term.sums),
            weight=jnp.sum(term.weights),
            tally=None if term.labels is None else _tally_of(recipe, objective, term.labels),
            constant=jnp.sum(constant[name].sums) if term.labels is None else None,
            has_perplexity=term.labels is not None
            and term.labels.slots is None
            and objective.facts.heads[term.labels.head] is None,
            scale=term.scale,
            is_likelihood=name == objective.facts.likelihood,
        )
        for name, term in terms.items()
    }


def training_tallies(recipe: Recipe, objective: Objective, batch) -> dict[str, Tally]:
    """Returns the tally of each term's labels in an arranged batch. Each label counts once."""
    sums = {}
    for name, term in objective.loss(batch).terms.items():
        labels = term.labels
        if labels is not None and labels.values is not None:
            once = dataclasses.replace(labels, weights=(labels.weights > 0).astype(jnp.float32))
            sums[name] = _tally_of(recipe, objective, once)
    return sums


def _tally_of(recipe: Recipe, objective: Objective, labels: Labels) -> Tally:
    if labels.head not in objective.facts.heads:
        raise ValueError(
            f"A term has labels for the head {labels.head!r}, expected one of the objective's "
            f"heads {sorted(objective.facts.heads)}."
        )
    return tally(labels, classes=objective.facts.heads[labels.head] or recipe.ids.size)


def _up(n: int, multiple: int) -> int:
    return -(-max(n, 1) // multiple) * multiple
