"""Options of requests and settings of the plugin: what is taken, and one line for what is not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fsd_calib.vllm_plugin.settings import EXACT, ServeSettings, requested_threshold
from fsd_common.errors import UsageError


@pytest.mark.parametrize(
    ("given", "threshold"),
    [
        (None, 0.25),
        ({}, 0.25),
        ({"session_id": "7", "kv_transfer_params": {}}, 0.25),
        ({"fsd": "on"}, 0.25),
        ({"fsd": "off"}, EXACT),
        ({"fsd_threshold": 0}, 0.0),
        ({"fsd_threshold": 0.5, "fsd": "on"}, 0.5),
        ({"fsd_threshold": -3}, -3.0),
    ],
    ids=str,
)
def test_a_request_gets_the_profiles_threshold_unless_it_asks_for_another(given: Any, threshold: float) -> None:
    assert requested_threshold(given, 0.25) == threshold


@pytest.mark.parametrize(
    "given",
    [
        {"fsd": "Off"}, {"fsd": 0}, {"fsd": None}, {"fsd_threshold": "0.1"}, {"fsd_threshold": True},
        {"fsd_threshold": math.nan}, {"fsd_threshold": math.inf}, {"fsd_threshold": [0.1]}, {"fsd_thresholds": 0.1},
        {"fsd": "off", "fsd_threshold": 0.1}, {"fsd_threshold": None}, {"fsd_threshold": 10**400},
    ],
    ids=lambda given: str(given)[:40],
)  # fmt: skip
def test_other_options_are_refused_in_one_line_with_their_name(given: Any) -> None:
    with pytest.raises(UsageError) as caught:
        requested_threshold(given, 0.25)
    assert len(str(caught.value).splitlines()) == 1
    assert next(iter(given)) in str(caught.value)


def test_what_is_passed_to_workers_is_what_they_read() -> None:
    settings = ServeSettings.of({"profile": "p.json", "records": "traces", "record_texts": 5})
    passed = settings.passed_on("{}", "folder", 2)
    expected = ServeSettings("p.json", records="traces", record_texts=5, content="{}", counters="folder", engines=2)
    assert ServeSettings(**passed) == expected


@pytest.mark.parametrize(
    "given",
    ["p.json", {"profile": "p", "content": "{}"}, {"profile": "p", "engines": 2}, {}, {"profile": "p", "records": 3}],
)
def test_settings_are_refused_in_one_line(given: Any) -> None:
    with pytest.raises(UsageError) as caught:
        ServeSettings.of(given)
    assert len(str(caught.value).splitlines()) == 1
