"""What is believed of settings nobody tried: dips, draft lengths, sureness, and the bar that beliefs are held to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsd_calib.certification.power import power
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.search.bar import Bar
from fsd_calib.search.belief import Belief, Believed, Points

BAR = Bar(wanted=0.98, accuracy=0.9, tuning=900, certification=2100, delta=0.03)
ARM = Configuration("fsd-coupled", "js", 8)
FLIPPED = 0.02


def points(shares: list[float], length: int = 8, policy: str | None = None) -> Points:
    arm = Configuration("fsd-coupled", "js", length, policy=policy)
    return Points([arm] * len(shares), np.array(shares), np.full(len(shares), FLIPPED))


def after(shown: dict[float, float], problems: int = BAR.tuning, length: int = 8) -> Belief:
    """What is believed once these shares showed that retention."""
    counts = np.full(len(shown), problems)
    return Belief(points(list(shown), length), np.array(list(shown.values())), counts, BAR, [None])


def about(belief: Belief, *shares: float, length: int = 8) -> Believed:
    return belief.about(points(list(shares), length))


def test_a_dip_is_believed_and_so_is_what_lies_behind_it() -> None:
    belief = after({2.0: 1.0, 2.6: 0.996, 3.0: 0.985, 3.4: 0.995, 3.8: 1.001})
    before, dip, behind = about(belief, 2.0, 3.0, 3.8).mean
    assert dip < min(before, behind) - 0.005


def test_a_cliff_far_away_does_not_spoil_a_plateau() -> None:
    belief = after({2.5: 1.0, 3.0: 0.999, 3.5: 1.0, 5.5: 0.7})
    assert about(belief, 3.0).mean[0] == pytest.approx(1.0, abs=0.004)
    assert about(belief, 5.5).mean[0] < 0.97


def test_one_draft_length_tells_of_another_but_less() -> None:
    belief = after({3.0: 0.985, 3.5: 0.985}, length=4)
    own, kin, nothing = (about(b, 3.2, length=length) for b, length in ((belief, 4), (belief, 10), (after({}), 10)))
    assert own.deviation[0] <= kin.deviation[0] < nothing.deviation[0]
    assert kin.mean[0] < nothing.mean[0] - 0.005


def test_what_was_tried_whole_teaches_nothing_more_and_what_was_tried_in_part_does() -> None:
    whole, part = (about(after({3.0: 0.99}, problems), 3.0) for problems in (BAR.tuning, 128))
    assert whole.learned[0] < 0.05 * part.learned[0]
    assert part.deviation[0] > whole.deviation[0]


def test_the_tuning_part_stays_a_sample_however_often_it_is_asked() -> None:
    """The same problems once more, at thresholds close by, are not other problems."""
    once = about(after({3.0: 0.99}), 3.0).deviation[0]
    often = about(after({3.0 + i / 100: 0.99 for i in range(-4, 5)}), 3.0).deviation[0]
    luck = BAR.per_change * (FLIPPED / BAR.tuning) ** 0.5
    assert 0.7 * luck < often <= once * 1.001


@given(order=st.permutations(range(5)))
@settings(max_examples=10)
def test_the_order_of_trials_does_not_matter(order: list[int]) -> None:
    shares, shown = [2.0, 2.6, 3.1, 3.7, 4.4], [1.0, 0.99, 0.985, 0.99, 0.96]
    mean = about(after(dict(zip(shares, shown, strict=True))), 2.8, 3.4, 4.0).mean
    other = about(after({shares[i]: shown[i] for i in order}), 2.8, 3.4, 4.0).mean
    assert other == pytest.approx(mean, abs=2e-4)


def test_policies_are_pooled_as_far_as_the_data_say_so() -> None:
    """Two shapes that agree everywhere are taken for alike, two that differ are not."""
    shares = [2.0, 2.5, 3.0, 3.5, 4.0]

    def unseen(own: list[float], other: list[float]) -> float:
        both = [points(shares, policy=name) for name in (None, "shape")]
        arms = [arm for some in both for arm in some.arms]
        tried = Points(arms, np.array(shares * 2), np.full(10, FLIPPED))
        belief = Belief(tried, np.array(own + other), np.full(10, BAR.tuning), BAR, [None, "shape", "third"])
        return float(belief.about(points([3.0], policy="third")).deviation[0])

    falling = [1.0, 0.995, 0.985, 0.975, 0.96]
    assert unseen(falling, falling) < unseen(falling, [0.96, 0.97, 0.985, 1.0, 1.01])


@given(
    retention=st.floats(0.975, 1.0), churn=st.floats(0.03, 0.1), problems=st.integers(1000, 4000),
    accuracy=st.floats(0.5, 0.95),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_the_chance_of_passing_is_the_tests_own(retention: float, churn: float, problems: int, accuracy: float) -> None:
    """Where dozens flip and the truth is known, a normal law is within five points."""
    bar = Bar(0.97, accuracy, 10**9, problems, 0.03)
    normal = bar.chance(np.array([retention]), np.zeros(1), np.array([churn]))[0]
    real = power(problems=problems, accuracy=accuracy, churn=churn, retention=retention, wanted=0.97, delta=0.03)
    assert normal == pytest.approx(real, abs=0.05)


@given(accuracy=st.floats(0.88, 0.94), problems=st.integers(1000, 4000), alone=st.floats(0.9, 1.0))
@settings(max_examples=20, deadline=None)
def test_so_is_that_of_an_accuracy_by_itself_whatever_the_target_solves(
    accuracy: float, problems: int, alone: float
) -> None:
    bar = Bar(0.9, alone, 10**9, problems, 0.03, absolute=True)
    normal = bar.chance(np.array([accuracy]), np.zeros(1), np.zeros(1))[0]
    real = power(problems=problems, accuracy=1.0, churn=1 - accuracy, retention=accuracy, wanted=0.9, delta=0.03)
    assert normal == pytest.approx(real, abs=0.06)


def test_an_accuracy_by_itself_is_held_to_another_bar() -> None:
    bar = Bar(0.85, 0.9, 900, 2100, 0.03, absolute=True)
    assert bar.lossless == 0.9
    assert bar.shown(-0.01) == pytest.approx(0.89)
    alone, worse = bar.chance(np.array([0.9, 0.86]), np.zeros(2), np.zeros(2))
    assert alone > 0.95 > 0.5 > worse
