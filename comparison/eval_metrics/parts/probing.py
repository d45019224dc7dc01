"""Linear probes: multinomial logistic regression on frozen features.

    probe = fit_probe(features_NxE, labels_N, classes=6)
    probe.predict(others_MxE)                                # i[M]

Features are standardized, and the strength of the L2 penalty is chosen on the last fifth of the
training examples, so that a probe is fair to features of any scale and width.

Letters: N examples, E features, C classes.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.optimize import minimize

STRENGTHS = (1e-3, 1e-2, 1e-1)  # strengths of the penalty, for a mean loss in nats
HELD_EVERY = 5  # one in this many training examples chooses the strength
ITERATIONS = 100


class Probe(NamedTuple):
    mean: np.ndarray  # f[E]
    scale: np.ndarray  # f[E]
    weights: np.ndarray  # f[E, C]
    bias: np.ndarray  # f[C]
    chosen_by: float  # accuracy on the training examples that chose the strength

    def predict(self, features_NxE) -> np.ndarray:
        """Returns the most likely class i[N] of each example. The first class wins ties."""
        standard_NxE = (np.asarray(features_NxE) - self.mean) / self.scale
        return np.argmax(standard_NxE @ self.weights + self.bias, -1)


def fit_probe(features_NxE, labels_N, classes: int) -> Probe:
    """Fits a probe to the training examples.

    With constant features, it predicts the majority class.

    Raises ValueError for features that are not finite, and for too few examples.
    """
    features_NxE = np.asarray(features_NxE, np.float32)
    labels_N = np.asarray(labels_N)
    if not np.isfinite(features_NxE).all():
        raise ValueError(
            "Got features that are not finite: the model's training may have diverged."
        )
    if len(labels_N) < HELD_EVERY:
        raise ValueError(
            f"Got {len(labels_N)} training examples, expected {HELD_EVERY} or more for a probe."
        )
    held = validation_mask(len(labels_N))
    scored = {}
    for strength in STRENGTHS:
        probe = _fitted(features_NxE[~held], labels_N[~held], classes, strength)
        scored[strength] = np.mean(probe.predict(features_NxE[held]) == labels_N[held])
    best = max(scored, key=lambda strength: (scored[strength], strength))
    probe = _fitted(features_NxE, labels_N, classes, best)
    return probe._replace(chosen_by=float(scored[best]))


def validation_mask(examples: int) -> np.ndarray:
    """Returns bool[N]: the last fifth of the examples, which choose the settings."""
    return np.arange(examples) >= examples - examples // HELD_EVERY


def best_probe(features: Mapping[Any, Any], labels_N, classes: int) -> tuple[Any, Probe]:
    """Returns the name and the probe of the features that predict the held-out examples best.

    The first features win ties.
    """
    probes = {
        name: fit_probe(features_NxE, labels_N, classes) for name, features_NxE in features.items()
    }
    best = max(probes, key=lambda name: probes[name].chosen_by)
    return best, probes[best]


def probed(
    labels: dict[str, list[str]], features: Callable[[str], dict[Any, np.ndarray]]
) -> tuple[Any, list[str]]:
    """Returns the best layer and the classes of "validation" predicted by its probe.

    `features` returns the features f[N, E] of a split by layer.
    """
    classes, labels_N = np.unique(labels["train"], return_inverse=True)
    layer, probe = best_probe(features("train"), labels_N, classes.size)
    return layer, classes[probe.predict(features("validation")[layer])].tolist()


def _fitted(features_NxE, labels_N, classes: int, strength: float) -> Probe:
    mean, scale = standardization(features_NxE)
    standard_NxE = jnp.asarray((features_NxE - mean) / scale, jnp.float32)
    width = standard_NxE.shape[1]
    # With constant features, predictions stay at the shares of the classes.
    start = np.concatenate([np.zeros(width * classes), log_shares(labels_N, classes)])

    def loss(flat):
        value, gradient = _loss(jnp.asarray(flat, jnp.float32), standard_NxE, labels_N, strength)
        return float(value), np.asarray(gradient, np.float64)

    solution = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS}).x
    weights, bias = _parts(solution, width)
    return Probe(mean, scale, weights, bias, chosen_by=np.nan)


@jax.jit
@jax.value_and_grad
def _loss(flat, standard_NxE, labels_N, strength):
    weights, bias = _parts(flat, standard_NxE.shape[1])
    logits = standard_NxE @ weights + bias[None]
    nats_N = optax.softmax_cross_entropy_with_integer_labels(logits, labels_N)
    return jnp.mean(nats_N) + strength / 2 * jnp.sum(weights**2)


def _parts(flat, width: int):
    classes = flat.size // (width + 1)
    return flat[:-classes].reshape(width, classes), flat[-classes:]


def log_shares(labels_N: np.ndarray, classes: int) -> np.ndarray:
    """Returns the logarithms f[C] of the classes' shares, with one added to each count."""
    return np.log((np.bincount(labels_N, minlength=classes) + 1) / (len(labels_N) + classes))


def standardization(features_NxE) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean and the scale of each feature, 1 for a constant feature."""
    mean = features_NxE.mean(0)
    scale = features_NxE.std(0)
    return mean, np.where(scale > 1e-6 * (1 + abs(mean)), scale, 1.0)
