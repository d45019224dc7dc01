"""Hidden Markov models: tables of named states, samples, and exact likelihoods.

Durbin et al. 1998, "Biological Sequence Analysis", chapters 3 and 5. States that emit no letter
(silent states) are summed out once, so that sampling and the forward algorithm see only states that
emit one letter each.

Letters: S emitting states, A letters of the alphabet, B sequences, L letters of a sequence.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

BEGIN = "begin"
END = "end"
PADDING = -1  # stands after the letters of a sequence that is shorter than others


class HiddenMarkov(NamedTuple):
    """A hidden Markov model whose states emit one letter each."""

    names_S: tuple[str, ...]
    start_S: np.ndarray  # f64[S], probability that the first letter is emitted by a state
    transitions_SxS: np.ndarray  # f64[S, S], from a row's state to a column's state
    end_S: np.ndarray  # f64[S], probability that a state emits the last letter
    emissions_SxA: np.ndarray  # f64[S, A]


def hidden_markov(
    transitions: Mapping[str, Mapping[str, float]],
    emissions: Mapping[str, Sequence[float] | np.ndarray],
) -> HiddenMarkov:
    """Returns the model of tables of named states.

    >>> coin = hidden_markov({"begin": {"x": 1}, "x": {"x": 0.5, "end": 0.5}}, {"x": (0.9, 0.1)})
    >>> np.exp(log_likelihoods(coin, np.array([[0, 1]]))).round(4)  # 0.9 * 0.5 * 0.1 * 0.5
    array([0.0225])

    Args:
      transitions: the probability of each next state, for "begin" and every other state but "end".
      emissions: the probability of each letter, for each state that emits. All others are silent.

    Raises ValueError if the probabilities of a state do not sum to 1, and for a step to a state
    that has no steps itself.
    """
    for name, row in (*transitions.items(), *emissions.items()):
        total = sum(row.values() if isinstance(row, Mapping) else row)
        if not np.isclose(total, 1):
            raise ValueError(
                f"Got probabilities of the state {name!r} that sum to {total:.6g}, expected 1: "
                "divide them by their sum."
            )
    if unknown := {*emissions, *itertools.chain(*transitions.values())} - {*transitions, END}:
        raise ValueError(
            f"Got the state {min(unknown)!r} without transitions, expected transitions of each "
            f"state but {END!r}: correct its name, or add them."
        )
    silent = [name for name in transitions if name not in emissions]
    names = (*emissions, END)

    def table(sources: Sequence[str], targets: Sequence[str]) -> np.ndarray:
        return np.array([[transitions[s].get(t, 0.0) for t in targets] for s in sources])

    # (I - T)^-1 counts visits of silent states; the product leads to the next state that emits.
    visits = np.eye(len(silent)) - table(silent, silent)
    from_silent = np.linalg.solve(visits, table(silent, names))
    from_emitting = table([*emissions], names) + table([*emissions], silent) @ from_silent
    return HiddenMarkov(
        names_S=tuple(emissions),
        start_S=from_silent[silent.index(BEGIN), :-1],
        transitions_SxS=from_emitting[:, :-1],
        end_S=from_emitting[:, -1],
        emissions_SxA=np.array([*emissions.values()], np.float64),
    )


def reversed_in_time(model: HiddenMarkov) -> HiddenMarkov:
    """Returns the model that emits each sequence backwards with the same probability.

    The probability of a step from t to s is (visits of s) * (step from s to t) / (visits of t).
    """
    visits_S = expected_visits(model)
    return model._replace(
        start_S=visits_S * model.end_S,
        transitions_SxS=model.transitions_SxS.T * visits_S / visits_S[:, None],
        end_S=model.start_S / visits_S,
    )


def expected_visits(model: HiddenMarkov) -> np.ndarray:
    """Returns the expected number f64[S] of letters of a sequence that each state emits."""
    return np.linalg.solve(np.eye(len(model.start_S)) - model.transitions_SxS.T, model.start_S)


def log_likelihoods(model: HiddenMarkov, letters_BxL: np.ndarray) -> np.ndarray:
    """Returns the log-probability f64[B] of each sequence, in nats, by the forward algorithm.

    Args:
      letters_BxL: numbers of letters, at least one each, with `PADDING` after shorter sequences.
    """
    log_p_B, states_BxS = _forward(model, letters_BxL)
    with np.errstate(divide="ignore"):  # An impossible sequence has -inf.
        return log_p_B + np.log(states_BxS @ model.end_S)


def letter_log_likelihoods(
    model: HiddenMarkov, before_BxL: np.ndarray, after_BxL: np.ndarray
) -> np.ndarray:
    """Returns f64[B, A]: `log_likelihoods` of sequences with each letter between two parts.

    The forward algorithm reads the part before the letter, and the part after it backwards.

    Args:
      before_BxL: letters before the place, as in `log_likelihoods`.
      after_BxL: letters after the place, in reverse order.
    """
    log_p_B = np.zeros(len(before_BxL))
    weights_BxS = 1 / expected_visits(model)[None]  # Both directions count a visit of the place.
    for direction, letters_BxL in ((model, before_BxL), (reversed_in_time(model), after_BxL)):
        log_part_B, states_BxS = _forward(direction, letters_BxL)
        log_p_B += log_part_B
        weights_BxS = weights_BxS * (states_BxS @ direction.transitions_SxS)
    with np.errstate(divide="ignore"):
        return log_p_B[:, None] + np.log(weights_BxS @ model.emissions_SxA)


def _forward(model: HiddenMarkov, letters_BxL: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the log-probability f64[B] of the letters, and the shares f64[B, S] of last states.

    The probabilities of the states are divided by their sum after each letter, and the logarithms
    of these sums are added, so that long sequences do not underflow.
    """
    emissions_AxS = model.emissions_SxA.T
    log_p_B = np.zeros(len(letters_BxL))
    shares_BxS = np.zeros((len(letters_BxL), len(model.start_S)))
    for k, letters_B in enumerate(letters_BxL.T):
        going = letters_B != PADDING
        moved = shares_BxS[going] @ model.transitions_SxS if k else model.start_S
        joint = moved * emissions_AxS[letters_B[going]]
        sums = joint.sum(1)
        with np.errstate(divide="ignore"):
            log_p_B[going] += np.log(sums)
        shares_BxS[going] = joint / np.where(sums, sums, 1)[:, None]
    return log_p_B, shares_BxS


