"""Timing a profile again: its speeds and the outcome that follows from them. Nothing is searched, tested or counted."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.recertify import as_recorded, decoding_of, other_models, setting_of
from fsd_calib.calibration.run_file import NAME, RunFile, read_run_file
from fsd_calib.calibration.session import Session
from fsd_calib.calibration.timing import Timer
from fsd_calib.calibration.to_profile import speed_figures
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.speed import Speeds
from fsd_calib.options.goal import Goal
from fsd_calib.options.job import own_drafters
from fsd_calib.options.run_config import RunConfig
from fsd_calib.report.page import run_page
from fsd_calib.report.run_folder import PAGE, load_run, save_record, write_as
from fsd_calib.tasks.split import parts_of
from fsd_common.argument_checks import amount, named
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.drafters.named import drafter_named
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.profile.drafts import draft_of
from fsd_decoding.profile.fields import COMPILE, Outcome, Speed, follows, timed_outcome
from fsd_decoding.profile.io import FILE_NAME, file_of
from fsd_decoding.profile.setting import Setting
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_OF_RUN = ("limit", "group", "data", "device", "dtype", "model_kwargs", "draft_model_kwargs")


def retime(
    profile: str | os.PathLike[str], *, minutes: float = 2.0, timing: Literal["run", "careful"] = "run",
    device: str | None = None, progress: Progress | None = None,
) -> ThresholdProfile:  # fmt: skip
    """Times the target, a profile's rival and its setting again, and writes the profile with new speeds and outcome.

    Models, task and problems are those of the run.yaml that the calibration left beside the profile. What was tested
    stays as it is: there is no attempt. run.json and report.html are adapted.

    Args:
        profile: the profile's file, or its folder.
        minutes: for timing, beside loading the models; it ends earlier where the ratio of the two is decided, and takes
            twice as long at most.
        timing: in this process, or "careful" in five fresh ones.
        device: another device of the same kind, such as "cuda:1".

    Returns:
        the profile as it was written.

    Raises:
        UsageError: the profile was edited or has no setting whose speed matters; what it was calibrated with is not
            here, or has changed.
    """
    amount("minutes", minutes, zero=False)
    file = file_of(profile)
    found = ThresholdProfile.load(file)
    _check_setting(found)
    calibration = _calibration(found, _run_file(file), timing, device, progress)
    config = calibration.config.changed(cache=None, state=None)
    with calibration.opened(config) as (session, _, _):
        _check_same(found, session)
        written = _timed_again(found, session, calibration, 60 * minutes)
    _save(written, file)
    return written


def _check_setting(profile: ThresholdProfile) -> None:
    """Raises UsageError where there is no setting whose speed matters, or several drafts."""
    name = f"the profile of {profile.task!r}"
    if profile.granted is None:
        raise UsageError(
            f"{name} has the outcome {profile.outcome}, and no setting that speed decides on; calibrate instead"
        )
    if profile.granted.draft or (profile.lossless and profile.lossless.draft):
        raise UsageError(f"{name} compares settings with different drafts, which retime does not load; calibrate again")


def _run_file(profile: Path) -> RunFile:
    path = profile.with_name(NAME)
    if not path.exists():
        raise UsageError(
            f"there is no {NAME} beside {str(profile)!r}, which says what it was calibrated with (objects of Python "
            "have none); calibrate again, with names"
        )
    return read_run_file(path)


def _calibration(
    profile: ThresholdProfile, file: RunFile, timing: Literal["run", "careful"], device: str | None,
    progress: Progress | None,
) -> Calibration:  # fmt: skip
    """Returns the calibration whose session times the profile; it is not run."""
    models = file.job.get("target") or profile.target.id, _draft(file, profile)
    given: dict[str, Any] = {name: value for name, value in file.run.given.items() if name in _OF_RUN}
    config = RunConfig(
        **given | ({} if device is None else {"device": device}), engine=profile.engine_name, timing=timing,  # type: ignore[arg-type]
        compile=profile.compile or "off", workers=1, progress=progress,
    )  # fmt: skip
    kind: dict[str, Any] = {"pareto": True} if profile.speed.wanted is None else {"min_speed": profile.speed.wanted}
    goal = Goal(
        **kind, confidence=profile.certificate.confidence, explore=True, serve_batch=profile.speed.batch
    )  # fmt: skip
    return Calibration(
        file.job.get("task") or profile.task, *models, goal, decoding_of(profile), as_recorded(profile, config, models),
        fixed=profile,
    )  # fmt: skip


def _draft(file: RunFile, profile: ThresholdProfile) -> Any:
    """The only draft that the file names, whose path is absolute there; among several, the profile's."""
    drafts: list[Any] = [*(file.job.get("draft") or ()), *map(Eagle, file.job.get("head") or ())]
    named = file.job.get("drafter") or ()
    drafts += [NGram()] if "ngram" in named else []
    drafts += map(drafter_named, own_drafters(named))
    return drafts[0] if len(drafts) == 1 else draft_of(profile.draft)


