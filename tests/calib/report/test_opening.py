"""The opening of a report: its sentence agrees with the verdict, and its tables with those of the terminal."""

from __future__ import annotations

from typing import Any

import pytest

from fsd_calib.report.figures import main_figures
from fsd_calib.report.page import figures_sheet, front_sheet, plain_sentence, verdict_section
from support.calibration.profiles import (
    ANSWERS,
    FAST_ENOUGH,
    FRONT,
    NOT_TIMED,
    SLOWER,
    UNCERTIFIED,
    UNKNOWN,
    UNTESTED,
    profile,
)

FASTER = "1.21 times as fast as sd and 3.1 times as fast as the target alone"
ABSOLUTE = {"certificate.acc": "absolute", "certificate.wanted": 0.9}
OF_LOSSLESS = {"certificate.lossless": True, "certificate.certified": False}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, f"which kept 99.8% (at least 98.9%), and is {FASTER}; this holds on problems"),
        (NOT_TIMED, f"and is forecast to be {FASTER}"),
        (NOT_TIMED | FAST_ENOUGH, "plain sd does so, which is forecast to make 51.0 tokens/s"),
        (ABSOLUTE, "with at least 90% accuracy; found fsd-coupled at T = 0.0625 on js with L = 5, which reached 93.1%"),
        ({"certificate.wanted": None, "speed.wanted": 60.0}, "and makes 61.5 tokens/s, 3.1 times the target's"),
        (UNKNOWN, f"which kept 99.8% (at least 98.9%), and is {FASTER}; this holds on"),
        (
            SLOWER,
            "times as fast as sd and 2.1 times as fast as the target alone, so that decoders of this profile run sd",
        ),
        (UNTESTED, f"with L = 5, which is {FASTER}; nothing is certified"),
        ({"task": "agreement:my.jsonl"}, "keeps to the target's own text for at least 98% of prompts"),
        (FRONT, "found the points below, to choose from; their bounds hold together on problems like these"),
        (
            FRONT | {"curve": FRONT["curve"][:1]},
            "found no fuzzy setting that is expected to be faster than sd; nothing",
        ),
        (FAST_ENOUGH | ABSOLUTE | OF_LOSSLESS, "that lossless decoding reaches what was asked holds on problems like"),
        (UNCERTIFIED | OF_LOSSLESS, "nothing is certified"),
    ],
)
def test_the_sentence_says_what_the_verdict_says(changes: dict[str, Any], says: str) -> None:
    assert says in plain_sentence(profile(changes))


def test_seconds_per_answer_stand_beside_speeds() -> None:
    assert figures_sheet(profile(ANSWERS)).headings[-1] == "seconds\n/answer"
    assert [cells[-1] for cells in figures_sheet(profile(ANSWERS)).rows] == ["3.5", "1.37", "1.15"]
    assert "seconds" not in "".join(figures_sheet(profile()).headings)


def test_figures_of_the_target_are_not_shown_as_those_of_an_estimate() -> None:
    estimate = {"threshold": 0.25, "retention": 0.86, "lower_bound": None}
    figures = main_figures(profile(UNCERTIFIED | OF_LOSSLESS | {"estimate": estimate}))
    (chosen,) = [row for row in figures if row.which == "chosen"]
    assert (chosen.retention, chosen.retention_bound, chosen.accuracy_bound) == (0.86, None, None)


def test_a_front_lists_its_points_with_their_bounds() -> None:
    assert [row[2] for row in front_sheet(profile(FRONT)).rows] == [
        "100.0%\n≥ 98.5%", "99.0%\n≥ 97.0%", "90.0%\n≥ 86.0%",
    ]  # fmt: skip
    assert front_sheet(profile(FRONT)) in verdict_section(profile(FRONT)).blocks
