"""Profiles with a value that no calibration writes: refused in one line, or shown, never a traceback.

Each value of each variant is replaced by each of the extreme ones in turn.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsd_calib.report.console import print_details, print_report
from fsd_calib.report.diff import difference_table, differences
from fsd_decoding.errors import UsageError
from fsd_decoding.profile.parts import LARGEST
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.terminal import visible
from support.calibration.profiles import FRONT, SD_SUFFICES, UNCERTIFIED, UNTESTED, profile
from support.calibration.reports import HARM, paper, text_of

NUMBERS = (10**400, LARGEST, 0, 1e308, 5e-324)
ACTING = ("\x1b[2J\u202etok", "a\nb\r\x9b5m")
SINGLE = {"speed.single": {"target": 20.0, "sd": 51.0, "chosen": 61.5, "timed": 5},
          "speed.load": 0.5, "speed.cores": 2}  # fmt: skip
VARIANTS = {
    "certified": HARM | SINGLE, "not certified": UNCERTIFIED, "plain sd": SD_SUFFICES, "untested": UNTESTED,
    "front": FRONT,
}  # fmt: skip
Steps = tuple[str | int, ...]


def leaves(value: Any, path: Steps = ()) -> Iterator[tuple[Steps, Any]]:
    """Yields numbers and strings with their paths; of a list, the first and the last item's."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for i in sorted({0, len(value) - 1} if value else ()):
            yield from leaves(value[i], (*path, i))
    elif isinstance(value, (int, float, str)) and not isinstance(value, bool):
        yield path, value


def edited(content: dict[str, Any], path: Steps, value: Any) -> dict[str, Any]:
    content = copy.deepcopy(content)
    *folders, last = path
    place: Any = content
    for step in folders:
        place = place[step]
    place[last] = value
    return content


def fault(content: dict[str, Any], file: Path, whole: ThresholdProfile) -> str:
    """Returns what is wrong with the refusal or the report of a file with this content; empty if nothing is."""
    file.write_text(json.dumps(content))
    console = paper()
    try:
        loaded = ThresholdProfile.load(file, allow_edited=True)
        print_report(loaded, console=console)
        print_details(loaded, console=console)
        console.print(difference_table(differences(whole, loaded), ("a", "b"), console.width))
    except UsageError as refused:
        return "" if str(refused).isprintable() else f"refused by {str(refused)!r}"
    except Exception as error:
        return repr(error)
    text = text_of(console)
    return "" if text == visible(text) else "control characters are shown"


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