def sampled(
    rng: np.random.Generator, model: HiddenMarkov, count: int, longest: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns (letters i[L], states i[L]) of sequences drawn from the model.

    `count` sequences are drawn, and those with more than `longest` letters are left out. A sequence
    is at least one letter long: the probability of no letter is left out.
    """
    moves = _Rows(np.column_stack([model.transitions_SxS, model.end_S]))
    emissions = _Rows(model.emissions_SxA)
    end = len(model.start_S)
    states_BxL = np.full((count, longest + 1), end)
    letters_BxL = np.full((count, longest), PADDING)
    first = _Rows(model.start_S[None] / model.start_S.sum())
    states_BxL[:, 0] = first.drawn(rng, np.zeros(count, np.int64))
    for k in range(longest):
        (going,) = np.nonzero(states_BxL[:, k] != end)
        states = states_BxL[going, k]
        letters_BxL[going, k] = emissions.drawn(rng, states)
        states_BxL[going, k + 1] = moves.drawn(rng, states)
    lengths_B = np.sum(states_BxL != end, 1)
    return [
        (letters_BxL[b, :n], states_BxL[b, :n]) for b, n in enumerate(lengths_B) if n <= longest
    ]


class _Rows:
    """Rows of probabilities, from which one column is drawn for each of many rows at once."""

    def __init__(self, rows: np.ndarray):
        self.columns = rows.shape[1]
        sums = np.minimum(np.cumsum(rows, 1), 1)
        # The last column with a probability takes what rounding has left out.
        sums[np.arange(self.columns) >= (rows > 0).cumsum(1).argmax(1)[:, None]] = 1
        self.sums = (sums + np.arange(len(rows))[:, None]).ravel()

    def drawn(self, rng: np.random.Generator, rows: np.ndarray) -> np.ndarray:
        found = np.searchsorted(self.sums, rows + rng.random(len(rows)), side="right")
        return found - rows * self.columns
