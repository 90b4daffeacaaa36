"""Points and outcomes: stricter requests never return better points, and the clock takes no certificate away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_common.errors import UsageError
from fsd_decoding.profile.fields import CERTIFIED, FOLLOWED, MET, CurvePoint, Outcome, follows, timed_outcome
from fsd_decoding.profile.selection import Choice, PointSelector
from fsd_decoding.profile.setting import Setting
from support.calibration.profiles import FRONT, UNTESTED, profile, values

SHARES = st.integers(0, 20).map(lambda twentieths: twentieths / 20)  # few values, so that ties are common
PACES = st.sampled_from([40.0, 50.0, 55.0, 60.0, 70.0])


@st.composite
def points(draw: Callable[[Any], Any]) -> CurvePoint:
    retention, certified = draw(SHARES), draw(st.booleans())
    bound = retention * draw(SHARES) if certified and draw(st.booleans()) else None
    return CurvePoint(
        setting=Setting("fsd-coupled", draw(st.sampled_from(["js", "doubt"])), draw(st.integers(5, 6)), draw(SHARES)),
        accuracy=retention, retention=retention, lower_bound=bound,
        tokens_per_round=draw(st.sampled_from([5.0, 6.0])), forecast=draw(st.none() | PACES),
        problems=draw(st.sampled_from([40, 300])), source="certification" if certified else "tuning",
        simultaneous=bound is not None and draw(st.booleans()),
    )  # fmt: skip


@st.composite
def selectors(draw: Callable[[Any], Any]) -> PointSelector:
    certificate = profile(draw(st.sampled_from([{}, FRONT, UNTESTED]))).certificate
    own = Setting("fsd-coupled", "js", 5, draw(SHARES))
    curve = draw(st.lists(points(), max_size=8, unique_by=lambda p: (p.setting, p.source)))
    return PointSelector(curve, certificate, own, draw(st.booleans()), draw(st.sampled_from([None, "js"])))


def chosen(choose: Callable[[float], Choice], wanted: float) -> Choice | None:
    try:
        return choose(wanted)
    except UsageError:
        return None


def pace(choice: Choice) -> float:
    return choice.forecast or 0.0


@given(selectors(), SHARES, SHARES)
def test_a_stricter_accuracy_never_gives_a_faster_point(selector: PointSelector, one: float, other: float) -> None:
    loose, strict = (chosen(selector.by_accuracy, wanted) for wanted in sorted((one, other)))
    assert strict is None or (loose is not None and pace(strict) <= pace(loose))


@given(selectors(), PACES, PACES)
def test_a_stricter_speed_never_gives_a_more_accurate_point(selector: PointSelector, one: float, other: float) -> None:
    """Accuracy is what points are judged by: the bound if certified points are requested, else what was measured."""
    loose, strict = (chosen(selector.by_speed, wanted) for wanted in sorted((one, other)))
    if strict is None:
        return
    assert loose is not None
    if selector.certified:
        assert (strict.lower_bound or 0.0) <= (loose.lower_bound or 0.0)
    else:
        assert strict.retention <= loose.retention


@given(selectors(), SHARES, PACES)
def test_chosen_points_are_certified_unless_that_is_waived(
    selector: PointSelector, min_acc: float, speed: float
) -> None:
    by_accuracy, by_speed = chosen(selector.by_accuracy, min_acc), chosen(selector.by_speed, speed)
    for choice in filter(None, (by_accuracy, by_speed)):
        assert choice.certified or not selector.certified
        assert not choice.certified or choice.lower_bound is not None
        assert not choice.certified or selector.score in (None, choice.setting.score)
    if by_accuracy is not None and by_accuracy.certified:
        assert (by_accuracy.lower_bound or 0.0) >= min_acc
    assert by_speed is None or pace(by_speed) >= speed


@given(selectors())
def test_the_point_that_an_error_names_can_be_chosen(selector: PointSelector) -> None:
    with pytest.raises(UsageError) as refused:
        selector.by_accuracy(2.0)
    assert "\n" not in str(refused.value)
    if "highest retention" in str(refused.value):
        named = float(str(refused.value).split("(retention ")[1].split(",")[0].split(")")[0])
        assert selector.by_accuracy(named).threshold is not None


def test_with_an_early_stop_bounds_of_other_scores_do_not_count() -> None:
    """Decoders end drafts by the profile's own score; points of another one were certified with other drafts."""
    points = [CurvePoint(**point) for point in values(FRONT)["curve"]]
    made = profile(FRONT)
    other = [p.model_copy(update={"setting": replace(p.setting, score="doubt")}) for p in points]
    assert PointSelector(other, made.certificate, made.chosen).by_accuracy(0.97).certified
    with pytest.raises(UsageError, match="no point of the curve is certified"):
        PointSelector(other, made.certificate, made.chosen, score="js").by_accuracy(0.97)


