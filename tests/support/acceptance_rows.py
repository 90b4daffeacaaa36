"""Rows whose chance of acceptance is known, for tests of models. Knows no model."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import expit

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.bool_]

FEATURES = 6
SHARE = 2  # not the first column, which a model might take for granted
SHARES = np.linspace(-5, 9, 29)  # more than `rows` draws, on both sides


def rows(count: int, seed: int, hidden: int = 0) -> tuple[Array, Labels, Array]:
    """X (count, FEATURES + hidden), y, and the chances y was drawn with.

    Columns: entropy-like, token class, share, two that only count together, noise; of a hidden state the first counts.
    The chance rises with the share, most where the entropy is large.
    """
    rng = np.random.default_rng(seed)
    entropy, kind, share = rng.gamma(1, 1, count), rng.integers(0, 4, count), rng.uniform(-4, 8, count)
    left, right, noise = rng.normal(size=(3, count))
    state = rng.normal(size=(count, hidden))
    logit = 3 - 2 * entropy + (kind == 1) + left * right + 0.4 * share * np.minimum(entropy, 1)
    chance = expit(logit + (2 * state[:, 0] if hidden else 0))
    values = np.column_stack([entropy, kind, share, left, right, noise, state])
    return values, rng.random(count) < chance, chance
