"""Calibrations that go on whatever there is to gain: those of tiny pairs are often not worth it."""

from __future__ import annotations

from typing import Any

import pytest

from fsd_calib.calibration.plan import Plan

_WORTH_IT: Any = Plan.worth_it


def go_on_for_any_gain() -> None:
    """From now on every plan is worth its run."""
    Plan.worth_it = property(lambda plan: True)  # type: ignore[method-assign, assignment]


def stop_where_too_little_is_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test of what it says, until its end."""
    monkeypatch.setattr(Plan, "worth_it", _WORTH_IT)