Ends = tuple[float, float]

SPEEDS = st.floats(min_value=0, max_value=1000)
INTERVALS = st.tuples(SPEEDS, SPEEDS).map(lambda ends: (min(ends), max(ends)))
RATIOS = st.one_of(INTERVALS, st.tuples(st.floats(0.5, 1), st.floats(1, 2)))
PASSED: Outcome = "certified-speed-unknown"


@given(over_lossless=RATIOS, chosen=INTERVALS)
def test_a_clock_never_takes_a_certificate_away(over_lossless: Ends, chosen: Ends) -> None:
    outcome = timed_outcome(PASSED, over_lossless, chosen)
    assert outcome in CERTIFIED
    assert outcome in MET
    assert (outcome in FOLLOWED) == (over_lossless[1] >= 1)  # decoders run sd only where it is shown to be faster


@given(over_lossless=RATIOS, chosen=INTERVALS)
def test_what_the_interval_of_the_ratio_leaves_open_is_not_known(over_lossless: Ends, chosen: Ends) -> None:
    outcome = timed_outcome(PASSED, over_lossless, chosen)
    assert (outcome == "certified-speed-unknown") == (over_lossless[0] <= 1 <= over_lossless[1])
    assert (outcome == "certified-faster") == (over_lossless[0] > 1)


@given(over_lossless=RATIOS, chosen=INTERVALS, wanted=SPEEDS)
def test_a_requested_speed_is_missed_only_where_the_whole_interval_is_below_it(
    over_lossless: Ends, chosen: Ends, wanted: float
) -> None:
    outcome = timed_outcome(PASSED, over_lossless, chosen, wanted)
    assert (outcome == "too-slow") == (chosen[1] < wanted)
    assert outcome in (*CERTIFIED, "too-slow")
    assert (outcome == "certified-faster") == (over_lossless[1] >= 1 and chosen[0] >= wanted)


@given(tested=st.sampled_from(get_args(Outcome)), over_lossless=RATIOS, chosen=INTERVALS, wanted=st.none() | SPEEDS)
def test_a_clock_certifies_nothing(tested: Outcome, over_lossless: Ends, chosen: Ends, wanted: float | None) -> None:
    outcome = timed_outcome(tested, over_lossless, chosen, wanted)
    assert outcome == tested or tested == PASSED
    assert (outcome in CERTIFIED) <= (tested in CERTIFIED)


@given(over_lossless=RATIOS, chosen=INTERVALS, wanted=st.none() | SPEEDS)
def test_what_is_certified_is_given_up_only_where_sd_is_faster(
    over_lossless: Ends, chosen: Ends, wanted: float | None
) -> None:
    """Also where it is slower than requested."""
    outcome = timed_outcome(PASSED, over_lossless, chosen, wanted)
    assert follows(outcome, over_lossless, certified=True, lossless_meets=True) == (over_lossless[1] >= 1)
    assert follows(outcome, over_lossless, certified=True, lossless_meets=False)
    assert not follows("too-slow", over_lossless, certified=False, lossless_meets=True)
