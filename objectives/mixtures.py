"""Mixtures of objectives, which are also objectives.

The host chooses the member of a row (`Row.member`) before it cuts the row to the member's raw
length. This module draws no members.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from annotated_types import MinLen
from jax import lax, tree_util

from ..constraints import Count, Natural, Positive, checked
from .arithmetic import kernel
from .contract import (
    Adaptation,
    BatchLoss,
    Builder,
    Corrupt,
    Member,
    Objective,
    ProgressSchedule,
    Rate,
    Row,
    Sums,
    Term,
    build,
    comparable,
    is_scheduled,
    joint_facts,
    unwrapped,
    value_at,
)
from .layouts import joint_slots
from .streams import slots_of, streams_named, with_missing_streams
from .token_ids import TokenIds


@checked
def mixture(
    ids: TokenIds,
    members: Annotated[
        Mapping[str, tuple[Builder, float | Callable[[int], float] | ProgressSchedule]], MinLen(1)
    ],
) -> Objective:
    """A mixture of objectives with rates.

    Args:
      ids: token ids, passed to every builder.
      members: name -> (builder, rate). Rates are relative shares of the rows of a batch: numbers,
        functions of the step, such as an optax schedule or `turns`, or `ProgressSchedule`. If a
        builder returns a mixture, its members join this mixture and share its rate.

    Lengths are the maximum over the members. Members that differ only in numbers (UL2's six span
    denoisers) share one kernel. Each distinct loss function is called once.

    >>> both = mixture(ids, {"span": (span_corruption, 3), "prefix": (prefix_lm, 1)})
    >>> [(m.name, m.rate) for m in both.facts.members]
    [('span', 3.0), ('prefix', 1.0)]

    >>> nested = mixture(ids, {"inner": (lambda ids: both, 8), "causal": (causal_lm, 2)})
    >>> [(m.name, m.rate) for m in nested.facts.members]
    [('inner.span', 6.0), ('inner.prefix', 2.0), ('causal', 2.0)]

    Raises ValueError for a rate that is not above zero, a member that is a mixture with adaptive
    noise, and two members with the same name. It also raises ValueError for members with
    incompatible rows or different numbers of pools per document.
    """
    listed = [_member(name, pair, ids) for name, pair in members.items()]
    forms = (form for member in listed for form in member.objective.facts.prompt_forms)
    built = [leaf for member in listed for leaf in _leaves(member)]
    _check_names(built)
    objectives = {member.name: member.objective for member in built}
    _check_pools(objectives)
    corrupts, losses = zip(*((o.corrupt, o.loss) for o in objectives.values()))
    facts = joint_facts({name: o.facts for name, o in objectives.items()})
    return Objective(
        lengths=lambda n: joint_lengths(o.lengths(n) for o in objectives.values()),
        corrupt=_shared_kernels(corrupts),
        loss=_joint_loss(losses),
        facts=facts._replace(
            prompt_forms=tuple(dict.fromkeys(forms)),
            members=tuple(built),
            token_weights=all(o.facts.token_weights for o in objectives.values()),
        ),
        adaptation=_joint_adaptation(objectives),
    )


def _member(name: str, pair, ids: TokenIds) -> Member:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(f"Member {name!r} must be a pair (builder, rate), got {pair!r}.")
    builder, rate = pair
    if not is_scheduled(rate) and not (isinstance(rate, Real) and 0 < float(rate) < math.inf):
        raise ValueError(
            f"The rate of {name!r} must be a number above 0, a function of the step, or a "
            f"ProgressSchedule, got {rate!r}: to give a member no rows, leave it out of the "
            "mixture."
        )
    try:
        objective = build(builder, ids)
    except ValueError as error:
        raise ValueError(f"Member {name!r}: {error}") from None
    if objective.facts.members and objective.adaptation:
        raise ValueError(
            f"Member {name!r} is a mixture whose noise adapts to the model, which is not supported "
            "within a mixture: list its members in this mixture instead."
        )
    rate = rate if is_scheduled(rate) else float(rate)
    return Member(name, objective, rate, call=_call(builder))


def _call(builder: Any) -> str:
    """Returns a builder with its settings as text, such as "prefix_lm(mode='S')"."""
    function, settings = unwrapped(builder)
    settings = {**getattr(function, "settings", {}), **settings}
    function = getattr(function, "function", function)  # gin files build a Partial of settings/
    shown = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"{getattr(function, '__name__', 'builder')}({shown})"


def _check_names(members: Sequence[Member]) -> None:
    """Raises ValueError if "a.b" is a member and also the name of member "b" of mixture "a"."""
    names = [member.name for member in members]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(
            f"Two members of the mixture are named {', '.join(map(repr, repeated))}, expected "
            "different names: rename one of them. Member 'b' of an inner mixture 'a' is named "
            "'a.b'."
        )


def _leaves(member: Member) -> list[Member]:
    """Returns the members of a mixture, which share its rate; any other member is its only leaf."""
    inner = member.objective.facts.members
    if not inner:
        return [member]
    return [
        leaf._replace(name=f"{member.name}.{leaf.name}", rate=_inner_rate(member.rate, inner, i))
        for i, leaf in enumerate(inner)
    ]


def _inner_rate(rate: Rate, inner: Sequence[Member], i: int) -> Rate:
    """Returns the rate of `inner[i]` in the outer mixture, given the rate of the inner mixture.

    If all members of the inner mixture have a rate of 0 at a step, it gets no rows at this step.
    """
    names = ", ".join(member.name for member in inner)

    def at(when) -> float:
        """Returns the rate at a step, or at a progress if rates are `ProgressSchedule`."""
        rates = [_at(member.rate, when) for member in inner]
        if min(rates) < 0:
            raise ValueError(
                f"The rates of {names} are {rates} at {when}, expected none below 0: change the "
                "schedule of the rates."
            )
        return _at(rate, when) * rates[i] / (sum(rates) or 1.0)

    scheduled = [each for each in (rate, *(member.rate for member in inner)) if is_scheduled(each)]
    over_progress = [isinstance(each, ProgressSchedule) for each in scheduled]
    if all(over_progress):
        return ProgressSchedule(at) if scheduled else at(0)
    if any(over_progress):
        raise ValueError(
            f"Some rates of {names} follow the step and others follow training progress, but the "
            "members share the rate of an inner mixture: use one kind of schedule, or list the "
            "members in the outer mixture."
        )
    return at


def _at(rate, when) -> float:
    """Returns a rate at a step, or at a progress if it is `ProgressSchedule`."""
    return float(value_at(rate, when, 1)) if is_scheduled(rate) else rate


@checked
def turns(every: Count, turn: Natural, of: Count = 2) -> Callable[[int], float]:
    """Returns a rate for alternating members: 1 in every `of`-th interval of `every` steps, else 0.

    AntLM (Yu et al. 2024, arXiv:2412.03275) alternates causal and masked language modeling:

    >>> [[turns(100, turn)(step) for step in (0, 99, 100, 200)] for turn in (0, 1)]
    [[1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]]

    Raises ValueError if `turn` is not below `of`.
    """
    if turn >= of:
        raise ValueError(f"Got turn={turn}, of={of}, expected 0 <= turn < of.")
    return lambda step: float(step // every % of == turn)


@checked
def phases(
    ids: TokenIds, members: Annotated[Mapping[str, tuple[Builder, Positive]], MinLen(2)]
) -> Objective:
    """Objectives that train the same parameters one after another, each for a share of the steps.

        phases(ids, {"masked": (masked_next_token, 0.7), "causal": (causal_lm, 0.3)})

    All rows of a step belong to the objective of its phase, and each phase has its own compiled
    step. A step therefore has the text and the cost of the objective alone. The optimizer and its
    schedule continue across phases. Held-out text is scored under every objective, and the trained
    model is used like a model of the last objective. With `rollback_sigmas`, a phase with a much
    higher loss looks like a spike.

    Args:
      ids: token ids, passed to every builder.
      members: name -> (builder, share of the steps), in order. Shares are relative. A builder may
        not return a mixture.

    >>> objective = phases(ids, {"prefix": (prefix_lm, 1), "causal": (causal_lm, 3)})
    >>> [[m.rate.at(share) for m in objective.facts.members] for share in (0, 0.24, 0.25, 1)]
    [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]

    Raises ValueError for mixtures, and for objectives that cannot be in one `mixture`.
    """
    shares = [share for _, share in members.values()]
    ends = [*itertools.accumulate(share / sum(shares) for share in shares[:-1]), math.inf]
    starts = [-math.inf, *ends[:-1]]
    rated: dict[str, tuple[Builder, ProgressSchedule]] = {}
    for (name, (builder, _)), start, end in zip(members.items(), starts, ends):
        rated[name] = builder, ProgressSchedule(comparable(_window, start, end))
    joint = mixture(ids, rated)
    if len(joint.facts.members) != len(members):
        raise ValueError(
            f"phases takes objectives that are not mixtures, got {len(joint.facts.members)} "
            f"members for {len(members)} phases: use a single objective for each phase."
        )
    last = joint.facts.members[-1].objective
    return joint.with_facts(separate_steps=True, prompt_forms=last.facts.prompt_forms)


def _window(start: float, end: float, share: float) -> float:
    """Returns a rate of 1 from one progress of training up to another, and of 0 outside."""
    # Without the margin, rounding of a share such as 0.3 could move the border by a step.
    return float(start <= share + 1e-9 < end)


def largest(lengths: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns the largest value of every key over several mappings.

    >>> largest([{"encoder": 5}, {"encoder": 3, "decoder": 4}])
    {'encoder': 5, 'decoder': 4}
    """
    result: dict[str, int] = {}
    for each in lengths:
        for key, value in each.items():
            result[key] = max(result.get(key, 0), value)
    return result


