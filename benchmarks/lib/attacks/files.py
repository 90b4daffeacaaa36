"""Damaged files of every kind, given to their readers and, of a calibration, to the command again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from lib.attacks.cases import Case, random_of
from lib.attacks.commands import Ended, run
from lib.attacks.damage import KINDS, VALUES, damage_one
from lib.attacks.guarded import GuardedProcess, Reading, fault_of
from lib.attacks.jobs import Calibration
from lib.attacks.readers import BY_HAND, SUBJECTS, Asked, Content, Subject, forge
from lib.attacks.stage import Stage

ATTACK = "files"
_AGAIN = 10_000  # cases from this number on are given to the command rather than to readers
_FOR_PEOPLE = {".lock", ".md", ".png", ".html"}  # files that no reader reads

Read = Callable[[Subject, Path, Asked], Reading]


def attack(stage: Stage) -> Iterator[Case]:
    subjects, scratch = BY_HAND if stage.quick else SUBJECTS, stage.folder(ATTACK)
    with GuardedProcess() as process:

        def read(subject: Subject, folder: Path, asked: Asked) -> Reading:
            return process.call(subject.read, folder, asked)

        numbers = stage.numbers(len(KINDS) * len(subjects), quick=len(subjects))
        yield from attack_readers(subjects, stage.material.subject, numbers, stage.seed, scratch, read)
    if again := stage.numbers(20, 0, _AGAIN):
        yield from _attack_calibration(stage.material.calibration(), again, stage.seed, scratch)


def attack_readers(
    subjects: Sequence[Subject],
    material: Callable[[Subject], tuple[Path, Asked]],
    numbers: Iterable[int],
    seed: int,
    scratch: Path,
    read: Read,
) -> Iterator[Case]:
    """Damages a copy of one subject's files per case, and reads it.

    Args:
        material: Returns a subject's folder, and what to ask for.
    """
    originals: dict[str, Content] = {}
    for number in numbers:
        subject, kind = _of(number, subjects)
        source, asked = material(subject)
        if subject.name not in originals:
            originals[subject.name] = _intact(read(subject, _copy(source, scratch), asked), subject)
        folder, random = _copy(source, scratch), random_of(seed, ATTACK, number)
        damage = damage_one(kind, [folder / subject.forged] if subject.forged else files_in(folder), random)
        if subject.forged:
            forge(folder / subject.forged)
        reading = read(subject, folder, asked)
        verdict = judge(reading, originals[subject.name], subject)
        yield Case(ATTACK, number, subject.name, damage, *verdict, reading.seconds, reading.mebibytes)


def _of(number: int, subjects: Sequence[Subject]) -> tuple[Subject, str]:
    subject, turn = subjects[number % len(subjects)], number // len(subjects)
    kinds = VALUES if subject.forged else KINDS
    kind = kinds[turn % len(kinds)]
    return subject, ("truncate" if kind == "delete" and not subject.deletable else kind)


def _intact(reading: Reading, subject: Subject) -> Content:
    if not reading.content:
        raise RuntimeError(f"{subject.name} cannot be read before it is damaged: {reading}")
    return dict(reading.content)


def judge(reading: Reading, original: Content, subject: Subject) -> tuple[str, str]:
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


def _attack_calibration(reference: Calibration, numbers: Iterable[int], seed: int, scratch: Path) -> Iterator[Case]:
    """Damages one file of a finished calibration per case, and runs the same command again."""
    for number in numbers:
        job = Calibration(_copy(reference.folder, scratch))
        random = random_of(seed, ATTACK, number)
        place, kind = random.choice(("out", "cache", "cache", "state")), random.choice(KINDS)
        kind = "truncate" if (kind, place) == ("delete", "state") else kind  # nothing could miss a ledger
        damage = damage_one(kind, files_in(job.folder / place), random)
        ended = run(job.name, job.arguments())
        verdict = _judge_rerun(ended, job, reference)
        yield Case(ATTACK, number, f"fsd-calibrate again, {place}", damage, *verdict, ended.seconds)


def _judge_rerun(ended: Ended, job: Calibration, reference: Calibration) -> tuple[str, str]:
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


def _copy(source: Path, scratch: Path) -> Path:
    target = scratch / "damaged"
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))
