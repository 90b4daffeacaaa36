"""What a calibration ends with, and what its profile then says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny_calibration
from fsd_calib.reporting.summary import notes
from fsd_calib.reporting.verdict import verdict
from profiles import FRONT, TOO_SLOW, UNCERTIFIED, profile, values

_NOTHING_DECODED = {f"certificate.{name}": 0 for name in ("problems", "both_right", "lost", "gained", "both_wrong")} | {
    f"certificate.{name}": None for name in ("retention", "lower_bound", "accuracy", "accuracy_lower_bound")
}


@pytest.mark.slow
def test_a_speed_that_sd_makes_already_is_granted(tmp_path: Path) -> None:
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", min_acc=None, min_speed=1.0)
    assert made.outcome == "lossless-suffices"


@pytest.mark.slow
def test_an_unreachable_speed_spends_no_attempt(tmp_path: Path) -> None:
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", min_acc=None, min_speed=1e9)
    assert (made.outcome, made.certificate.attempt) == ("too-slow", None)


@pytest.mark.slow
def test_what_is_slower_than_sd_is_no_success(tmp_path: Path) -> None:
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", min_acc=0.9, rule="fsd")
    assert made.outcome != "certified" or made.speed.chosen > made.speed.sd


@pytest.mark.slow
def test_without_a_test_no_problems_are_too_few(tmp_path: Path) -> None:
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", problems=80, min_acc=0.98, guarantee="none")
    assert made.certificate.guarantee == "none"


@pytest.mark.slow
def test_sampling_noise_is_not_called_rounding(tmp_path: Path) -> None:
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", rule="fsd-sd", temperature=0.8)
    assert made.numerical_churn is None or made.numerical_churn.texts_changed < made.numerical_churn.problems / 4


@pytest.mark.parametrize("outcome", [UNCERTIFIED, TOO_SLOW, FRONT])
def test_the_lossless_rule_runs_at_its_own_draft_length(outcome: dict[str, object]) -> None:
    """`draft_length` is the fuzzy setting's: on the bundled pair 12, where the lossless rules are best at 4."""
    assert profile(outcome).effective_draft_length == 4


def test_the_fastest_is_by_time_not_by_tokens_a_round() -> None:
    long = {**values()["curve"][2], "draft_length": 12, "tokens_per_round": 9.0, "tokens_per_second": 30.0}
    assert profile({**UNCERTIFIED, "curve": [*values()["curve"][:3], long]}).at(min_acc=0.85).draft_length == 5


def test_a_tuning_point_beyond_one_that_failed_on_certification_is_not_chosen() -> None:
    failed = {**values()["curve"][4], "threshold": 0.25, "accuracy": 0.8, "retention": 0.86, "lower_bound": None,
              "counts": None}  # fmt: skip
    lucky = {**values()["curve"][2], "threshold": 0.3, "retention": 0.95, "tokens_per_second": 71.0,
             "tokens_per_round": 5.9}  # fmt: skip
    chosen = profile({**UNCERTIFIED, "curve": [values()["curve"][1], failed, lucky]}).at(min_acc=0.9)
    assert chosen.threshold != 0.3


def test_the_footnote_names_the_part_that_was_decoded() -> None:
    said = notes(profile(UNCERTIFIED | _NOTHING_DECODED | {"estimate.lower_bound": None}))
    assert "certification part: 700 problems" not in said


def test_the_footnote_counts_what_was_decoded() -> None:
    """Betting and futility stop early: 70 of 700 problems decoded are not 700."""
    few = {"certificate.problems": 70, "certificate.both_right": 70, "certificate.lost": 0, "certificate.gained": 0,
           "certificate.both_wrong": 0, "certificate.retention": 1.0, "certificate.accuracy": 1.0}  # fmt: skip
    assert "700 problems" not in notes(profile(few))


def test_a_fronts_sentences_do_not_speak_of_one_setting_without_naming_it() -> None:
    said = verdict(profile(FRONT))
    assert "That is retention" not in said
