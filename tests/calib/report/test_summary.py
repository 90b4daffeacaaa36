"""The summary table: every number is the profile's, marked with its part, and everything fits."""

from __future__ import annotations

from typing import Any

import pytest

from support.calibration.profiles import TOO_SLOW, UNCERTIFIED, UNKNOWN, UNTESTED, at, values
from support.calibration.reports import OUTCOMES, one_line, printed, printed_details, row


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("changes", OUTCOMES)
def test_everything_fits(width: int, changes: dict[str, Any]) -> None:
    text = printed(changes, width) + printed_details(changes, width)
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize(
    ("changes", "label", "below"),
    [
        ({}, "fsd-coupled", "T = 0.0625, L = 5"),
        (UNCERTIFIED, "not certified", "T = 0.0625, L = 5"),
        (TOO_SLOW, "lossless", "(coupled), L = 4"),
    ],
)
def test_summary_has_a_number_a_cell_and_its_bound_below(changes: dict[str, Any], label: str, below: str) -> None:
    text = printed(changes)
    assert row(text, "target alone") == (["93.3%¹", "–", "–", "20.0²"], "19.5–20.5")
    assert row(text, "sd (lossless)") == (["93.3%¹", "100.0%¹", "4.51¹", "51.0²"], "L = 4 50.1–51.9")
    assert row(text, label) == (["93.1%¹", "99.8%¹", "5.41¹", "61.5²"], f"{below} ≥ 91.1% ≥ 98.9% 60.2–62.8")


def test_marks_say_where_a_number_was_measured() -> None:
    text = printed()
    assert "¹ measured on the certification part: 700 problems, unseen" in text
    assert "² timed on 50 tuning problems, with every setting in turn; 95% intervals within this" in one_line(text)
    assert "≥ lower bound at 95.5% confidence, individually and not corrected for the choice" in text
    assert "95% intervals" not in one_line(printed(UNKNOWN | {"speed.intervals": None}))


def test_without_a_test_numbers_are_the_tuning_parts() -> None:
    text = printed(UNTESTED)
    assert "¹ measured on the tuning part: 300 problems" in text
    assert row(text, "fsd-coupled")[0] == ["93.1%¹", "99.0%¹", "5.41¹", "61.5²"]
    assert "≥" not in text


def test_sd_is_shown_at_its_own_draft_length() -> None:
    own = {**at(3, draft_length=4), "accuracy": 0.9}
    assert row(printed({"curve": [*values()["curve"], own]}), "sd (lossless)")[0][0] == "90.0%¹"


def test_what_is_certified_is_shown_where_the_outcomes_show_no_more() -> None:
    """A certificate that was decided at an early look: the claim stands, and the bound given passing is below it."""
    early = {"certificate.given_passing": True, "certificate.lower_bound": 0.93, "certificate.wanted": 0.95}
    text = one_line(printed(early))
    assert "≥ 95.0%" in text
    assert "≥ lower bound as certified, at 95% confidence" in text
    more = one_line(printed(early | {"certificate.lower_bound": 0.96}))
    assert "≥ 96.0%" in more
    assert "given that it passed" in more
