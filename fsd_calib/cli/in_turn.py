"""Making, planning and running `fsd-calibrate`'s calibration, or with several engines theirs in turn.

Importing this imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console

from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.in_turn import in_turn
from fsd_calib.calibration.output_folder import own_folder
from fsd_calib.calibration.recertify import decoding_of, prompts_of
from fsd_calib.cli.drafters import default_pair
from fsd_calib.cli.request import Request
from fsd_calib.report.console import print_report
from fsd_calib.report.plan import print_plan
from fsd_calib.report.run_folder import PAGE
from fsd_calib.tasks.registry import load_task
from fsd_common.console import LiteralConsole, literal
from fsd_common.progress.base import Progress
from fsd_decoding.loading import check_device, load_tokenizer
from fsd_decoding.profile.threshold_profile import ThresholdProfile


def calibration_of(asked: Request, progress: Progress) -> Calibration:
    """Returns the calibration that is asked for.

    Raises:
        UsageError: a setting is unknown or cannot be used here, or settings contradict each other.
    """
    config = asked.run.changed(progress=progress)
    if config.device is not None:
        check_device(config.device)
    target, drafts = asked.target_and_drafts
    space = asked.space if asked.certified is None else decoding_of(asked.certified).changed(seed=asked.seed)
    calibration = Calibration(asked.task, target, drafts, asked.goal, space, config, fixed=asked.certified)
    out = config.out or own_folder(asked.usual_folder, calibration, asked.engines)
    return replace(calibration, config=config.changed(out=out))


def first_prompt(asked: Request) -> str:
    """Returns the prompt of the first problem. Reads the tokenizer, and no weights."""
    config = asked.run
    tokenizer = load_tokenizer(asked.target or default_pair(asked.task)[0], asked.loaded.target)
    source = asked.task if asked.certified is None else prompts_of(asked.certified, asked.task)
    task = load_task(
        source, asked.seed, config.limit, config.path("data"), tokenizer, config.group, **dict(config.prompts)
    )
    return task.problems[0].prompt


def planned(calibration: Calibration, engines: Sequence[str], silent: bool) -> list[dict[str, Any]]:
    """Plans each engine's calibration, as if those before it had passed their tests; returns plans for programs.

    Args:
        silent: whether the plans are not printed.
    """
    found: list[dict[str, Any]] = []

    def plan(one: Calibration) -> int | None:
        made = one.plan()
        if not silent:
            console = LiteralConsole()
            _print_turn(one, made.attempt, console)
            print_plan(made, console)
        facts = asdict(replace(made, goes_on=None)) | {"goes_on": made.goes_on and made.goes_on.facts}
        derived = ("seconds", "worst_case_extra", "price", "worth_it")
        found.append(facts | {name: getattr(made, name) for name in derived})
        return made.attempt

    in_turn(calibration, engines, plan)
    return found


def run(
    calibration: Calibration, engines: Sequence[str], *, plan: bool, report: bool
) -> tuple[list[ThresholdProfile], list[str]]:
    """Runs the calibration of each engine.

    Args:
        plan: whether plans are printed, on stderr.
        report: whether reports are printed, on stdout.

    Returns:
        the profiles of those engines that were reached, and the names of the others.
    """
    profiles: list[ThresholdProfile] = []
    console, on_stderr = LiteralConsole(), LiteralConsole(stderr=True)

    def one_engine(one: Calibration) -> int | None:
        profile = one.run(lambda made: print_plan(made, on_stderr) if plan else None)
        found = profile.certificate
        profiles.append(profile)
        if report:
            _print_turn(one, found.attempt, console)
            print_report(profile, profile.file, console)
        return found.attempt if found.certified else None

    untested = in_turn(calibration, engines, one_engine)
    for engine in untested if report else ():
        console.print(
            literal(f"Not tested: {engine}. The sequence ends with the first engine that does not pass a test.")
        )
    return profiles, list(untested)


def result(profiles: Sequence[ThresholdProfile], untested: Sequence[str]) -> dict[str, Any]:
    """Returns what the calibrations of all engines came to, for programs: see docs/commands.md."""
    calibrations = []
    for profile in profiles:
        file = None if profile.file is None else profile.file.absolute()
        page = None if file is None else file.with_name(PAGE)
        calibrations.append({
            "outcome": profile.outcome, "met": profile.met, "file": file and str(file),
            "page": str(page) if page is not None and page.exists() else None,
            "profile": profile.model_dump(mode="json"),
        })  # fmt: skip
    met = not untested and all(profile.met for profile in profiles)
    return {"met": met, "calibrations": calibrations, "untested_engines": list(untested)}


def _print_turn(one: Calibration, attempt: int | None, console: Console) -> None:
    """Prints which engine's turn it is, where several have one."""
    turn = one.sequence
    if turn is None:
        return
    together = turn.attempt in (None, attempt)  # else the sequence went on before, with another version of the engine
    sequence = " in one frozen sequence" if together else ""
    of_attempt = "" if attempt is None else f", attempt {attempt}"
    text = f"Engine {turn.place + 1} of {len(turn.engines)}{sequence}{of_attempt}: {one.config.engine}"
    console.print(literal(text, "bold"))
    console.print()
