"""Whether two sides answer alike: an exact test of answers that were asked for several times from each.

If both sides answer a prompt by one law, whatever that is, then which of its answers came from which side tells
nothing: labels are exchangeable within a prompt. So shuffling them gives the law of any statistic (Fisher's
randomisation test; Good, Permutation, Parametric and Bootstrap Tests of Hypotheses, 2005, chapter 3), and the noise
that a side has by itself, by rounding in other batches or by sampling, is the floor without being modelled.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SHUFFLES, _BLOCK = 20_000, 1000  # and so many at once
_ROUNDING = 1e-9  # of a sum

Answers = Sequence[Sequence[Hashable]]
"""Of each prompt, what one side answered, as often as it was asked."""


class Differing(NamedTuple):
    """How often two answers to one prompt differ, as shares of pairs.

    Attributes:
        reference, other: Within each side.
        between: Across.
        p_value: Of the hypothesis that both sides answer by one law, against the one that they differ more across
            than within.
    """

    reference: float
    other: float
    between: float
    p_value: float


def compare(reference: Answers, other: Answers, seed: int = 0) -> Differing:
    """Compares the answers of two sides to the same prompts, each asked equally often, twice at least.

    The p-value is exact: under the hypothesis it is at most any level with at most that probability. `seed`: of the
    shuffles.
    """
    times = len(reference[0])
    equal = np.stack([_equal([*mine, *theirs]) for mine, theirs in zip(reference, other, strict=True)])  # (n, 2k, 2k)
    labels = np.arange(2 * times) >= times
    within = equal[:, :times, :times], equal[:, times:, times:]
    pairs = times * (times - 1)
    shares = [1 - (block.sum() - len(equal) * times) / (len(equal) * pairs) for block in within]
    between = 1 - float(equal[:, :times, times:].mean())
    differing = equal[~equal.all((1, 2))]  # the others are the same under every labelling
    return Differing(float(shares[0]), float(shares[1]), between, _p_value(differing, labels, seed))


def least_p_value(prompts: int, times: int) -> float:
    """Returns the p-value of answers that all differ across the sides, and never within."""
    return max((2 / math.comb(2 * times, times)) ** prompts, 1 / (_SHUFFLES + 1))


def _equal(answers: Sequence[Hashable]) -> NDArray[np.float64]:
    """Which pairs are equal."""
    numbers = np.unique(np.array([hash(each) for each in answers]), return_inverse=True)[1]
    return np.asarray(numbers[:, None] == numbers[None, :], np.float64)


def _p_value(equal: NDArray[np.float64], labels: NDArray[np.bool_], seed: int) -> float:
    """The share of labellings with a statistic as large, the real one among them.

    The statistic is how many more pairs differ across than within the sides, summed over prompts.
    """
    if not len(equal):
        return 1.0
    random, signs = np.random.default_rng(seed), np.where(labels, 1.0, -1.0)
    # Pairs within a side have the product 1, those across -1: the sum over equal pairs grows as the sides differ.
    observed = float(np.einsum("nij,i,j->", equal, signs, signs))
    count = 1
    for _ in range(0, _SHUFFLES, _BLOCK):
        shuffled = random.permuted(np.broadcast_to(signs, (_BLOCK, len(equal), len(signs))), axis=2)
        sums = np.einsum("bni,nij,bnj->b", shuffled, equal, shuffled, optimize=True)
        count += int((sums >= observed - _ROUNDING).sum())
    return count / (_SHUFFLES + 1)