def joint_lengths(lengths: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns lengths of streams that suffice for each of several lengths.

    >>> joint_lengths([{"inputs": 5}, {"inputs": 3, "targets": 4}])
    {'inputs': 5, 'targets': 4}
    """
    lengths = [dict(each) for each in lengths]
    result = largest(lengths)
    for stream in streams_named(result):
        # A stream that describes another stream has one value for each of its slots, in every
        # member.
        if (owner := slots_of(stream)) in result:
            result[stream.name] = result[owner]
    if "both" in result:  # members without this bound need the sum
        result["both"] = max(joint_slots(each) for each in lengths)
    return result


def _check_pools(objectives: Mapping[str, Objective]) -> None:
    """Raises ValueError if losses would pair up pools of different documents."""
    pools = {name: o.lengths(2).get("pools", 0) for name, o in objectives.items()}
    if len({n for n in pools.values() if n > 1}) > 1:
        raise ValueError(
            f"The members of the mixture have different numbers of pools per document, {pools}, so "
            "their losses would pair up the wrong pools: train them in two runs."
        )


def _shared_kernels(functions: Sequence[Corrupt]) -> Corrupt:
    """Returns a kernel that runs the kernel of the row's member. Equal functions share a copy."""
    kernels = [f if _is_numeric(f) else kernel(f) for f in functions]
    kinds = [
        (jax.tree.structure(k), tuple(jnp.shape(x) for x in jax.tree.leaves(k))) for k in kernels
    ]
    distinct = list(dict.fromkeys(kinds))
    stacks = [
        jax.tree.map(
            lambda *x: jnp.stack(x),
            *(k for k, kind in zip(kernels, kinds) if kind == distinct_kind),
        )
        for distinct_kind in distinct
    ]
    # Each member's numbers: the index of the stack, and the index within the stack.
    address = [(distinct.index(kind), kinds[:i].count(kind)) for i, kind in enumerate(kinds)]
    return kernel(_corrupt_member, stacks, jnp.array(address, jnp.int32))


def _is_numeric(corrupt: Corrupt) -> bool:
    """Returns whether all settings of a function are arrays, which can be stacked over members."""
    return isinstance(corrupt, tree_util.Partial) and all(
        hasattr(x, "dtype") for x in jax.tree.leaves(corrupt)
    )


def _corrupt_member(stacks, address, key, row, partner, lengths, max_documents):
    stack, entry = address[row.member]

    def branch(kernels):
        kernel = jax.tree.map(lambda x: x[entry], kernels)
        return lambda: with_missing_streams(
            kernel(key, row, partner, lengths, max_documents), lengths
        )

    branches = [branch(kernels) for kernels in stacks]
    return branches[0]() if len(branches) == 1 else lax.switch(stack, branches)


def _joint_loss(losses: Sequence[Callable]) -> Callable:
    """Returns the loss of rows of several members. Terms with the same name are added.

    Each member's loss reads the whole batch. Rows of other members have weight 0 and give no
    negatives to contrastive losses. The terms have no labels, since only members have baselines.
    """
    distinct = list(dict.fromkeys(losses))
    if len(distinct) == 1:
        return distinct[0]

    def loss(batch) -> BatchLoss:
        rows = [
            jnp.array([member_loss == part for member_loss in losses])[batch["member"]]
            for part in distinct
        ]
        parts = [part(_counting(batch, mine)) for part, mine in zip(distinct, rows)]

        def sums(outputs) -> dict[str, Sums]:
            scored = _joint_terms(rows, [part.scored(outputs) for part in parts])
            return {name: Sums(term.sums, term.z_losses) for name, term in scored.items()}

        return BatchLoss(_joint_terms(rows, [part.terms for part in parts]), sums)

    return loss


def _joint_terms(rows: Sequence, parts: Sequence[Mapping[str, Term]]) -> dict[str, Term]:
    """Returns the terms of several losses; each loss counts only in its own rows bool[B]."""
    joint: dict[str, Term] = {}
    for mine, terms in zip(rows, parts):
        for name, term in terms.items():
            masked = jax.tree.map(
                lambda x, mine=mine: jnp.where(mine, x, 0.0),
                dataclasses.replace(term, labels=None),
            )
            joint[name] = _added(name, joint[name], masked) if name in joint else masked
    return joint


def _joint_adaptation(objectives: Mapping[str, Objective]) -> Adaptation | None:
    """Returns the members' adaptations as one, with a state for each, or None if there are none.

    In rows of members without an adaptation, all chances are equal.
    """
    adaptations = {name: o.adaptation for name, o in objectives.items() if o.adaptation}
    if not adaptations:
        return None
    number = {name: i for i, name in enumerate(objectives)}

    def chances(state, rows: Row):
        result = jnp.ones_like(rows.tokens)
        for name, adaptation in adaptations.items():
            mine = rows.member[:, None] == number[name]
            result = jnp.where(mine, adaptation.chances(state[name], rows), result)
        return result

    def measure(outputs, batch):
        return {
            name: adaptation.measure(outputs, _member_rows(batch, batch["member"] == number[name]))
            for name, adaptation in adaptations.items()
        }

    def update(state, counts, step):
        return {
            name: adaptation.update(state[name], counts[name], step)
            for name, adaptation in adaptations.items()
        }

    def summary(state):
        return {
            f"{name}/{metric}": value
            for name, adaptation in adaptations.items()
            for metric, value in adaptation.summary(state[name]).items()
        }

    def init():
        return {name: adaptation.init() for name, adaptation in adaptations.items()}

    return Adaptation(init, chances, measure, update, summary)


def _counting(batch, mine_B) -> dict:
    """Returns the batch with all weights of other rows set to 0."""
    weights = {n: x * mine_B[:, None] for n, x in batch.items() if n.endswith("_weights")}
    return batch | weights


def _member_rows(batch, mine_B) -> dict:
    """Returns the batch with other rows empty: their weights and segment ids are 0."""
    segments = {n: x * mine_B[:, None] for n, x in batch.items() if n.endswith("_segment_ids")}
    return _counting(batch, mine_B) | segments


def _added(name: str, first: Term, second: Term) -> Term:
    if first.scale != second.scale:
        raise ValueError(
            f"Two members of the mixture have a loss term {name!r}, with the scales {first.scale} "
            f"and {second.scale}, expected equal scales: change a scale, or rename a term."
        )
    return Term(
        first.weights + second.weights,
        first.scale,
        sums=_sum_of_given(first.sums, second.sums),
        z_losses=_sum_of_given(first.z_losses, second.z_losses),
    )


def _sum_of_given(first, second):
    """Returns the sum of two arrays, or the only one that is not None, or None."""
    if first is None or second is None:
        return second if first is None else first
    return first + second
