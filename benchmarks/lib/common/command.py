"""`fsd-calibrate --task=arithmetic` as a user runs it, in folders of its own, with what it planned and found."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

GOAL, QUICK = ("--min-acc=0.98",), ("--min-acc=0.8", "--limit=100", "--workers=1")
_DECIDED = {0, 3}  # exit codes of a calibration that came to its end


@dataclass(frozen=True)
class Calibrated:
    """A calibration that came to its end. Its profile and its record are in `folder`, unless nothing was worth it.

    Attributes:
        said: The last that it wrote on stderr.
        plan: The steps by name, and `seconds` in all, as it printed them.
        planned_after: Seconds of what came before the plan.
    """

    folder: Path
    code: int
    said: str
    seconds: float
    cpu_seconds: float
    plan: dict[str, Any]
    planned_after: float


def calibrate(folder: Path, *options: str) -> Calibrated:
    """Runs the command on all cores, with folders below `folder`, and returns what came of it.

    Raises:
        RuntimeError: It did not come to a verdict.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = [f"--{name}={folder / name}" for name in ("out", "cache", "state")]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", __name__, str(folder / "plan.json"), "--task=arithmetic", *options, *own]
    before, began = _cpu_seconds(), time.time()
    ended = subprocess.run(
        command, check=False, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    seconds = time.time() - began
    if ended.returncode not in _DECIDED:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {ended.returncode}: {ended.stderr[-2000:]}")
    plan = json.loads((folder / "plan.json").read_text())
    after = plan.pop("at") - began
    return Calibrated(
        folder / "out", ended.returncode, ended.stderr[-2000:], seconds, _cpu_seconds() - before, plan, after
    )


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Runs the command, and writes its plan into the file that is named before the command's own arguments."""
    from fsd_calib.cli import calibrate
    from fsd_calib.report import plan as report

    file, print_plan = Path(sys.argv.pop(1)), report.print_plan

    def note(plan: Any, *others: Any) -> None:
        steps = {step.name: asdict(step) | {"seconds": step.seconds} for step in plan.steps}
        file.write_text(json.dumps({"at": time.time(), "steps": steps, "seconds": plan.seconds}))
        print_plan(plan, *others)

    sys.argv[0] = "fsd-calibrate"
    with patch.object(report, "print_plan", note):  # before `fsd_calib.cli.in_turn` imports it
        calibrate.main()


if __name__ == "__main__":
    main()