def _check_same(profile: ThresholdProfile, session: Session) -> None:
    """Raises UsageError where something is not what the certificate is of."""
    for line in other_models(profile, session.engine.pair):
        raise UsageError(f"{line}; calibrate again, or give back what it was found with")
    if session.task.fingerprint != profile.data.fingerprint:
        raise UsageError(
            f"the problems of task {profile.task!r} are not those that the profile was calibrated on; calibrate again, "
            "or give them back"
        )
    here, then = (each.split(":")[0] for each in (session.engine.device, profile.device))
    if here != then:
        raise UsageError(
            f"the device is {here}, and the profile's certificate is for {then}, where logits are rounded otherwise; "
            f"give {named('device')} {then}, or calibrate on {here}"
        )


def _timed_again(
    profile: ThresholdProfile, session: Session, calibration: Calibration, seconds: float
) -> ThresholdProfile:
    """Returns the profile with new speeds.

    Args:
        seconds: for timing.
    """
    session.decode.call_rounds(COMPILE[profile.compile or "off"])
    alone, chosen = session.setting("target"), setting_of(profile)
    rival = profile.lossless or session.setting("sd", profile.draft_length)
    parts = parts_of(session.task)
    decided = Evaluator(session.decode, parts.certification, "certification") if profile.certificate.problems else None
    timer = Timer(session, calibration.goal, calibration.config.timing, calibration.sources)
    timer = replace(timer, seconds=seconds / timer.reported)  # nothing is chosen
    timed = timer.time([alone, rival, chosen], decided)
    single = timer.time_single([alone, rival, chosen], decided)

    def figures(speeds: Speeds[Setting]) -> dict[str, Any]:
        return speed_figures(speeds, alone, rival, chosen, calibration.goal.confidence)

    load = {} if timed.load is None else {"load": timed.load.average, "cores": timed.load.cores}
    kept = profile.speed.model_dump(include={"batch", "wanted", "unit", "forecast"})
    speed = {
        **kept, **load, **figures(timed.speeds), "threads": timed.threads, "part": timed.part,
        "processes": timed.speeds.processes,
        "single": None if single is None else figures(single),
    }  # fmt: skip
    over_lossless, own = timed.speeds.ratio(chosen, rival), timed.speeds.of(chosen)
    tested: Outcome = "certified-speed-unknown" if profile.certificate.certified else profile.outcome
    intervals = (over_lossless.low, over_lossless.high), (own.low, own.high)
    outcome = timed_outcome(tested, *intervals, profile.speed.wanted)
    granted = follows(
        outcome, intervals[0], certified=profile.certificate.certified, lossless_meets=_lossless_meets(profile)
    )  # fmt: skip
    return _with_outcome(profile, outcome, granted, Speed.model_validate(speed))


def _lossless_meets(profile: ThresholdProfile) -> bool:
    """Returns whether lossless decoding meets what was requested, where it is the faster."""
    certificate = profile.certificate
    if certificate.wanted is None:
        return True
    if certificate.acc == "retention":
        return certificate.wanted <= 1
    other_texts = certificate.guarantee == "dataset" and profile.sampling.temperature > 0
    return not other_texts and certificate.wanted <= profile.accuracy.target


def _with_outcome(profile: ThresholdProfile, outcome: Outcome, granted: bool, speed: Speed) -> ThresholdProfile:
    """Returns the profile with another speed, and its threshold where it is granted, else as an estimate."""
    changes: dict[str, Any] = {
        "outcome": outcome, "speed": speed, "lossy": granted,
        "threshold": profile.chosen.threshold if granted else None,
        "estimate": None if granted else profile.estimate or _estimate(profile),
        "acceptance": profile.acceptance if granted else None,  # that of what decoders run
    }  # fmt: skip
    return ThresholdProfile.model_validate(dict(profile) | changes).sealed()


def _estimate(profile: ThresholdProfile) -> dict[str, Any]:
    """Fields of `Estimate`, of the profile's own setting."""
    retention = profile.certificate.retention
    if retention is None:
        (retention, *_) = (p.retention for p in profile.curve if p.setting == profile.chosen)
    return {
        "threshold": profile.threshold, "retention": retention, "lower_bound": profile.certificate.lower_bound,
    }  # fmt: skip


def _save(profile: ThresholdProfile, file: Path) -> None:
    """Writes the profile, and makes what the calibration left beside it agree with it."""
    run = load_run(file)
    profile.save(file)
    record = run.record
    if record is None and file.name != FILE_NAME:
        return  # what is beside it is of another profile
    if record is not None:  # the draft alone was timed with the other speeds
        draft = record.draft_alone and record.draft_alone.model_copy(update={"speed": None, "speed_interval": None})
        record = record.model_copy(update={"profile": profile.digest, "draft_alone": draft})
        save_record(record, file.parent)
    write_as("html", run_page(replace(run, profile=profile, record=record)), file.with_name(PAGE))
