"""`fsd-calibrate --engine server`: plans, runs and reports the calibration of a server's knob.

Importing this imports torch.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from fsd_calib.calibration.output_folder import own_folder
from fsd_calib.calibration.plan import Plan
from fsd_calib.calibration.run_file import save_run
from fsd_calib.cli.request import Request
from fsd_calib.report.plan import print_plan
from fsd_calib.servers.calibration import ServerCalibration
from fsd_calib.servers.messages import shown
from fsd_calib.servers.report import print_report
from fsd_common.console import LiteralConsole
from fsd_common.progress.base import Progress
from fsd_decoding.profile.server_profile import ServerProfile


def calibration_of(asked: Request, progress: Progress) -> ServerCalibration:
    """Returns the calibration that is asked for. UsageError: a server cannot do what is asked of it."""
    assert asked.server is not None
    config = asked.run.changed(progress=progress)
    made = ServerCalibration(asked.task, asked.server, asked.goal, asked.space, config)
    out = config.out or own_folder(asked.usual_folder, made, asked.engines)
    return replace(made, config=config.changed(out=out))


def first_prompt(calibration: ServerCalibration) -> str:
    """Returns the first prompt, as people read it."""
    return shown(calibration.load_task().problems[0].prompt)


def planned(calibration: ServerCalibration, silent: bool) -> list[dict[str, Any]]:
    """Plans the calibration; returns plans for programs."""
    plan = calibration.plan()
    if not silent:
        print_plan(plan, LiteralConsole())
    return [asdict(plan) | {name: getattr(plan, name) for name in ("seconds", "worst_case_extra", "price", "worth_it")}]


def run(calibration: ServerCalibration, *, plan: bool, report: bool) -> ServerProfile:
    """Runs the calibration and saves what was asked for beside its profile."""
    on_stderr = LiteralConsole(stderr=True)

    def show(made: Plan) -> None:
        if plan:
            print_plan(made, on_stderr)

    profile = calibration.run(show)
    save_run(calibration, profile)
    if report:
        print_report(profile, profile.file)
    return profile


def result(profile: ServerProfile) -> dict[str, Any]:
    """Returns what the calibration came to, for programs: see docs/commands.md."""
    file = None if profile.file is None else str(profile.file.absolute())
    one = {"outcome": profile.outcome, "met": profile.met, "file": file, "page": None,
           "profile": profile.model_dump(mode="json")}  # fmt: skip
    return {"met": profile.met, "calibrations": [one], "untested_engines": []}
