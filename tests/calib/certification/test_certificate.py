"""The order of testing, claims, and giving up for futility. The guarantee is tested in test_guarantee.py."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from fsd_calib.certification.certificate import bound_together, certify_sequence, is_futile
from fsd_calib.certification.claim import Acc, Claim, Guarantee, Test
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.score_test import lower_bound, p_value
from fsd_common.errors import UsageError
from fsd_decoding.profile.parts import OutcomeCounts
from support.calibration.paired_gradings import Portions, first, paired

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
    portions = [Portions(paired(outcomes)) for outcomes in order]
    verdict = certify_sequence(portions, KEEP, DELTA)
    assert verdict.passed == passed
    assert [bool(p.decoded) for p in portions] == [i < drawn for i in range(len(order))]
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
    one, other = Portions(paired(FAIR), [300]), Portions(paired(SAFE))
    verdict = certify_sequence([one, other], Claim(None, problems=1000), DELTA)
    assert verdict.passed == 0
    assert (one.decoded, other.decoded) == (1000, 0)
    assert verdict.tested[0].p_value is None
    assert verdict.tested[0].lower_bound == lower_bound(FAIR, DELTA)
    assert certify_sequence([], Claim(None), DELTA).passed is None


def test_the_absolute_bound_is_clopper_and_pearsons() -> None:
    evidence = certify_sequence([[paired(FAIR)]], Claim(0.7, acc="absolute"), DELTA).tested[0]
    assert evidence.accuracy_bound == pytest.approx(beta.ppf(DELTA, 799, 1000 - 799 + 1))
    assert evidence.lower_bound == lower_bound(FAIR, DELTA)  # both claims give both bounds


TESTS: list[tuple[Guarantee, Test]] = [("population", "score"), ("population", "betting"), ("dataset", "score")]


@pytest.mark.slow
@pytest.mark.parametrize("acc", ["retention", "absolute"])
@pytest.mark.parametrize(("guarantee", "test"), TESTS)
@settings(max_examples=40)
@given(tables, st.floats(0.3, 1.0), st.integers(1, 3), st.floats(0.01, 0.4))
def test_verdict_and_bound_agree(
    acc: Acc, guarantee: Guarantee, test: Test, outcomes: OutcomeCounts, wanted: float, seeds: int, delta: float
) -> None:
    one = paired(outcomes, np.random.default_rng(0))
    sample = Paired(*(np.repeat(side, seeds, 1) for side in (one.target, one.fuzzy)))
    assume(guarantee == "dataset" or seeds == 1 or outcomes.lost + outcomes.gained >= 5 or test == "betting")
    verdict = certify_sequence([[sample]], Claim(wanted, acc, guarantee, test, sample.problems), delta)
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


def test_the_score_test_needs_the_whole_part() -> None:
    good = paired(OutcomeCounts(900, 0, 0, 100))
    portions = Portions(good, [200, 500])
    assert certify_sequence([portions], Claim(0.98, problems=1000), DELTA).passed == 0
    assert portions.decoded == 1000
    for claim, prefixes in ((Claim(0.98, problems=1001), [good]), (KEEP, [])):
        with pytest.raises(ValueError, match="candidate"):
            certify_sequence([prefixes], claim, DELTA)


def test_betting_decides_early() -> None:
    portions = Portions(paired(OutcomeCounts(900, 0, 0, 100)), [100, 300, 500])
    verdict = certify_sequence([portions], Claim(0.98, test="betting", problems=1000), DELTA)
    assert verdict.passed == 0
    assert portions.decoded == 300  # a stake of .9 multiplies wealth by 1.018 per problem; 4 * 20 takes 243
    assert verdict.tested[0].lower_bound >= 0.98


@pytest.mark.parametrize(("guarantee", "test"), TESTS)
def test_a_futile_candidate_is_given_up(guarantee: Guarantee, test: Test) -> None:
    sample = paired(BAD, np.random.default_rng(1))
    portions = Portions(sample, range(100, 1000, 100))
    claim = Claim(0.98, guarantee=guarantee, test=test, problems=1000)
    verdict = certify_sequence([portions, Portions(paired(SAFE))], claim, DELTA)
    assert verdict.passed is None
    assert portions.decoded <= 600
    evidence = verdict.tested[0]
    assert evidence.p_value is not None
    assert evidence.p_value == 1.0
    # The sample size depended on the data, so the bound must be valid at any time.
    anytime = Claim(None, guarantee=guarantee, test="betting", problems=1000)
    assert (evidence.lower_bound, evidence.accuracy_bound) == anytime.bounds(evidence.paired, DELTA)


@given(st.integers(0, 40), st.integers(0, 5), st.integers(1, 100), st.sampled_from([0.9, 0.98, 1.0]))
def test_a_candidate_that_could_pass_without_further_losses_is_not_given_up(
    lost: int, gained: int, rest: int, wanted: float
) -> None:
    sample = OutcomeCounts(200, lost, gained, 40)
    claim = Claim(wanted, problems=sample.total + rest)
    flawless = OutcomeCounts(200 + rest, lost, gained, 40)
    if p_value(flawless, wanted) <= DELTA:
        assert not is_futile(paired(sample), claim, DELTA)
    assert not is_futile(paired(sample), Claim(wanted), DELTA)  # the size of the whole part is unknown


@pytest.mark.parametrize(
    ("sample", "wanted", "rest"),
    [
        (OutcomeCounts(200, 6, 6, 38), 1.0, 750),  # passes with plausible gains
        (OutcomeCounts(4000, 90, 0, 900), 0.98, 2000),  # no gains, but passes without further losses
        (OutcomeCounts(1500, 0, 100, 3400), 1.05, 2000),  # passes now; problems that both solve would lower the result
    ],
)
def test_a_candidate_that_may_still_pass_is_not_given_up(sample: OutcomeCounts, wanted: float, rest: int) -> None:
    assert not is_futile(paired(sample), Claim(wanted, problems=sample.total + rest), DELTA)


@pytest.mark.slow
def test_giving_up_costs_hardly_any_power() -> None:
    """300 candidates at the limit, checked 7 times each.

    One in a thousand checks may err; 7 of 300 changed verdicts then have a probability below .01. The seed is fixed.
    """
    rng, saved, changed, passes = np.random.default_rng(6), 0, 0, 0
    for _ in range(300):
        kind = rng.choice(4, p=[0.775, 0.016, 0.004, 0.205], size=800)
        sample = Paired((kind <= 1)[:, None], (kind % 2 == 0)[:, None])
        portions, claim = Portions(sample, range(100, 800, 100)), Claim(0.98, problems=800)
        passed = certify_sequence([portions], claim, DELTA).passed
        changed += passed != (0 if p_value(sample.outcomes, 0.98) <= DELTA else None)
        saved += 800 - portions.decoded
        passes += passed == 0
    assert changed < 7
    assert saved > 0
    assert 0 < passes < 300


def test_simultaneous_bounds_share_the_level() -> None:
    sample = [paired(SAFE), paired(FAIR), paired(BAD)]
    bounds = bound_together(sample, Claim(None), 0.06)
    assert [e.lower_bound for e in bounds] == [lower_bound(s.outcomes, 0.02) for s in sample]
    assert bound_together([], Claim(None), 0.06) == ()


def test_a_dataset_decoded_whole_has_no_uncertainty() -> None:
    sample = paired(OutcomeCounts(78, 2, 0, 20), np.random.default_rng(2))
    for wanted, passed in ((0.975, 0), (0.976, None)):
        verdict = certify_sequence([[sample]], Claim(wanted, guarantee="dataset", problems=100), DELTA)
        assert verdict.passed == passed
        assert verdict.tested[0].lower_bound == pytest.approx(0.975)
        assert verdict.tested[0].accuracy_bound == pytest.approx(0.78)
    part = first(sample, 60)
    assert not is_futile(part, Claim(0.9, guarantee="dataset", problems=100), DELTA)
