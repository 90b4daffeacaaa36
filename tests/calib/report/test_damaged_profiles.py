"""Profiles with a value that no calibration writes: refused in one line, or shown, never a traceback.

Each value of each variant is replaced by each of the extreme ones in turn.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fsd_calib.report.console import print_details, print_report
from fsd_calib.report.diff import difference_table, differences
from fsd_calib.report.page import run_page
from fsd_calib.report.run_folder import Run
from fsd_common.errors import UsageError
from fsd_common.pages.markdown import markdown
from fsd_common.pages.themes import plain
from fsd_common.terminal import visible
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.damage import ACTING, NUMBERS, edited, leaves
from support.calibration.profiles import FAST_ENOUGH, FRONT, UNCERTIFIED, UNTESTED, profile
from support.calibration.reports import HARM, paper, text_of

SINGLE = {"speed.single": {"target": 20.0, "lossless": 51.0, "chosen": 61.5, "timed": 5},
          "speed.load": 0.5, "speed.cores": 2}  # fmt: skip
VARIANTS = {
    "certified": HARM | SINGLE, "not certified": UNCERTIFIED, "plain sd": FAST_ENOUGH, "untested": UNTESTED,
    "front": FRONT,
}  # fmt: skip


def fault(content: dict[str, Any], file: Path, whole: ThresholdProfile) -> str:
    """Returns what is wrong with the refusal or the report of a file with this content; empty if nothing is."""
    file.write_text(json.dumps(content))
    console = paper()
    try:
        loaded = ThresholdProfile.load(file, allow_edited=True)
        print_report(loaded, console=console)
        print_details(loaded, console=console)
        console.print(difference_table(differences(whole, loaded), ("a", "b"), console.width))
        page = run_page(Run("x", loaded, lacks="y"))
        json.dumps([plain(chart.spec) for chart in page.charts], allow_nan=False)
        shown = markdown(page, lambda chart: chart.name)
    except UsageError as refused:
        return "" if str(refused).isprintable() else f"refused by {str(refused)!r}"
    except Exception as error:
        return repr(error)
    text = text_of(console) + shown
    return "" if text == visible(text) else "control characters are shown"


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_damaged_values_are_refused_or_shown(name: str, tmp_path: Path) -> None:
    whole = profile(VARIANTS[name])
    content = json.loads(whole.model_dump_json())
    faults = []
    for path, value in leaves(content):
        for extreme in ACTING if isinstance(value, str) else NUMBERS:
            if found := fault(edited(content, path, extreme), tmp_path / "profile.json", whole):
                faults.append(f"{'.'.join(map(str, path))} = {extreme!r:.20}: {found}")
    assert faults == []
