"""Damaged files of every kind, given to their readers and, of a calibration, to the command again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from lib.attacks.cases import Case, Stage, Verdict
from lib.attacks.commands import Ended, run
from lib.attacks.damage import KINDS, VALUES, damage_one
from lib.attacks.guarded import GuardedProcess, Reading, fault_of
from lib.attacks.jobs import Calibration, calibration
from lib.attacks.subjects import SUBJECTS, Content, Subject, forge

ATTACK = "files"
_AGAIN = range(10_000, 10_020)  # cases that are given to the command rather than to readers
_FOR_PEOPLE = {".lock", ".md", ".png", ".html"}  # files that no reader reads


def attack(stage: Stage) -> Iterator[Case]:
    """Damages a copy of one subject's files per case, and reads it; and then those of a finished calibration."""
    subjects = [subject for subject in SUBJECTS if subject.by_hand or not stage.quick]
    originals: dict[str, Content] = {}
    with GuardedProcess() as process:
        for number in stage.chosen(range(len(KINDS) * len(subjects)), range(len(subjects))):
            subject, kind = damage_of(number, subjects)
            source, asked = subject.made(stage)
            if subject.name not in originals:
                originals[subject.name] = _intact(process.call(subject.read, _copy(source, stage), asked), subject)
            folder, random = _copy(source, stage), stage.random(ATTACK, number)
            damage = damage_one(kind, [folder / subject.forged] if subject.forged else files_in(folder), random)
            if subject.forged:
                forge(folder / subject.forged)
            reading = process.call(subject.read, folder, asked)
            verdict = judge(reading, originals[subject.name], subject)
            yield Case(ATTACK, number, subject.name, damage, *verdict, reading.seconds)
    for number in stage.chosen(_AGAIN, []):
        yield _attack_calibration(stage, number)


def damage_of(number: int, subjects: Sequence[Subject]) -> tuple[Subject, str]:
    subject, turn = subjects[number % len(subjects)], number // len(subjects)
    kinds = VALUES if subject.forged else KINDS
    kind = kinds[turn % len(kinds)]
    return subject, ("truncate" if kind == "delete" and not subject.deletable else kind)


def _intact(reading: Reading, subject: Subject) -> Content:
    if not reading.content:
        raise RuntimeError(f"{subject.name} cannot be read before it is damaged: {reading}")
    return dict(reading.content)


def judge(reading: Reading, original: Content, subject: Subject) -> Verdict:
    """Returns the verdict on a reading, with its evidence."""
    if (fault := fault_of(reading)) is not None:
        return fault
    if reading.content is None:
        return "refused", reading.refusal or ""
    changed = [name for name, part in reading.content.items() if original.get(name) != part]
    if changed:
        others = f"{len(changed)} parts are others, such as {changed[0][-60:]}: {reading.content[changed[0]]!s:.200}"
        return ("silent" if subject.guarded else "read"), others
    if missing := len(original) - len(reading.content):
        if reading.warned:
            return "told", reading.warned[0]
        return ("forgot" if subject.forgets else "silent"), f"{missing} of {len(original)} parts are gone"
    return "equal", ""


def _attack_calibration(stage: Stage, number: int) -> Case:
    """Damages one file of a finished calibration, and runs the same command again."""
    reference, random = calibration(stage), stage.random(ATTACK, number)
    job = Calibration(_copy(reference.folder, stage))
    place, kind = random.choice(("out", "cache", "cache", "state")), random.choice(KINDS)
    kind = "truncate" if (kind, place) == ("delete", "state") else kind  # nothing could miss a ledger
    damage = damage_one(kind, files_in(job.folder / place), random)
    ended = run(job.name, job.arguments())
    verdict = _judge_rerun(ended, job, reference)
    return Case(ATTACK, number, f"fsd-calibrate again, {place}", damage, *verdict, ended.seconds)


def _judge_rerun(ended: Ended, job: Calibration, reference: Calibration) -> Verdict:
    if (complaint := ended.complaint()) is not None:
        return complaint
    if ended.refused:
        return "refused", ended.last_line
    if ended.code:
        return "unclear", f"exit code {ended.code}: {ended.last_line}"
    others = list(job.other_results(reference))
    warned = [line for line in ended.err.splitlines() if ": warning: " in line]
    if others:
        return "silent", "; ".join(others)
    return ("told", warned[0]) if warned else ("equal", "")


def files_in(folder: Path) -> list[Path]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in _FOR_PEOPLE)
    return sorted(path for path in paths if path.name != ".lock")


def _copy(source: Path, stage: Stage) -> Path:
    target = stage.folder(ATTACK) / "damaged"
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))
