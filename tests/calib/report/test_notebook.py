"""What notebooks show of profiles, plans and traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsd_calib.calibration.pilot import Pilot
from fsd_calib.calibration.plan import Plan, PlannedStep, make_plan
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.looks import Looks
from fsd_collectors.store.reading import load_traces
from support.calibration.profiles import UNCERTIFIED, profile
from support.traces.rows import manifest, write


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize(("changes", "badge"), [({}, "Certified"), (UNCERTIFIED, "Not certified")])
def test_a_profile_shows_its_verdict_and_charts(changes: dict[str, object], badge: str) -> None:
    shown = profile({**changes, "task": "<b>sums</b>"})._repr_html_()
    assert shown is not None
    assert f">{badge}.</strong>" in shown
    assert shown.count("data:image/svg+xml;base64,") == 4  # each with the whole beside it
    assert "<script" not in shown
    assert "&lt;b&gt;sums&lt;/b&gt;" in shown


def test_a_plan_shows_what_can_be_certified_and_the_time() -> None:
    pilot = Pilot(64, 0.9, 0.0, 0.02, 0.99)
    steps = (PlannedStep("search", 1200, 0.5),)
    plan: Plan = make_plan(Claim(0.98, looks=Looks((800,))), pilot, 800, 0.05, steps)
    shown = plan._repr_html_()
    for words in ("Plan of a calibration", "chance to certify", "Estimated time", "1,200", "10 min"):
        assert words in shown


def test_traces_show_their_tables_and_charts(tmp_path: Path) -> None:
    shown = load_traces(write(tmp_path / "run", manifest(24)))._repr_html_()
    assert shown is not None
    assert "What was collected" in shown
    assert shown.count("data:image/svg+xml;base64,") == 2
