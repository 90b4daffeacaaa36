"""Retention at equal tokens per round, as benchmarks/divergences.py reads it off decodings, with its intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.calibration.equal_tokens import Curve, at_levels, bracketing, differences

EMITTED = [[40] * 4, [40] * 4, [40] * 4]
ROUNDS = [[10] * 4, [8] * 4, [5] * 4]  # 4, 5 and 8 tokens a round


def test_between_two_thresholds_a_curve_is_straight() -> None:
    right = [[True] * 4, [True, True, True, False], [True, False, False, False]]
    curve = Curve([0.1, 0.2, 0.3], right, EMITTED, ROUNDS)
    assert at_levels(curve, [True] * 4, [3.0, 4.0, 4.5, 5.0, 6.5, 8.0, 9.0]) == pytest.approx(
        [1.0, 1.0, 0.875, 0.75, 0.5, 0.25, 0.0]
    )
    assert at_levels(curve, [True, True, False, False], [5.0]) == pytest.approx([1.5])  # of the target's two


def test_tokens_a_round_are_those_of_all_problems_together() -> None:
    curve = Curve([0.1, 0.2], [[True, True], [True, False]], [[10, 90], [10, 90]], [[10, 10], [5, 5]])
    assert [one["tokens_a_round"] for one in curve.points([True, True])] == [5.0, 10.0]
    assert at_levels(curve, [True, True], [7.5]) == pytest.approx([0.75])


def test_a_difference_is_paired() -> None:
    """Two divergences that lose the same problems differ by nothing, in every draw of problems."""
    random = np.random.default_rng(0)
    right = (random.random((3, 200)) < [[0.9], [0.8], [0.5]]).tolist()
    spread = Curve([0.1, 0.2, 0.3], right, [[40] * 200] * 3, [[10] * 200, [8] * 200, [5] * 200])
    worse = Curve([0.1, 0.2, 0.3], [right[1], right[2], [False] * 200], spread.emitted, spread.rounds)
    for one in differences(spread, spread, [True] * 200, [4.5, 6.0], 50):
        assert (one.difference, one.lower, one.upper) == (0.0, 0.0, 0.0)
    for one in differences(spread, worse, [True] * 200, [4.5, 6.0], 50):
        assert 0 < one.lower < one.difference < one.upper
    level, difference, *_ = differences(spread, worse, [True] * 200, [4.0], 50)[0]
    assert level == 4.0
    assert difference == pytest.approx(sum(right[0]) / 200 - sum(right[1]) / 200)


def test_intervals_hold_about_as_often_as_they_say() -> None:
    # A 95 % interval over 300 problems, 200 times: fewer than 168 or all of them hold with probability below 1e-6
    # (binomial of .95: 1e-8 and 3.5e-5 for "all", so only the lower side is asserted).
    random, held = np.random.default_rng(1), 0
    for _ in range(200):
        ours, theirs = ((random.random((1, 300)) < share).tolist() for share in (0.9, 0.85))
        one, other = (Curve([0.1], right, [[40] * 300], [[10] * 300]) for right in (ours, theirs))
        found = differences(one, other, [True] * 300, [4.0], 200)[0]
        held += found.lower <= 0.05 <= found.upper
    assert held >= 168


@given(
    steps=st.lists(st.floats(0.0, 0.05), min_size=2, max_size=400),
    levels=st.lists(st.floats(4.0, 6.0), min_size=1, max_size=5),
)
def test_every_level_in_reach_is_bracketed_closely(steps: list[float], levels: list[float]) -> None:
    tokens = 4.0 + np.cumsum(steps)
    decoded: list[int] = []

    def tokens_a_round(rank: int) -> float:
        decoded.append(rank)
        return float(tokens[rank])

    ranks = bracketing(tokens_a_round, len(steps) - 1, levels)
    assert ranks == sorted(set(ranks))
    assert len(decoded) == len(set(decoded))  # one decoding per rank
    for level in levels:
        if tokens[0] <= level < tokens[-1]:
            below = max(rank for rank in ranks if tokens[rank] <= level)
            above = min(rank for rank in ranks if rank > below)
            assert above == below + 1 or tokens[above] - tokens[below] < 0.02 + 1e-9
