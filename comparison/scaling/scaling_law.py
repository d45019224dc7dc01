"""Scaling laws: the loss of a model of N parameters after D tokens.

    law = fit(parameters, tokens, losses).law
    law.optimum(1e21)                       # the best size and number of tokens for a budget

The law is the third one of Hoffmann et al. 2022 (Chinchilla, arXiv:2203.15556):

    L(N, D) = E + A / N^alpha + B / D^beta        in nats per token

As in the paper, it is fitted by minimizing the Huber loss of log L from many starts. Intervals come
from a bootstrap over the points.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

HUBER = 1e-3  # error of log L at which the Huber loss becomes linear, as in Hoffmann et al.
ALIKE = 0.05  # sizes or numbers of tokens within this share count as equal
ENDS = (2.5, 97.5)  # percentiles of the bootstrap at the ends of an interval


class Work(NamedTuple):
    """Training FLOPs per token of a model with N parameters: factor * N^power.

    >>> KAPLAN.flops_per_token(1e9)
    6000000000.0
    """

    factor: float
    power: float

    def flops_per_token(self, parameters: float) -> float:
        return self.factor * parameters**self.power


KAPLAN = Work(6.0, 1.0)  # for large models (Kaplan et al. 2020, arXiv:2001.08361)


class Optimum(NamedTuple):
    parameters: float
    tokens: float
    loss: float  # nats per token


class Law(NamedTuple):
    """The five numbers of a scaling law.

    >>> loss = REPLICATED.loss(70e9, 1.4e12)
    >>> round(loss, 2)
    1.98
    """

    E: float
    A: float
    alpha: float
    B: float
    beta: float

    @property
    def falls(self) -> bool:
        """Whether the loss falls with parameters and tokens, so that it has an optimum."""
        return all(0 < x < math.inf for x in (self.A, self.alpha, self.B, self.beta))

    def loss(self, parameters, tokens):
        """Returns the loss in nats per token, for numbers or arrays."""
        # Dividing by powers could overflow for the large exponents of a fit to noise.
        return self.E + self.A * parameters**-self.alpha + self.B * tokens**-self.beta

    def optimum(self, flops: float, work: Work = KAPLAN) -> Optimum:
        """Returns the size and the number of tokens with the lowest loss for these FLOPs.

        >>> best = REPLICATED.optimum(5.76e23)
        >>> f"{best.parameters:.2g} parameters, {best.tokens:.2g} tokens"
        '7.2e+10 parameters, 1.3e+12 tokens'
        """
        if not flops > 0:
            raise ValueError(f"A budget must be a number of FLOPs above 0, got {flops}.")
        # L(N, flops / work.flops_per_token(N)) has derivative 0 at the optimum. Logarithms are
        # used, since A may be huge.
        log_ratio = math.log(self.alpha / (work.power * self.beta))
        log_ratio += math.log(self.A) - math.log(self.B)
        log_ratio += self.beta * math.log(flops / work.factor)
        parameters = math.exp(log_ratio / (self.alpha + work.power * self.beta))
        tokens = flops / work.flops_per_token(parameters)
        return Optimum(parameters, tokens, float(self.loss(parameters, tokens)))


# The law of causal language models on web text: the runs of Hoffmann et al. 2022, fitted again by
# Besiroglu et al. 2024 (arXiv:2404.10102).
REPLICATED = Law(1.82, 482.01, 0.3478, 2085.43, 0.3658)

# Starts of the search, of the size that Hoffmann et al. try: log E, log A, alpha, log B, beta.
_STARTS = tuple(itertools.product((-1.0, 0.5), (0.0, 10.0), (0.2, 1.0), (0.0, 10.0), (0.2, 1.0)))
# Second start for a resample, since the fit alone may be a fit to noise.
_MIDDLE = (0.0, 5.0, 0.4, 5.0, 0.4)


class Fit(NamedTuple):
    law: Law
    low: Law  # lower ends of the 95% intervals
    high: Law  # upper ends of the 95% intervals
    resampled: tuple[Law, ...]  # the laws of the bootstrap

    def interval_of_optimum(self, flops: float, work: Work = KAPLAN) -> tuple[Optimum, Optimum]:
        """Returns the lower and upper ends of the 95% intervals of the optimum's numbers.

        All ends are nan if more than 2.5% of the laws of the bootstrap have no optimum.
        """
        optima = [law.optimum(flops, work) for law in self.resampled if law.falls]
        if len(optima) < len(self.resampled) * (1 - ENDS[0] / 100):
            return (Optimum(math.nan, math.nan, math.nan),) * 2
        low, high = np.percentile(optima, ENDS, axis=0).tolist()
        return Optimum(*low), Optimum(*high)


def fit(
    parameters: Sequence[float],
    tokens: Sequence[float],
    losses: Sequence[float],
    resamples: int = 200,
) -> Fit:
    """Fits the law to runs with losses in nats per token, and resamples them for intervals.

    Raises ValueError for fewer than three sizes, three numbers of tokens or six pairs of these,
    for values that are not positive and finite, and for losses that do not fall.
    """
    points = np.array([parameters, tokens, losses], np.float64)
    for run in points.T:
        if not (np.isfinite(run).all() and (run > 0).all()):
            raise ValueError(
                f"Got a run of {run[0]:,.0f} parameters and {run[1]:,.0f} tokens with a loss of "
                f"{run[2]:g}, expected positive and finite numbers to fit a scaling law: leave out "
                "this run."
            )
    pairs = np.stack([groups_of_similar(row) for row in points[:2]])
    sizes, amounts, different = _counts(pairs)
    if min(sizes, amounts) < 3 or different < 6:
        raise ValueError(
            f"Got {points.shape[1]} runs of {sizes} sizes and {amounts} numbers of tokens with "
            f"{different} different pairs, which are too few for the five numbers of a scaling "
            "law: give at least 3 sizes, 3 numbers of tokens and 6 pairs."
        )
    best = minimize_loss(points, _STARTS)
    if not _as_law(best).falls:
        raise ValueError(
            "The losses do not fall with parameters and tokens as in a scaling law: alpha is "
            f"{best[2]:.3g} and beta is {best[4]:.3g}. Give more runs, or sizes and numbers of "
            "tokens that are further apart."
        )
    rng = np.random.default_rng(0)
    draws: list[np.ndarray] = []
    while len(draws) < resamples:
        drawn = rng.integers(points.shape[1], size=points.shape[1])
        sizes, amounts, different = _counts(pairs[:, drawn])
        # Other resamples do not determine all numbers of the law.
        if min(sizes, amounts) >= 3 and different >= len(best):
            draws.append(minimize_loss(points[:, drawn], [best, _MIDDLE]))
    laws = tuple(_as_law(draw) for draw in draws)
    # Take percentiles that are drawn laws, since a parameter of a law may be infinite.
    low, high = np.percentile(np.array(laws), ENDS, axis=0, method="nearest").tolist()
    return Fit(_as_law(best), Law(*low), Law(*high), laws)


def fit_work(parameters: Sequence[float], flops_per_token: Sequence[float]) -> Work:
    """Returns the growth of FLOPs per token with model size, by least squares of logarithms.

    FLOPs per parameter are not constant, since embeddings take few FLOPs but are a large part of
    small models.

    >>> work = fit_work([1e5, 1e6], [4e5, 5e6])
    >>> round(work.flops_per_token(1e5)), round(work.power, 3)
    (400000, 1.097)
    """
    power, log_factor = np.polyfit(np.log(parameters), np.log(flops_per_token), 1)
    return Work(math.exp(log_factor), float(power))


def groups_of_similar(values: np.ndarray) -> np.ndarray:
    """Returns the group i[N] of each value. A group has values that are equal up to `ALIKE`.

    >>> groups_of_similar(np.array([750_592.0, 250_880.0, 250_112.0])).tolist()
    [1, 0, 0]
    """
    groups = np.zeros(values.size, int)
    number = -1
    least = -np.inf
    for i in np.argsort(values):
        if values[i] > (1 + ALIKE) * least:
            number += 1
            least = values[i]
        groups[i] = number
    return groups


def _counts(pairs: np.ndarray) -> tuple[int, int, int]:
    """Returns the numbers of different sizes, numbers of tokens and pairs among pairs i[2, N]."""
    return len(set(pairs[0])), len(set(pairs[1])), len(set(zip(*pairs)))


def _as_law(x: np.ndarray) -> Law:
    e, a, alpha, b, beta = x
    with np.errstate(over="ignore"):  # A law that the runs do not determine may overflow.
        return Law(*(float(v) for v in (np.exp(e), np.exp(a), alpha, np.exp(b), beta)))


def minimize_loss(points: np.ndarray, starts) -> np.ndarray:
    """Returns the numbers of a law with the least Huber loss over all starts."""
    from scipy.optimize import minimize

    results = [
        minimize(huber_loss, start, args=(points,), jac=True, method="BFGS", options={"gtol": 1e-5})
        for start in starts
    ]
    return min(results, key=lambda result: result.fun).x


def huber_loss(x: np.ndarray, points: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the Huber loss of log L over the points, and its gradient."""
    from scipy.special import huber

    (e, a, alpha, b, beta), (n, d) = x, np.log(points[:2])
    logs = np.stack([np.full_like(n, e), a - alpha * n, b - beta * d])
    most = logs.max(axis=0)
    total = most + np.log(np.exp(logs - most).sum(axis=0))
    share = np.exp(logs - total)
    rest = total - np.log(points[2])
    value = huber(HUBER, rest).sum()
    slope = np.clip(rest, -HUBER, HUBER)
    d_e, d_a, d_b = (slope * share).sum(axis=1)
    d_alpha = -(slope * share[1] * n).sum()
    d_beta = -(slope * share[2] * d).sum()
    scale = HUBER**2  # the scale of the squares, so that the tolerance of the search is meaningful
    return value / scale, np.array([d_e, d_a, d_alpha, d_b, d_beta]) / scale
