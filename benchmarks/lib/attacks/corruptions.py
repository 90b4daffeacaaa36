"""Damaged files of traces, caches, studies, ledgers and predictors, given to their readers and to the command."""

from __future__ import annotations

import multiprocessing
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self, cast

from fsd_decoding.errors import UsageError
from lib.attacks.cases import Case, random_of
from lib.attacks.commands import control_character, run
from lib.attacks.damage import KINDS, damage_one
from lib.attacks.jobs import Calibration
from lib.attacks.readers import SUBJECTS, Asked, Content, Subject
from lib.common.forked_programs import fork

ATTACK = "corruptions"
_HANGS = 120  # seconds
_FOR_PEOPLE = {".lock", ".md", ".png"}  # files that no reader reads


@dataclass(frozen=True)
class Reading:
    """What came of reading a folder: its content, or the error that refused it, or one that should not be."""

    content: Content | None = None
    warned: tuple[str, ...] = ()
    refusal: str | None = None
    crash: str | None = None


def read_guarded(read: Callable[[Path, Asked], Content], folder: Path, asked: Asked) -> Reading:
    """Reads a folder; runs in the process that damage may crash."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            content = read(folder, asked)
        except UsageError as error:
            return Reading(refusal=str(error))
        except BaseException as error:
            return Reading(crash=f"{type(error).__name__}: {error!s:.200}")
    kinds = (UserWarning,)  # others are of libraries, and say nothing about the files
    return Reading(content, tuple(str(w.message) for w in caught if w.category in kinds))


def judge(reading: Reading, original: Content, forgets: bool) -> tuple[str, str]:
    """Returns the verdict on a reading, with its evidence."""
    if reading.crash is not None:
        return "traceback", reading.crash
    for said in (*reading.warned, *([reading.refusal] if reading.refusal is not None else [])):
        if (found := control_character(said)) is not None:
            return "unclear", f"{found!r} is in the message {said!r:.300}"
    if reading.content is None:
        return "refused", reading.refusal or ""
    changed = [name for name, part in reading.content.items() if original.get(name) != part]
    if changed:
        return (
            "silent",
            f"{len(changed)} parts are others, such as {changed[0][-60:]}: {reading.content[changed[0]]!s:.200}",
        )
    if missing := len(original) - len(reading.content):
        if reading.warned:
            return "set aside", reading.warned[0]
        return ("forgot" if forgets else "silent"), f"{missing} of {len(original)} parts are gone"
    return "equal", ""


class ReaderProcess:
    """A process that reads damaged files, started anew whenever it dies of one."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._start()

    def read(self, subject: Subject, folder: Path) -> Reading:
        self._pipe.send((subject.read, folder, self._asked))
        try:
            if self._pipe.poll(_HANGS):
                return cast(Reading, self._pipe.recv())
            crash = f"no answer within {_HANGS} s"
        except (EOFError, ConnectionError):
            crash = "the process died"
        self.close()
        self._start()
        return Reading(crash=crash)

    def _start(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = fork(_serve, theirs)
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection) -> None:
    while True:
        pipe.send(read_guarded(*pipe.recv()))


def attack_readers(
    untouched: Path,
    numbers: Iterable[int],
    seed: int,
    scratch: Path,
    read: Callable[[Subject, Path], Reading],
    subjects: Sequence[Subject] = SUBJECTS,
) -> Iterator[Case]:
    """Damages a copy of one subject's files per case, and reads it.

    Args:
        untouched: Holds each subject's folder.
    """
    originals: dict[str, Content] = {}
    for number in numbers:
        subject, kind = _of(number, subjects)
        source = untouched / subject.folder
        if subject.name not in originals:
            originals[subject.name] = _intact(read(subject, _copy(source, scratch)), subject)
        folder = _copy(source, scratch)
        damage = damage_one(kind, files_in(folder), random_of(seed, ATTACK, number))
        verdict = judge(read(subject, folder), originals[subject.name], subject.forgets)
        yield Case(ATTACK, number, subject.name, damage, *verdict)


def _of(number: int, subjects: Sequence[Subject]) -> tuple[Subject, str]:
    subject, kind = subjects[number % len(subjects)], KINDS[number // len(subjects) % len(KINDS)]
    return subject, ("truncate" if kind == "delete" and not subject.deletable else kind)


def _intact(reading: Reading, subject: Subject) -> Content:
    if not reading.content:
        raise RuntimeError(f"{subject.name} cannot be read before it is damaged: {reading}")
    return reading.content


def attack_command(reference: Calibration, numbers: Iterable[int], seed: int, scratch: Path) -> Iterator[Case]:
    """Damages one file of a finished calibration per case, and runs the same command again."""
    for number in numbers:
        job = Calibration(_copy(reference.folder, scratch))
        random = random_of(seed, ATTACK, number)
        place, kind = random.choice(("out", "cache", "cache", "state")), random.choice(KINDS)
        kind = "truncate" if (kind, place) == ("delete", "state") else kind  # nothing could miss a ledger
        damage = damage_one(kind, files_in(job.folder / place), random)
        yield Case(ATTACK, number, f"fsd-calibrate again, {place}", damage, *_judge_rerun(job, reference))


def _judge_rerun(job: Calibration, reference: Calibration) -> tuple[str, str]:
    ended = run(job.name, job.arguments())
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
    return ("set aside", warned[0]) if warned else ("equal", "")


def files_in(folder: Path) -> list[Path]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in _FOR_PEOPLE)
    return sorted(path for path in paths if path.name != ".lock")


def _copy(source: Path, scratch: Path) -> Path:
    target = scratch / "damaged"
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))
