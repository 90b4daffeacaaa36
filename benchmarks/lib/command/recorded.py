"""Runs `fsd-calibrate` as the command does, and notes when its steps end: `python -m lib.command.recorded FILE …`.

FILE receives JSON; what follows are the command's own arguments.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

_STEPS = ("baseline", "search", "certification")


class Recorder:
    """The plan, and the times at which steps end.

    Args:
        began: the time at which the process was asked for, by `time.time`.
    """

    def __init__(self, began: float) -> None:
        self._began, self._ends = began, list[float]()
        self._plan: Any = None

    def planned(self, plan: Any) -> None:
        self._plan = plan
        self._ends.append(time.time())

    def ended(self) -> None:
        self._ends.append(time.time())

    def results(self, work: list[Any]) -> dict[str, Any]:
        """Returns seconds, planned and taken, and decodings by step."""
        ends = [self._began, *self._ends, time.time()]
        names = ("preparation", *_STEPS, "timing")
        return {
            "planned": {step.name: {**asdict(step), "seconds": step.seconds} for step in self._plan.steps},
            "planned_seconds": self._plan.seconds,
            "seconds": {name: end - before for name, before, end in zip(names, ends[:-1], ends[1:], strict=True)},
            "work": {name: one.model_dump() for name, one in zip(_STEPS, work, strict=True)},
        }


def main() -> None:
    file, began, *arguments = sys.argv[1:]
    from fsd_calib.calibration.run import Meter
    from fsd_calib.cli import calibrate
    from fsd_calib.report import plan as plan_report

    recorder, meters = Recorder(float(began)), list[Meter]()
    print_plan, end = plan_report.print_plan, Meter.end

    def note_plan(plan: Any, *others: Any) -> None:
        recorder.planned(plan)
        print_plan(plan, *others)

    def note_end(meter: Meter) -> None:
        name = meter.stage
        end(meter)
        if name in _STEPS:
            meters.append(meter)
            recorder.ended()

    sys.argv = ["fsd-calibrate", *arguments]
    try:
        with patch.object(plan_report, "print_plan", note_plan), patch.object(Meter, "end", note_end):
            calibrate.main()
    finally:
        if len(meters) == len(_STEPS):
            Path(file).write_text(
                json.dumps(recorder.results([s.work for s in meters[-1].steps if s.work and s.name in _STEPS]))
            )


if __name__ == "__main__":
    main()
