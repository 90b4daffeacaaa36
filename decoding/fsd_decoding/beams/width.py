"""The dynamic width of a layer: how many of its drafted samples are likely to be accepted."""

from __future__ import annotations

from collections.abc import Sequence


def accepted_at_least(chances: Sequence[float], samples: int) -> list[float]:
    """Returns the probability that at least n of the samples are accepted, for n = 0 … samples.

    By a dynamic programme over samples, with the number accepted and that of rejections since the last acceptance as
    its state (DSBD, arXiv 2409.16560, section 4.2).

    Args:
        chances: the probability that a sample is accepted after 0, 1, … rejections in a row; the last holds for more.
    """
    last = len(chances) - 1
    states = {(0, 0): 1.0}  # (accepted, rejections in a row) -> probability
    for _ in range(samples):
        following: dict[tuple[int, int], float] = {}
        for (accepted, rejected), probability in states.items():
            chance = chances[min(rejected, last)]
            for state, share in (((accepted + 1, 0), chance), ((accepted, rejected + 1), 1.0 - chance)):
                following[state] = following.get(state, 0.0) + probability * share
        states = following
    exactly = [sum(p for (accepted, _), p in states.items() if accepted == n) for n in range(samples + 1)]
    return [sum(exactly[n:]) for n in range(samples + 1)]


def dynamic_width(chances: Sequence[float], samples: int, chance: float, least: int, most: int) -> int:
    """Returns the largest n of least … most of which P(at least n samples are accepted) >= chance; else the least."""
    reached = accepted_at_least(chances, samples)
    return max((n for n in range(least, most + 1) if reached[n] >= chance), default=least)
