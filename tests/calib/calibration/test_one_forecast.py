"""Calibrations of tiny models: study, curve and profile have one and the same forecast of a setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from fsd_calib import ThresholdProfile
from fsd_decoding.profile.fields import CurvePoint
from support.calibration.fixed_speeds import fix_costs, fix_speeds
from support.models import tiny_calibration

Made = tuple[ThresholdProfile, optuna.Study]


def calibrated(folder: Path, **goal: Any) -> Made:
    """With the one study of it."""
    url = f"sqlite:///{folder}/studies.db"
    made = tiny_calibration.run(folder / "out", folder / "cache", storage=url, **goal)
    (name,) = (name for name in optuna.get_all_study_names(url) if not name.endswith(" (records)"))
    return made, optuna.load_study(study_name=name, storage=url)


@pytest.fixture(
    scope="module", params=["timed", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("untimed", "estimated"))]
)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Of what a clock said, of what none did, and of a setting that the clock found to be no faster."""
    folder = tmp_path_factory.mktemp("calibrated")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "untimed":
            fix_costs(patch)
            return calibrated(folder, problems=500, timing="none", trials=6)
        fix_speeds(patch, over_lossless=2.0 if request.param == "timed" else 0.8)
        return calibrated(folder, problems=160, trials=6)


def study_records(made: Made) -> list[dict[str, Any]]:
    """Whatever the study says of settings."""
    study = made[1]
    recounted = [value for name, value in study.user_attrs.items() if name.startswith("recounted ")]
    return [t.user_attrs for t in study.trials if t.state.name == "COMPLETE"] + recounted


def same(point: CurvePoint, attributes: dict[str, Any]) -> bool:
    names = ("rule", "score", "draft_length", "threshold")
    return all(getattr(point.setting, name) == attributes[name] for name in names)


def points(profile: ThresholdProfile, threshold: float | None, draft_length: int, rule: str) -> list[CurvePoint]:
    sought = (threshold, draft_length, rule)
    return [p for p in profile.curve if (p.setting.threshold, p.setting.draft_length, p.setting.rule) == sought]


def test_the_curve_says_what_the_study_says(made: Made) -> None:
    tuned = [p for p in made[0].curve if p.source == "tuning" and p.setting.threshold is not None]
    agreeing = 0
    for attributes in study_records(made):
        (point,) = [p for p in tuned if same(p, attributes)]
        if point.problems == attributes["problems"]:
            assert point.forecast == attributes["tokens_per_second"]
            assert point.retention == pytest.approx(attributes["retention"])
            agreeing += 1
    assert agreeing


def test_what_is_counted_on_the_whole_part_is_in_the_study_so(made: Made) -> None:
    """Each setting of the whole part once: as a trial, or as what freezing counted."""
    profile = made[0]
    whole = [p for p in profile.curve if p.source == "tuning" and p.problems == profile.data.tuning]
    for point in (p for p in whole if p.setting.threshold is not None):
        said = [a for a in study_records(made) if same(point, a) and a["problems"] == point.problems]
        assert [a["tokens_per_second"] for a in said] == [point.forecast]


def test_the_profile_says_what_the_curve_says(made: Made) -> None:
    profile, forecast = made[0], made[0].speed.forecast
    chosen = profile.threshold if profile.estimate is None else profile.estimate.threshold
    assert chosen is not None
    sd_length = profile.lossless.draft_length if profile.lossless else 0
    assert {p.forecast for p in points(profile, chosen, profile.draft_length, profile.rule)} == {forecast.chosen}
    assert {p.forecast for p in points(profile, None, sd_length, "sd")} == {forecast.lossless}
    assert {p.forecast for p in points(profile, None, 1, "target")} == {forecast.target}


def test_a_setting_has_one_forecast_on_both_parts(made: Made) -> None:
    by_setting: dict[Any, set[float | None]] = {}
    for point in made[0].curve:
        by_setting.setdefault(point.setting, set()).add(point.forecast)
    assert all(len(forecasts) == 1 for forecasts in by_setting.values())
    assert {p.source for p in made[0].curve} == {"tuning", "certification"}


def test_the_forecast_stands_beside_the_clock(made: Made) -> None:
    speed = made[0].speed
    three = [(getattr(speed, name), getattr(speed.forecast, name)) for name in ("target", "lossless", "chosen")]
    assert all(clock == forecast for clock, forecast in three) == (not speed.timed)


def test_the_forecast_is_the_cost_model_on_counted_rounds(made: Made) -> None:
    speed, costs = made[0].speed, made[0].costs
    assert costs is not None
    assert speed.forecast.target == pytest.approx(1 / (costs.verify + costs.position))


def test_the_studys_name_says_what_it_is_of(made: Made) -> None:
    *words, which = made[1].study_name.split(", ")
    assert words[0] == "tiny"
    assert " with " in words[1]
    assert words[2:] == ["keep retention 0.7"]
    assert len(which) == 8
