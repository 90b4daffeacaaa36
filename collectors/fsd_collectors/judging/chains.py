"""Which mismatches of a problem are swapped, and with which probabilities.

The mismatches of a text are cut into strata of about equal sizes, one for each position to label. In each one a
mismatch is drawn, each with the same probability. So any sum over the mismatches of all strata has an unbiased
estimate: the sum over those that were drawn, divided by their probabilities (Horvitz and Thompson, 1952).

Swaps go from left to right, as in AutoJudge (arXiv 2504.20039): one that keeps the answer right stays in the text, and
the next stratum is of the text that follows it. With a stratum for each mismatch that is AutoJudge's own search. Or
they are single: every one is made in the target's own text.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from random import Random

from fsd_collectors.judging.reading import Mismatches


@dataclass(frozen=True)
class Swap:
    """A mismatch in whose place x is put."""

    context: Sequence[int]  # the text's tokens before it
    at: Mismatches  # this one alone
    probability: float
    replaced: Sequence[int]  # positions of the text before it where a draft is rejected

    @property
    def position(self) -> int:
        return int(self.at.position[0])

    @property
    def tokens(self) -> list[int]:
        """The text up to x."""
        return [*self.context, int(self.at.drafted[0])]


@dataclass(frozen=True)
class Outcome:
    """What became of a text by a swap.

    `label`: 1 where the answer is wrong now and 0 where it is right, or the change of the mean log-likelihood.
    """

    label: float
    spent: int
    tokens: Sequence[int] = ()  # of the text with the swap
    mismatches: Mismatches | None = None  # those behind the swap, where it may stay


@dataclass(frozen=True)
class Label:
    """A swap with its outcome."""

    swap: Swap
    outcome: Outcome
    stayed: bool


Chain = Generator[list[Swap], list[Outcome], list[Label]]
"""Asks for the outcomes of swaps that do not depend on each other, and returns the labels of a problem."""


def left_to_right(tokens: Sequence[int], mismatches: Mismatches, quota: int, share: float, random: Random) -> Chain:
    """Labels at most `quota` mismatches of a text, each in the text that the swaps before it have left.

    Args:
        tokens, mismatches: of the target's own text.
        share: the probability with which the problem was drawn.
    """
    labels, replaced = list[Label](), list[int]()
    while len(labels) < quota and len(mismatches):
        size = math.ceil(len(mismatches) / (quota - len(labels)))
        swap = _drawn(tokens, mismatches[:size], share, random, replaced)
        (outcome,) = yield [swap]
        stays = not outcome.label
        labels.append(Label(swap, outcome, stays))
        last = mismatches.position[size - 1]  # of the stratum, which is done with
        if stays:
            assert outcome.mismatches is not None
            tokens, mismatches, replaced = outcome.tokens, outcome.mismatches, [*swap.replaced]
        done = mismatches.position <= last
        replaced += mismatches.position[done].tolist()
        mismatches = mismatches[~done]
    return labels


def single(tokens: Sequence[int], mismatches: Mismatches, quota: int, share: float, random: Random) -> Chain:
    """Labels `quota` mismatches of a text, each in the target's own; the arguments are those of `left_to_right`."""
    swaps, left, replaced = [], quota, list[int]()
    while left and len(mismatches):
        size = math.ceil(len(mismatches) / left)
        swaps.append(_drawn(tokens, mismatches[:size], share, random, replaced))
        replaced += mismatches.position[:size].tolist()
        mismatches, left = mismatches[size:], left - 1
    outcomes = (yield swaps) if swaps else []
    return [Label(swap, outcome, False) for swap, outcome in zip(swaps, outcomes, strict=True)]


def _drawn(tokens: Sequence[int], stratum: Mismatches, share: float, random: Random, replaced: Sequence[int]) -> Swap:
    """One mismatch of a stratum, each with the same probability; `replaced` are positions before the stratum."""
    chosen = random.randrange(len(stratum))
    at = stratum[chosen : chosen + 1]
    before = [*replaced, *stratum.position[:chosen].tolist()]
    return Swap(list(tokens[: int(at.position[0])]), at, share / len(stratum), before)


def quotas(most: Sequence[int], budget: int, random: Random) -> tuple[list[int], list[float]]:
    """Shares a budget of positions among problems.

    Where it does not suffice for all, a problem has a share in proportion to its mismatches, rounded up or down by
    systematic sampling: the quotas add up to the budget, and the expectation of each is its share.

    Args:
        most: what each problem can use.

    Returns:
        The quotas, and the probabilities with which they are above 0.
    """
    whole = sum(most)
    if whole <= budget:
        return list(most), [1.0] * len(most)
    begin = random.random()
    ends = [math.floor(begin + budget * (used / whole)) for used in accumulate(most, initial=0)]
    return [after - before for before, after in pairwise(ends)], [min(1.0, budget * each / whole) for each in most]
