"""Charts of retention begin at what was asked for, and have the whole beside them where settings lie far below."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fsd_calib.report.charts import retention_and_speed, retention_by_threshold
from fsd_calib.report.notebook import profile_html
from fsd_calib.report.page import run_page
from fsd_calib.report.rows import rows
from fsd_calib.report.run_folder import Run
from fsd_common.pages.blocks import Zoomed
from fsd_common.pages.charts import Chart
from fsd_common.pages.markdown import markdown
from fsd_common.pages.pictures import svg
from support.calibration.profiles import FRONT, LOSSLESS, VALUES, profile


def with_retention(*values: float) -> dict[str, Any]:
    """Changes that add a setting of the tuning part for each."""
    curve = copy.deepcopy(VALUES["curve"])
    tuned = curve[2]
    more = [
        {**tuned, "setting": {**tuned["setting"], "threshold": 0.3 + 0.1 * i}, "retention": value}
        for i, value in enumerate(values)
    ]
    return {"curve": [*curve, *more]}


def axis(chart: Chart) -> list[float]:
    """The ends of the axis of retention, which all layers share."""
    (ends,) = {
        tuple(layer["encoding"]["y"]["scale"]["domain"])
        for layer in chart.spec["layer"]
        if "scale" in layer["encoding"].get("y", {})
    }
    return list(ends)


@pytest.mark.parametrize("draw", [retention_and_speed, retention_by_threshold])
def test_a_chart_begins_at_what_was_asked_for_or_at_the_chosen_settings_bound(draw: Any) -> None:
    found = profile(with_retention(0.2, 0.5))
    shown = draw(found, rows(Run("x", found)))
    assert isinstance(shown, Zoomed)
    low, high = axis(shown.chart)
    assert 90 < low < 98 < 100 < high  # 98 % was asked for; the chosen one's bound is 98.99 %
    assert {layer["mark"]["type"] for layer in shown.chart.spec["layer"] if not layer["mark"]["clip"]} == {"text"}
    whole = axis(shown.whole)
    assert whole[0] < 20
    assert whole[1] > 100
    assert "text" not in {layer["mark"]["type"] for layer in shown.whole.spec["layer"]}
    (shade,) = [layer for layer in shown.whole.spec["layer"] if layer["mark"]["type"] == "rect"]
    assert shade["data"]["values"] == [{"from": low, "to": high}]
    for chart in (shown.chart, shown.whole):
        assert svg(chart).startswith(b"<svg")


@pytest.mark.parametrize(
    "changes",
    [
        {},  # 86 % is the least: hardly less than what is asked for and its surroundings
        FRONT | with_retention(0.2),
        {"certificate.acc": "absolute", "certificate.wanted": 0.9} | with_retention(0.2),
    ],
    ids=["near", "front", "absolute"],
)
def test_there_is_one_chart_where_settings_are_near_or_no_retention_was_asked_for(changes: dict[str, Any]) -> None:
    found = profile({"certificate.wanted": 0.9} | changes)
    assert isinstance(retention_and_speed(found, rows(Run("x", found))), Chart)


def test_a_failed_settings_retention_is_seen_though_it_is_below_what_was_asked_for() -> None:
    changes = with_retention(0.1)
    for point in changes["curve"]:
        if point["setting"].get("threshold") == VALUES["threshold"]:
            point |= {"retention": 0.7, "lower_bound": None}
    found = profile(changes)
    shown = retention_and_speed(found, rows(Run("x", found)))
    assert isinstance(shown, Zoomed)
    assert axis(shown.chart)[0] < 70


@pytest.mark.parametrize("draw", [retention_and_speed, retention_by_threshold])
def test_where_nothing_was_chosen_the_best_setting_is_seen(draw: Any) -> None:
    """Its retention; its interval may reach above what was asked for, and its mark be below."""
    changes = LOSSLESS | with_retention(0.1, 0.85)
    for point in changes["curve"]:
        if point["setting"].get("threshold") is not None:
            point |= {"retention": min(point["retention"], 0.9), "interval": [0.1, 1.02], "lower_bound": None}
    found = profile(changes | {"certificate.wanted": 0.98})
    shown = draw(found, rows(Run("x", found)))
    chart = shown.chart if isinstance(shown, Zoomed) else shown
    assert axis(chart)[0] < 90


def test_pages_markdown_and_notebooks_show_both() -> None:
    found = profile(with_retention(0.2))
    page = run_page(Run("x", found, lacks="y"))
    names = [chart.name for chart in page.charts]
    assert names[:4] == ["speed", "speed-whole", "threshold", "threshold-whole"]
    text = markdown(page, lambda chart: f"{chart.name}.svg")
    assert all(f"]({name}.svg)" in text for name in names)
    assert profile_html(found).count("data:image/svg+xml;base64,") == 4
