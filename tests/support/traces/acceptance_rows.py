"""Training rows whose acceptance probability is known, for tests of acceptance models."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import expit

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.bool_]

FEATURES = 6
SHARE = 2  # not the first column, which a model might assume by default
SHARES = np.linspace(-5, 9, 29)  # wider on both sides than the range that `rows` draws from


def rows(count: int, seed: int, hidden: int = 0) -> tuple[Array, Labels, Array]:
    """Returns X (count, FEATURES + hidden), the labels y, and the probabilities that y was drawn with.

    The columns of X are an entropy, a token kind, the share u, two features that matter only through their product,
    noise, and a hidden state of which only the first value matters. The probability rises with the share, most where
    the entropy is large.
    """
    rng = np.random.default_rng(seed)
    entropy, kind, share = rng.gamma(1, 1, count), rng.integers(0, 4, count), rng.uniform(-4, 8, count)
    left, right, noise = rng.normal(size=(3, count))
    state = rng.normal(size=(count, hidden))
    logit = 3 - 2 * entropy + (kind == 1) + left * right + 0.4 * share * np.minimum(entropy, 1)
    chance = expit(logit + (2 * state[:, 0] if hidden else 0))
    values = np.column_stack([entropy, kind, share, left, right, noise, state])
    return values, rng.random(count) < chance, chance
