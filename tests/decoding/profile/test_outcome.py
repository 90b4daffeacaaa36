"""Outcomes after timing: the clock says what is known of speed, and never takes a certificate away."""

from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from fsd_decoding.profile.fields import CERTIFIED, FOLLOWED, MET, Outcome, follows, timed_outcome

Ends = tuple[float, float]

PACES = st.floats(min_value=0, max_value=1000)
INTERVALS = st.tuples(PACES, PACES).map(lambda ends: (min(ends), max(ends)))
RATIOS = st.one_of(INTERVALS, st.tuples(st.floats(0.5, 1), st.floats(1, 2)))
PASSED: Outcome = "certified-speed-unknown"


@given(over_sd=RATIOS, chosen=INTERVALS)
def test_a_clock_never_takes_a_certificate_away(over_sd: Ends, chosen: Ends) -> None:
    outcome = timed_outcome(PASSED, over_sd, chosen)
    assert outcome in CERTIFIED
    assert outcome in MET
    assert (outcome in FOLLOWED) == (over_sd[1] >= 1)  # decoders run sd only where it is shown to be faster


@given(over_sd=RATIOS, chosen=INTERVALS)
def test_what_the_interval_of_the_ratio_leaves_open_is_not_known(over_sd: Ends, chosen: Ends) -> None:
    outcome = timed_outcome(PASSED, over_sd, chosen)
    assert (outcome == "certified-speed-unknown") == (over_sd[0] <= 1 <= over_sd[1])
    assert (outcome == "certified-faster") == (over_sd[0] > 1)


@given(over_sd=RATIOS, chosen=INTERVALS, wanted=PACES)
def test_a_requested_speed_is_missed_only_where_the_whole_interval_is_below_it(
    over_sd: Ends, chosen: Ends, wanted: float
) -> None:
    outcome = timed_outcome(PASSED, over_sd, chosen, wanted)
    assert (outcome == "too-slow") == (chosen[1] < wanted)
    assert outcome in (*CERTIFIED, "too-slow")
    assert (outcome == "certified-faster") == (over_sd[1] >= 1 and chosen[0] >= wanted)


@given(tested=st.sampled_from(get_args(Outcome)), over_sd=RATIOS, chosen=INTERVALS, wanted=st.none() | PACES)
def test_a_clock_certifies_nothing(tested: Outcome, over_sd: Ends, chosen: Ends, wanted: float | None) -> None:
    outcome = timed_outcome(tested, over_sd, chosen, wanted)
    assert outcome == tested or tested == PASSED
    assert (outcome in CERTIFIED) <= (tested in CERTIFIED)


@given(over_sd=RATIOS, chosen=INTERVALS, wanted=st.none() | PACES)
def test_what_is_certified_is_given_up_only_where_sd_is_faster(
    over_sd: Ends, chosen: Ends, wanted: float | None
) -> None:
    """Also where it is slower than requested."""
    outcome = timed_outcome(PASSED, over_sd, chosen, wanted)
    assert follows(outcome, over_sd, certified=True, lossless_meets=True) == (over_sd[1] >= 1)
    assert follows(outcome, over_sd, certified=True, lossless_meets=False)
    assert not follows("too-slow", over_sd, certified=False, lossless_meets=True)
