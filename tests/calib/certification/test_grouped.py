"""The test of problems in groups: its size with outcomes that agree within groups, and what groups change."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fsd_calib.certification import grouped, multi_seed
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.harm import difference_of, harm_of
from fsd_calib.certification.looks import Looks
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.power import cells

ACCURACY, WANTED = 0.8, 0.98


def alike(
    groups: int, each: int | NDArray[np.int64], icc: float, churn: float, rng: np.random.Generator,
    retention: float = WANTED,
) -> Paired:  # fmt: skip
    """Problems in groups that flip with beta-binomial counts of an intra-class correlation.

    Args:
        each: Problems of a group, or of each group.
    """
    law, shape = cells(ACCURACY, churn, retention), (1 - icc) / icc
    rate_lost, rate_gained = (
        rng.beta(share * shape, (1 - share) * shape, groups).repeat(each) for share in (law.lost, law.gained)
    )
    number = np.arange(groups).repeat(each)
    drawn = rng.random((3, len(number)))
    lost = drawn[0] < rate_lost
    gained = ~lost & (drawn[1] < rate_gained)
    right = drawn[2] < law.both_right / (law.both_right + law.both_wrong)
    target, fuzzy = lost | (~gained & right), gained | (~lost & right)
    return Paired(target[:, None], fuzzy[:, None], number)


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "each", "icc"), [(132, 5, 0.3), (66, 10, 0.3), (132, 5, 0.1)])
def test_the_size_is_kept_where_problems_of_a_group_flip_together(groups: int, each: int, icc: float) -> None:
    """2,000 draws: more than .045 + 3 standard errors by chance has a probability of .001, at the true size .045."""
    rng = np.random.default_rng(3)
    passed = sum(grouped.p_value(alike(groups, each, icc, 0.04, rng), WANTED) <= 0.045 for _ in range(2000))
    assert passed / 2000 <= 0.045 + 3 * (0.045 * 0.955 / 2000) ** 0.5


@pytest.mark.parametrize(
    "sizes",
    [
        np.array([60] * 3 + [2] * 97),
        np.minimum(np.random.default_rng(1).zipf(1.7, 200), 100),
        pytest.param(np.random.default_rng(2).geometric(0.2, 120), marks=pytest.mark.slow),
        pytest.param(
            np.maximum(np.random.default_rng(3).lognormal(1.2, 1, 120), 1).astype(int), marks=pytest.mark.slow
        ),
    ],
    ids=["three large ones", "Zipf", "geometric", "lognormal"],
)
def test_the_size_is_kept_where_groups_differ_in_size(sizes: NDArray[np.int64]) -> None:
    """1,000 draws: more than .045 + 3 standard errors by chance has a probability of .001, at the true size .045.

    By the variance of the sums alone the first has .13, the second .10.
    """
    rng = np.random.default_rng(6)
    passed = sum(grouped.p_value(alike(len(sizes), sizes, 0.3, 0.06, rng), WANTED) <= 0.045 for _ in range(1000))
    assert passed / 1000 <= 0.045 + 3 * (0.045 * 0.955 / 1000) ** 0.5


def test_as_if_they_were_independent_the_test_is_wrong_far_more_often() -> None:
    """What groups are for. 300 draws; at a size of .13 fewer than 20 passing has a probability below .001."""
    rng = np.random.default_rng(4)
    drawn = [alike(66, 10, 0.3, 0.1, rng) for _ in range(300)]
    passed = sum(multi_seed.p_value(Paired(one.target, one.fuzzy), WANTED) <= 0.045 for one in drawn)
    assert passed >= 20


@pytest.mark.parametrize("wanted", [0.95, 0.98, 1.0])
@pytest.mark.parametrize("seed", range(20))
def test_groups_of_one_are_problems(seed: int, wanted: float) -> None:
    """Fixed draws: of 2,100 none differ by more. With fewer groups that flip some do."""
    one = alike(600, 1, 0.01, 0.1, np.random.default_rng(seed))
    alone = Paired(one.target, one.fuzzy)
    by_group, by_problem = grouped.p_value(one, wanted), multi_seed.p_value(alone, wanted)
    assert by_group == pytest.approx(by_problem, abs=0.02)  # the tail of Student's law is a little heavier
    assert difference_of(one, 0.95, Claim(0.9)) == pytest.approx(difference_of(alone, 0.95, Claim(0.9)))


def test_names_of_groups_and_the_order_of_problems_do_not_matter() -> None:
    one, rng = alike(66, 10, 0.3, 0.1, np.random.default_rng(5)), np.random.default_rng(6)
    assert one.groups is not None
    order = rng.permutation(one.problems)
    other = Paired(one.target[order], one.fuzzy[order], 7 * one.groups[order] + 3)
    assert grouped.p_value(other, WANTED) == pytest.approx(grouped.p_value(one, WANTED))


def test_bounds_and_intervals_are_wider() -> None:
    one = alike(66, 10, 0.3, 0.1, np.random.default_rng(7), retention=1.0)
    alone = Paired(one.target, one.fuzzy)
    claim = Claim(WANTED, looks=Looks((one.problems,)))
    assert claim.bounds(one, 0.05) < claim.bounds(alone, 0.05)
    (_, low, high), (_, least, most) = difference_of(one, 0.95, Claim(0.9)), difference_of(alone, 0.95, Claim(0.9))
    assert low < least < most < high
    harm, of_each = harm_of(one, claim, 0.05), harm_of(alone, claim, 0.05)
    assert harm is not None
    assert of_each is not None
    assert harm.rate == of_each.rate
    assert harm.at_most > of_each.at_most


def test_where_few_groups_flipped_the_test_bets() -> None:
    target = np.ones((100, 1), bool)
    fuzzy = target.copy()
    fuzzy[:10] = False  # all of one group
    one = Paired(target, fuzzy, np.arange(100) // 10)
    assert grouped.p_value(one, 0.5) > 0.01  # ten groups cannot show more
    assert grouped.p_value(one, 0.95) == 1.0


def test_problems_that_are_added_are_groups_of_their_own() -> None:
    one = alike(20, 5, 0.3, 0.1, np.random.default_rng(8)).followed_by(np.ones(3, bool), np.zeros(3, bool))
    assert one.groups is not None
    assert len(set(one.groups.tolist())) == 23
    assert one.unit_sizes.tolist() == [5.0] * 20 + [1.0] * 3


@pytest.mark.parametrize(("lost", "certified"), [(8, True), (9, False)])
def test_of_these_very_problems_nothing_is_left_to_chance(lost: int, certified: bool) -> None:
    """A regression: groups were counted against the number of problems, as if most were still to come."""
    fuzzy = np.ones((400, 1), bool)
    fuzzy[:lost] = False
    claim = Claim(WANTED, guarantee="dataset", looks=Looks((400,)))
    whole = Paired(np.ones_like(fuzzy), fuzzy, np.arange(400) // 5)
    assert claim.p_value(whole) == (0.0 if certified else 1.0)
    assert claim.bounds(whole, 0.045)[0] == pytest.approx(1 - lost / 400)
    harm = harm_of(whole, claim, 0.045)
    assert harm is not None
    assert harm.rate == lost / 400
    assert harm.at_most == pytest.approx(lost / 400)
    most = Paired(whole.target[:390], whole.fuzzy[:390], np.arange(390) // 5)
    assert claim.p_value(most) == 1.0  # the others may be lost
