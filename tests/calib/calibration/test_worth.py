"""What a calibration is worth: the ceiling, the expected gain, prices, and runs that there is little to gain for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsd_calib.calibration.odds import odds_of
from fsd_calib.calibration.pilot import Pilot
from fsd_calib.calibration.plan import NotWorthItError, Plan, PlannedStep, check_worth, make_plan
from fsd_calib.calibration.worth import Ceiling, Expected, expected_gain, with_prompts
from fsd_calib.certification.claim import Claim
from fsd_calib.options.run_config import RunConfig
from fsd_calib.report.notebook import plan_html
from fsd_calib.report.plan import print_plan
from fsd_calib.search.forecast import Counts
from fsd_calib.search.space import Space
from fsd_common.errors import UsageError
from fsd_decoding.profile.setting import Setting
from support.calibration.any_gain import stop_where_too_little_is_gained
from support.calibration.reports import paper, text_of
from support.models import tiny_calibration

SPACE = Space(("fsd-coupled",), ("js",), (4, 8))
FUZZY = Setting("fsd-coupled", "js", 4, 3.5)
CLAIM, DELTA, PROBLEMS = Claim(0.98), 0.05, 2000
CEILING = Ceiling(Setting("sd", "js", 5), 30.0, 12, 1.04)


@pytest.fixture(autouse=True)
def _as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_where_too_little_is_gained(monkeypatch)


class Rising:
    """A forecast in which T is logit(u), and rounds fall with it: to half at the loosest."""

    lowest, highest = -2.0, 8.0

    def threshold(self, arm: Setting, logit_share: float) -> float:
        return logit_share

    def counts(self, setting: Setting) -> Counts:
        assert setting.threshold is not None
        rounds = 1000 * (1 - 0.05 * (setting.threshold - self.lowest))
        return Counts(3000, rounds, rounds * setting.draft_length)

    def tokens_per_second(self, setting: Setting) -> float:
        tokens, rounds, drafted = self.counts(setting)
        return tokens / (rounds + 0.01 * drafted)


def expected(lost: int, gained: int = 0, claim: Claim = CLAIM, times: int = 1) -> Expected:
    """What follows from a pilot of 64 problems, or from one that is so many times as large, with the same shares."""
    pilot = Pilot(64 * times, 60 / 64, 0.0, (lost + gained) / 64, (60 - lost + gained) / 60)
    forecast: Any = Rising()
    found = expected_gain(forecast, SPACE, 2.9, FUZZY, pilot, odds_of(claim, pilot, DELTA), PROBLEMS)
    assert found is not None
    return found


def test_the_more_a_pilot_lost_the_less_is_expected() -> None:
    free, one, many = expected(0), expected(1), expected(12)
    assert free.gain > one.gain > many.gain >= 1.0
    assert 0 < one.chance < 1
    for each in (free, one, many):
        assert 1.0 <= each.low <= each.gain <= each.high


def test_the_fewer_problems_tell_of_losses_the_wider_is_the_chance() -> None:
    few, many = expected(1), expected(1, times=64)
    for each in (few, many):
        assert 0 <= each.between[0] < each.chance < each.between[1] <= 1  # of the same setting
    assert few.between[1] - few.between[0] > 2 * (many.between[1] - many.between[0])


def test_a_looser_goal_leaves_more_to_gain() -> None:
    assert expected(2, claim=Claim(0.9)).gain > expected(2).gain
    assert 0.9 < expected(2, claim=Claim(0.9)).truth < 1


def test_prompts_take_their_time_whatever_is_accepted() -> None:
    assert with_prompts(50.0, 0.0) == pytest.approx(50.0)
    assert with_prompts(50.0, 0.02) == pytest.approx(25.0)
    pilot, forecast = Pilot(64, 60 / 64, 0.0, 1 / 64, 59 / 60), Rising()
    given: dict[str, Any] = {
        "forecast": forecast, "space": SPACE, "rival_speed": 2.9, "fuzzy": FUZZY, "pilot": pilot,
        "odds": odds_of(CLAIM, pilot, DELTA), "problems": PROBLEMS,
    }  # fmt: skip
    without, beside = expected_gain(**given), expected_gain(**given, prefill=1.0)
    assert without is not None
    assert beside is not None
    assert 1 < beside.gain < without.gain


def test_where_nothing_can_be_certified_nothing_is_expected() -> None:
    assert expected(12, claim=Claim(1.1)) == Expected(1.0, 1.0, 1.0, 1.0, 0.0, (0.0, 0.0))


def test_without_an_accuracy_to_keep_nothing_is_expected() -> None:
    forecast: Any = Rising()
    pilot = Pilot(64, 0.9, 0.0, 0.02, 0.98)
    assert expected_gain(forecast, SPACE, 2.9, FUZZY, pilot, odds_of(Claim(None), pilot, DELTA), PROBLEMS) is None


def plan(**more: Any) -> Plan:
    made = make_plan(CLAIM, Pilot(64, 60 / 64, 0.0, 1 / 64, 59 / 60), PROBLEMS, DELTA)
    return replace(made, steps=(PlannedStep("search", 1800, 4.0),), **more)


def test_a_run_ends_with_a_plan_that_leaves_less_to_gain_than_is_asked() -> None:
    check_worth(plan())  # where nothing is known
    check_worth(plan(ceiling=CEILING))
    check_worth(plan(ceiling=CEILING, min_gain=1.0))
    with pytest.raises(
        NotWorthItError, match=r"1.04 times .* sd at L = 5, and min_gain is 1.05; decode by sd at L = 5"
    ):
        check_worth(plan(ceiling=CEILING, min_gain=1.05))


def test_a_plan_shows_the_ceiling_what_it_expects_and_the_price() -> None:
    forecast = Expected(1.3, 1.1, 1.5, 0.989, 0.62, (0.051, 0.9))
    told = plan(ceiling=CEILING, min_gain=1.05, expected=forecast, price_per_hour=2.5, devices=2)
    print_plan(told, console := paper(80))
    for text in (" ".join(text_of(console).split()), plan_html(told)):
        ceiling = "about 1.04x the tokens/s of the fastest lossless setting (sd at L = 5, exact speculative decoding: "
        assert f"{ceiling}about 30 tokens/s" in text
        assert "a run stops here (--min-gain 1.05; 1 goes on)" in text
        assert "about 1.30x (1.10x to 1.50x) the best lossless setting with a true retention of 98.9%" in text
        assert "chance to certify 62% (5% to 90%). This is a forecast from 64 problems, with intervals of 80%." in text
        assert "At 2.5 an hour: about 10.00." in text  # two devices for two hours


def test_1_goes_on_whatever_there_is_to_gain() -> None:
    less = replace(CEILING, gain=0.7)  # than `sd` at a length that is not searched
    assert plan(min_gain=1.0, ceiling=less).worth_it
    assert not plan(min_gain=1.01, ceiling=less).worth_it


def test_what_says_nothing_of_worth_is_refused() -> None:
    refused: list[dict[str, Any]] = [{"min_gain": 0.9}, {"min_gain": float("inf")}, {"price_per_hour": -1.0}]
    for wrong in refused:
        with pytest.raises(UsageError, match=next(iter(wrong))):
            RunConfig(**wrong)


@pytest.mark.slow
def test_a_run_that_is_not_worth_it_spends_nothing_and_goes_on_when_told(tmp_path: Path) -> None:
    out, cache = tmp_path / "out", tmp_path / "cache"
    with pytest.raises(NotWorthItError, match="not worth it"):
        tiny_calibration.run_surely(out, cache, min_gain=100.0)
    assert not (out / "profile.json").exists()
    assert not list(out.glob("run-*.json"))  # costs are measured anew: these may have been of a busy machine
    profile = tiny_calibration.run_surely(out, cache)
    assert profile.certificate.attempt == 1
