"""The harm rate with its bound, and the difference in accuracy with its interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, multinomial

from fsd_calib.certification import bounds
from fsd_calib.certification.claim import Claim, Guarantee
from fsd_calib.certification.harm import difference_of, harm_of
from fsd_calib.certification.looks import Looks
from fsd_calib.certification.outcomes import Paired
from fsd_decoding.profile.certificate import OutcomeCounts
from support.calibration.paired_gradings import paired as shuffled

DELTA = 0.05
counts = st.tuples(*[st.integers(0, 40)] * 4).filter(lambda c: sum(c) > 0)


def paired(both_right: int, lost: int, gained: int, both_wrong: int, seeds: int = 1) -> Paired:
    """Returns so many problems of each kind in random order, all seeds of a problem alike."""
    one = shuffled(OutcomeCounts(both_right, lost, gained, both_wrong), np.random.default_rng(0))
    return Paired(np.repeat(one.target, seeds, 1), np.repeat(one.fuzzy, seeds, 1))


# A share from a count


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("share", [0.003, 0.02, 0.1, 0.5, 0.97])
@pytest.mark.parametrize("of", [1, 30, 256])
def test_bounds_of_a_share_keep_the_level(of: int, share: float) -> None:
    """Summed over all counts, so without simulation noise."""
    chances = binom.pmf(np.arange(of + 1), of, share)
    low, high = (np.array([bound(k, of, DELTA) for k in range(of + 1)]) for bound in (bounds.at_least, bounds.at_most))
    assert chances[low > share].sum() <= DELTA
    assert chances[high < share].sum() <= DELTA


def test_a_count_of_0_gives_the_rule_of_three() -> None:
    for of in (64, 256, 1000):
        assert 2.9 / of < bounds.at_most(0, of, DELTA) < 3 / of
        assert bounds.at_least(0, of, DELTA) == 0


# Harm


def test_harm_is_the_share_lost_of_the_targets_solved_problems() -> None:
    harm = harm_of(paired(90, 10, 7, 20), Claim(0.9, looks=Looks((127,))), DELTA)
    assert harm is not None
    assert (harm.rate, harm.at_most) == pytest.approx((0.1, bounds.at_most(10, 100, DELTA)))
    assert harm_of(paired(0, 0, 3, 4), Claim(0.9, looks=Looks((7,))), DELTA) is None


@given(counts, st.sampled_from([1, 3]), st.sampled_from(["population", "dataset"]))
def test_the_bound_of_harm_is_not_below_the_rate(
    c: tuple[int, int, int, int], seeds: int, guarantee: Guarantee
) -> None:
    claim = Claim(0.9, guarantee=guarantee, looks=Looks((sum(c),)))
    harm = harm_of(paired(*c, seeds=seeds), claim, DELTA)
    assert harm is None or 0 <= harm.rate <= harm.at_most + 1e-9 <= 1 + 1e-9


def test_gains_do_not_hide_harm() -> None:
    """Retention is 1 in both cases."""
    harms = [harm_of(paired(100 - k, k, k, 50), Claim(0.9, looks=Looks((150 + k,))), DELTA) for k in (0, 20)]
    assert [h.rate for h in harms if h] == [0.0, 0.2]


def test_harm_of_a_whole_dataset_has_no_uncertainty() -> None:
    harm = harm_of(paired(90, 10, 7, 20), Claim(0.9, guarantee="dataset", looks=Looks((127,))), DELTA)
    assert harm is not None
    assert harm.at_most == pytest.approx(harm.rate, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, 4])
def test_the_problem_is_the_unit_with_several_seeds(seeds: int) -> None:
    """Problems of which all seeds are lost, or none: the binomial of pairs would take seeds for problems, and err.

    Of 400 bounds at .05 more than 34 err with a chance below .002, were the seed not fixed and the level reached.
    """
    rng, truth, wrong, naive = np.random.default_rng(1), 0.1, 0, 0
    for _ in range(400):
        right = int(rng.binomial(120, 0.8))
        lost = int(rng.binomial(right, truth))
        harm = harm_of(paired(right - lost, lost, 0, 120 - right, seeds), Claim(0.9, looks=Looks((120,))), DELTA)
        assert harm is not None
        wrong += harm.at_most < truth
        naive += bounds.at_most(seeds * lost, seeds * right, DELTA) < truth
    assert wrong <= 34 < naive


def test_the_bound_of_harm_at_an_early_look_is_wider() -> None:
    looks = Looks((120, 700)), Looks((120,))
    ended, looked = (harm_of(paired(90, 10, 0, 20), Claim(0.9, looks=each), DELTA) for each in looks)
    assert ended is not None
    assert looked is not None
    assert ended.at_most > looked.at_most


# The difference


def test_the_interval_matches_the_paper() -> None:
    """Adjusted shares (f + 1) / (n + 2); by hand: 4/702 - 3/702, +- 1.95996 sqrt((7/702 - (1/702)^2) / 702)."""
    difference = difference_of(paired(650, 2, 3, 45), 0.95, Claim(0.9))
    reach = 1.959964 * math.sqrt((7 / 702 - (1 / 702) ** 2) / 702)
    assert difference == pytest.approx((1 / 700, 1 / 702 - reach, 1 / 702 + reach), abs=1e-8)


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize(("lost", "gained"), [(0.005, 0.005), (0.02, 0.01), (0.05, 0.05), (0.2, 0.02), (0.0, 0.01)])
def test_the_interval_covers(lost: float, gained: float) -> None:
    """Summed over all outcomes of 120 problems, so without simulation noise."""
    covered = 0.0
    for losses in range(60):
        for gains in range(60):
            chance = multinomial.pmf([losses, gains, 120 - losses - gains], 120, [lost, gained, 1 - lost - gained])
            if chance > 1e-9:
                _, low, high = difference_of(paired(120 - losses - gains, losses, gains, 0), 0.95, Claim(0.9))
                covered += chance * (low <= gained - lost <= high)
    assert covered >= 0.94


@given(counts)
def test_seeds_that_agree_add_nothing(c: tuple[int, int, int, int]) -> None:
    assert difference_of(paired(*c, seeds=3), 0.95, Claim(0.9)) == pytest.approx(
        difference_of(paired(*c), 0.95, Claim(0.9))
    )
