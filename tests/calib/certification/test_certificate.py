"""The order of testing, claims, and giving up for futility. The guarantee is tested in test_guarantee.py."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from fsd_calib.certification.certificate import bound_together, certify_sequence, is_futile
from fsd_calib.certification.claim import Acc, Claim, Guarantee
from fsd_calib.certification.looks import Looks
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.score_test import lower_bound, p_value
from fsd_common.errors import UsageError
from fsd_decoding.profile.certificate import OutcomeCounts
from support.calibration.paired_gradings import Prefixes, first, paired

DELTA = 0.05
SAFE, FAIR, BAD = OutcomeCounts(800, 2, 3, 195), OutcomeCounts(790, 12, 9, 189), OutcomeCounts(700, 102, 10, 188)
KEEP = Claim(0.98)

counts = st.integers(0, 60)
tables = st.builds(OutcomeCounts, counts, counts, counts, counts).filter(lambda o: o.both_right + o.lost > 0)


def test_outcomes_count_pairs_of_all_seeds() -> None:
    sample = Paired(np.array([[True, False], [True, True]]), np.array([[True, True], [False, True]]))
    assert sample.outcomes == OutcomeCounts(both_right=2, lost=1, gained=1, both_wrong=0)
    assert (sample.problems, sample.seeds, sample.retention, sample.churn) == (2, 2, 1.0, 0.5)
    assert (sample.target_accuracy, sample.accuracy) == (0.75, 0.75)
    assert sample.table.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0]]
    with pytest.raises(ValueError, match="shape"):
        Paired(sample.target, sample.fuzzy[:, :1])


@pytest.mark.parametrize(
    ("order", "passed", "drawn"),
    [
        ([SAFE, FAIR, BAD, SAFE], 1, 3),
        ([SAFE, FAIR], 1, 2),
        ([BAD, SAFE], None, 1),
        ([SAFE, BAD, SAFE], 0, 2),
        ([], None, 0),
    ],
)
def test_the_sequence_stops_at_the_first_failure(order: list[OutcomeCounts], passed: int | None, drawn: int) -> None:
    prefixes = [Prefixes(paired(outcomes)) for outcomes in order]
    verdict = certify_sequence(prefixes, KEEP, DELTA)
    assert verdict.passed == passed
    assert [bool(p.decoded) for p in prefixes] == [i < drawn for i in range(len(order))]
    assert [e.outcomes for e in verdict.tested] == order[:drawn]
    for evidence in verdict.tested:
        assert evidence.p_value == p_value(evidence.outcomes, 0.98)
        assert evidence.lower_bound == lower_bound(evidence.outcomes, DELTA)


def test_candidates_are_drawn_one_at_a_time() -> None:
    drawn = []

    def candidates() -> Iterator[Iterable[Paired]]:
        for outcomes in (SAFE, BAD, SAFE):
            drawn.append(outcomes)
            yield [paired(outcomes)]

    certify_sequence(candidates(), KEEP, DELTA)
    assert drawn == [SAFE, BAD]


def test_without_a_claim_the_first_configuration_is_bounded() -> None:
    one, other = Prefixes(paired(FAIR), [300]), Prefixes(paired(SAFE))
    verdict = certify_sequence([one, other], Claim(None, looks=Looks((1000,))), DELTA)
    assert verdict.passed == 0
    assert (one.decoded, other.decoded) == (1000, 0)
    assert verdict.tested[0].p_value is None
    assert verdict.tested[0].lower_bound == lower_bound(FAIR, DELTA)
    assert certify_sequence([], Claim(None), DELTA).passed is None


def test_the_absolute_bound_is_clopper_and_pearsons() -> None:
    evidence = certify_sequence([[paired(FAIR)]], Claim(0.7, acc="absolute"), DELTA).tested[0]
    assert evidence.accuracy_bound == pytest.approx(beta.ppf(DELTA, 799, 1000 - 799 + 1))
    assert evidence.lower_bound == lower_bound(FAIR, DELTA)  # both claims give both bounds


@pytest.mark.slow
@pytest.mark.parametrize("acc", ["retention", "absolute"])
@pytest.mark.parametrize("guarantee", ["population", "dataset"])
@settings(max_examples=40)
@given(tables, st.floats(0.3, 1.0), st.integers(1, 3), st.floats(0.01, 0.4))
def test_verdict_and_bound_agree(
    acc: Acc, guarantee: Guarantee, outcomes: OutcomeCounts, wanted: float, seeds: int, delta: float
) -> None:
    one = paired(outcomes, np.random.default_rng(0))
    sample = Paired(np.repeat(one.target, seeds, 1), np.repeat(one.fuzzy, seeds, 1))
    assume(guarantee == "dataset" or seeds == 1 or outcomes.lost + outcomes.gained >= 5)
    verdict = certify_sequence([[sample]], Claim(wanted, acc, guarantee, Looks((sample.problems,))), delta)
    evidence = verdict.tested[0]
    bound = evidence.lower_bound if acc == "retention" else evidence.accuracy_bound
    assert bound >= wanted if verdict.passed == 0 else bound <= wanted * (1 + 1e-9)


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("outcomes", [FAIR, OutcomeCounts(80, 0, 0, 20), OutcomeCounts(1, 900, 0, 20)])
def test_verdict_and_bound_agree_to_the_last_bit(outcomes: OutcomeCounts) -> None:
    """At the bound p is delta up to rounding in either direction."""
    drawn = lower_bound(outcomes, DELTA)
    for _ in range(50):
        evidence = certify_sequence([[paired(outcomes)]], Claim(drawn), DELTA).tested[0]
        assert evidence.p_value is not None
        assert evidence.p_value > DELTA or evidence.lower_bound >= drawn
        drawn = math.nextafter(drawn, math.inf)


@pytest.mark.parametrize("wanted", [0.0, -1.0, math.inf, math.nan])
def test_a_wanted_accuracy_must_be_positive(wanted: float) -> None:
    with pytest.raises(UsageError, match="wanted retention"):
        Claim(wanted)
    with pytest.raises(UsageError, match="wanted accuracy"):
        Claim(wanted, acc="absolute")


def test_impossible_claims_are_refused() -> None:
    with pytest.raises(UsageError, match="the wanted accuracy is"):
        Claim(1.1, acc="absolute")
    with pytest.raises(UsageError, match="needs the number of problems"):
        Claim(0.98, guarantee="dataset")
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(UsageError, match="delta"):
            certify_sequence([], KEEP, delta)
    for claim in (KEEP, Claim(None)):
        with pytest.raises(UsageError, match="none of 10 problems, so retention is undefined"):
            certify_sequence([[paired(OutcomeCounts(0, 0, 3, 7))]], claim, DELTA)
    absolute = certify_sequence([[paired(OutcomeCounts(0, 0, 70, 7))]], Claim(0.5, acc="absolute"), DELTA)
    assert absolute.passed == 0
    assert absolute.tested[0].lower_bound == 0.0


def test_a_candidate_is_decided_at_the_first_look_that_suffices() -> None:
    claim = Claim(0.9, looks=Looks.evenly(1000, 5))
    early, late = Prefixes(paired(SAFE), range(200, 1000, 200)), Prefixes(paired(FAIR), range(200, 1000, 200))
    verdict = certify_sequence([early, late], claim, DELTA)
    assert verdict.passed == 1
    assert early.decoded < 1000
    for evidence in verdict.tested:
        assert evidence.p_value is not None
        assert evidence.p_value <= evidence.level < DELTA
        assert evidence.given_passing is not None


def test_a_look_at_which_the_target_solved_nothing_decides_nothing() -> None:
    right = np.arange(400)[:, None] >= 100
    sample, looks = Paired(right, right), Looks.evenly(400, 10)
    prefixes = Prefixes(sample, looks.problems[:-1])
    assert certify_sequence([prefixes], Claim(0.9, looks=looks), DELTA).passed == 0
    assert prefixes.decoded < 400
    nothing = Paired(np.zeros((400, 1), bool), np.ones((400, 1), bool))
    with pytest.raises(UsageError, match="none of 400 problems, so retention is undefined"):
        certify_sequence([Prefixes(nothing, looks.problems[:-1])], Claim(0.9, looks=looks), DELTA)


def test_what_decides_nothing_is_refused() -> None:
    looks, sample = Looks((500, 1000)), paired(SAFE)
    for prefixes, reason in (([first(sample, 500)], "500 of 1000 problems"), ([], "no outcomes")):
        with pytest.raises(ValueError, match=f"a candidate has {reason}, which decide nothing"):
            certify_sequence([prefixes], Claim(0.999, looks=looks), DELTA)
    with pytest.raises(ValueError, match="600"):
        certify_sequence([[first(sample, 600)]], Claim(0.98, looks=looks), DELTA)


def test_a_data_set_is_decided_as_soon_as_the_bet_is_won() -> None:
    prefixes = Prefixes(paired(OutcomeCounts(900, 0, 0, 100)), [100, 300, 500])
    claim = Claim(0.98, guarantee="dataset", looks=Looks((100, 300, 500, 1000)))
    verdict = certify_sequence([prefixes], claim, DELTA)
    assert verdict.passed == 0
    assert prefixes.decoded == 300  # a stake of .9 multiplies wealth by 1.018 per problem, at least; 4 * 20 takes 243
    assert verdict.tested[0].lower_bound >= 0.98


@pytest.mark.parametrize("guarantee", ["population", "dataset"])
def test_a_futile_candidate_is_given_up(guarantee: Guarantee) -> None:
    sample = paired(BAD, np.random.default_rng(1))
    prefixes = Prefixes(sample, range(100, 1000, 100))
    claim = Claim(0.98, guarantee=guarantee, looks=Looks.evenly(1000, 10))
    verdict = certify_sequence([prefixes, Prefixes(paired(SAFE))], claim, DELTA)
    assert verdict.passed is None
    assert prefixes.decoded <= 600
    evidence = verdict.tested[0]
    assert evidence.p_value is not None
    assert evidence.p_value > evidence.level
    # The sample size depended on the data, so the bound must hold at any look.
    assert (evidence.lower_bound, evidence.accuracy_bound) == claim.bounds(evidence.paired, evidence.level)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(2, 4), st.sampled_from([0.9, 0.98, 1.0, 1.02]))
def test_a_candidate_that_passes_if_it_goes_on_so_is_not_given_up(
    lost: int, gained: int, times: int, wanted: float
) -> None:
    sample = OutcomeCounts(200, lost, gained, 40)
    whole = OutcomeCounts(*(times * count for count in astuple(sample)))
    claim = Claim(wanted, looks=Looks((sample.total, whole.total)))
    if p_value(whole, wanted) <= claim.level(whole.total, DELTA):
        assert not is_futile(paired(sample), claim, DELTA)
    assert not is_futile(paired(sample), Claim(wanted), DELTA)  # the size of the whole part is unknown


@pytest.mark.parametrize(
    ("sample", "wanted", "rest"),
    [
        (OutcomeCounts(200, 6, 6, 38), 1.0, 750),  # passes with plausible gains
        (OutcomeCounts(1500, 0, 100, 3400), 1.05, 2000),  # passes now; problems that both solve would lower the result
        (OutcomeCounts(0, 0, 0, 10), 0.98, 790),  # nothing is known yet
        (OutcomeCounts(5, 2, 0, 3), 0.98, 790),
    ],
)
def test_a_candidate_that_may_still_pass_is_not_given_up(sample: OutcomeCounts, wanted: float, rest: int) -> None:
    assert not is_futile(paired(sample), Claim(wanted, looks=Looks((sample.total, sample.total + rest))), DELTA)


@pytest.mark.slow
def test_giving_up_costs_hardly_any_power() -> None:
    """300 candidates, of which about half pass, with and without giving up.

    By the law of the walk one of 300 verdicts is expected to change; 7 have a probability below .001. The seed is
    fixed.
    """
    rng, looks, saved, passes = np.random.default_rng(6), Looks.evenly(800, 8), 0, np.zeros(2, int)
    claim = Claim(0.98, looks=looks)
    for _ in range(300):
        kind = rng.choice(4, p=[0.779, 0.012, 0.008, 0.201], size=800)
        sample = Paired((kind <= 1)[:, None], (kind % 2 == 0)[:, None])
        prefixes = Prefixes(sample, looks.problems[:-1])
        going_on = any(claim.p_value(first(sample, n)) <= claim.level(n, DELTA) for n in looks.problems)
        passed = certify_sequence([prefixes], claim, DELTA).passed == 0
        saved += (800 - prefixes.decoded) * (not passed)
        passes += [passed, going_on]
    assert 100 < passes[0] <= passes[1] < passes[0] + 7 < 250
    assert saved > 0


def test_simultaneous_bounds_share_the_level() -> None:
    sample = [paired(SAFE), paired(FAIR), paired(BAD)]
    bounds = bound_together(sample, Claim(None), 0.06)
    assert [e.lower_bound for e in bounds] == [lower_bound(s.outcomes, 0.02) for s in sample]
    assert bound_together([], Claim(None), 0.06) == ()


def test_a_dataset_decoded_whole_has_no_uncertainty() -> None:
    sample = paired(OutcomeCounts(78, 2, 0, 20), np.random.default_rng(2))
    for wanted, passed in ((0.975, 0), (0.976, None)):
        verdict = certify_sequence([[sample]], Claim(wanted, guarantee="dataset", looks=Looks((100,))), DELTA)
        assert verdict.passed == passed
        assert verdict.tested[0].lower_bound == pytest.approx(0.975)
        assert verdict.tested[0].accuracy_bound == pytest.approx(0.78)
    part = first(sample, 60)
    assert not is_futile(part, Claim(0.9, guarantee="dataset", looks=Looks((100,))), DELTA)
