"""Speeds in the report: how they were timed, with one stream and several, and forecasts beside them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fsd_calib.report.charts import retention_and_speed
from fsd_calib.report.page import plain_sentence
from fsd_calib.report.rows import rows
from fsd_calib.report.run_folder import Run
from fsd_common.pages.charts import Chart
from support.calibration.profiles import LOSSLESS, NOT_TIMED, UNCERTIFIED, UNKNOWN, VALUES, profile
from support.calibration.reports import OUTCOMES, one_line, printed, printed_details, row

SINGLE: dict[str, Any] = {
    "target": 1020.25, "lossless": 1051.0, "chosen": 1262.5, "timed": 25,
    "intervals": {"target": [1019.5, 1020.5], "lossless": [1050.1, 1051.9], "chosen": [1260.2, 1262.8],
                  "over_lossless": [1.19, 1.25], "over_target": [1.2, 1.3], "confidence": 0.95},
}  # fmt: skip


def test_speeds_over_processes_say_so() -> None:
    careful = {"speed.processes": 5, "speed.part": "certification"}
    text = one_line(printed(careful))
    assert "² timed on 50 certification problems, with every setting in turn, in each of 5 fresh" in text
    assert "; 95% intervals over these processes" in text
    assert "1.21x (1.18–1.23 over 5 fresh processes) the tokens/s of sd" in text
    assert "this run" not in text


@pytest.mark.parametrize("outcome", [{}, LOSSLESS, UNCERTIFIED])
def test_what_was_not_timed_is_called_a_forecast(outcome: dict[str, Any]) -> None:
    text = one_line(printed(NOT_TIMED | outcome))
    assert "² forecast from rounds decoded on tuning problems and the cost of a round; no setting was timed" in text
    assert "this run" not in text
    assert ("by the cost model's forecast 1.21x the tokens/s of sd" in text) == (outcome == {})
    assert ("plain sd, which is forecast to make 51.0 tokens/s" in text) == (outcome == LOSSLESS)


def test_a_busy_machine_is_repeated() -> None:
    said = "the machine was busy when timing began (load 5.3 on 2 cores)"
    assert said in one_line(printed({"speed.load": 5.26, "speed.cores": 2}))
    assert "busy" not in printed({"speed.load": 2.0, "speed.cores": 2})
    assert "busy" not in printed()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("changes", OUTCOMES)
def test_speeds_of_one_stream_stand_beside_those_of_several(width: int, changes: dict[str, Any]) -> None:
    text = printed({**changes, "speed.batch": 16, "speed.single": SINGLE}, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert row(text, "sd (lossless)")[0][-2:] == ["51.0²", "1051.0²"]
    assert row(text, "sd (lossless)")[1] == "L = 4 50.1–51.9 1050.1–1051.9"
    assert "² timed on 50 tuning problems at batch 16 and 25 at batch 1, with every setting" in one_line(text)
    heading = text[: text.index("target alone")]
    assert re.search("at batch 16 +at batch 1 ", heading)
    gain = "1.20x (1.19–1.25) the tokens/s of sd and 1.24x (1.20–1.30) the tokens/s of the target alone."
    said = profile(changes).certificate.certified or profile(changes).outcome == "untested"
    assert (f"; with one stream {gain}" in one_line(text)) == said


FORECAST = {"speed.forecast": {"target": 1020.4, "lossless": 1052.25, "chosen": 1063.5}}


@pytest.mark.parametrize("several", [{}, {"speed.batch": 16, "speed.single": SINGLE}])
def test_no_forecast_stands_beside_what_was_timed(several: dict[str, Any]) -> None:
    made = profile(FORECAST | several)
    text = printed(FORECAST | several, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "forecast" not in text
    assert not {"1020.4", "1052.2", "1063.5"} & set(re.findall(r"\d+\.\d", text + plain_sentence(made)))


TIMED = {"lossless.draft_length": 5}  # that of the curve's points


def test_nor_in_the_curve_or_on_the_page() -> None:
    """Of the target, sd and the chosen setting; others have their forecasts."""
    made = profile(TIMED)
    found = rows(Run("run", made))
    assert {each.setting.threshold: each.forecast for each in found} == {None: None, 0.0625: None, 0.25: 70.0}
    points = [line.split() for line in printed_details(TIMED, 120).splitlines() if " 5 " in line and "%" in line]
    assert len(points) == 5
    assert [point[-2] for point in points] == ["–", "–", "70.0", "–", "–"]
    untimed = profile({**TIMED, **NOT_TIMED})
    assert all(each.forecast for each in rows(Run("run", untimed)))


def drawn(changes: dict[str, Any]) -> tuple[dict[str, float], float, str]:
    """Where marks of the chart of speed are, by label or T, where its axis ends, and what hovering on T = 0.25 says."""
    made = profile({**TIMED, "certificate.wanted": 0.9, **changes})
    chart = retention_and_speed(made, rows(Run("run", made)))
    assert isinstance(chart, Chart)
    values = chart.spec["data"]["values"]
    ends = {layer["encoding"]["x"]["scale"]["domain"][1] for layer in chart.spec["layer"] if scaled(layer)}
    (hollow,) = [value for value in values if not value["timed"]]
    return {value.get("label", value["T"]): value["speed"] for value in values}, ends.pop(), hollow["tokens/s"]


def scaled(layer: dict[str, Any]) -> bool:
    return "scale" in layer["encoding"].get("x", {})


@pytest.mark.parametrize("busy", [1, 7])
def test_forecasts_do_not_dwarf_what_a_busy_machine_timed(busy: int) -> None:
    """The settings are as far apart as on an idle one, whatever forecasts say."""
    names, speed = ("target", "lossless", "chosen"), VALUES["speed"]
    slow = {f"speed.{name}": speed[name] / busy for name in names}
    between = {f"speed.intervals.{name}": [end / busy for end in speed["intervals"][name]] for name in names}
    marks, end, said = drawn(slow | between)
    forecasts = {"sd": 51.0, "chosen": 61.5, "0.25": 70.0}
    assert marks == pytest.approx({name: speed / busy for name, speed in forecasts.items()})
    assert marks["chosen"] > 0.8 * end
    assert said == ("70.0, forecast" if busy == 1 else "10.0, forecast (70.0 × 0.14)")


def test_ratios_are_of_pairs_and_by_the_clock_that_is_named() -> None:
    changes = {"speed.ratios": {"over_lossless": 1.19, "over_target": 3.05}, "speed.clock": "cpu"}
    text = one_line(printed(changes))
    assert "1.19x (1.18–1.23 within this run) the tokens per processor second of sd and 3.05x" in text
    assert "; ratios (x) are of processor seconds, since the clock's scattered more, and not of the tokens/s" in text
    assert "processor" not in one_line(printed())


def test_too_few_turns_are_told_and_show_nothing() -> None:
    text = one_line(printed(UNKNOWN | {"speed.intervals": None}))
    assert "; too few in the time for intervals (fsd-profile retime takes more)" in text
    assert "Too little was timed to tell how fast it is: decoders that follow this profile run it" in text
