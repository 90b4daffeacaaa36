"""Commands that are killed again and again and then compared with undisturbed ones."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from fsd_common.errors import UsageError
from lib.attacks.cases import Case, random_of
from lib.attacks.commands import Ended, run, run_and_kill
from lib.attacks.jobs import Calibration, Job, litter, saved_so_far
from lib.attacks.material import Material, finish
from lib.attacks.stage import Stage

ATTACK = "kills"
_EARLY = 0.15  # of kills come while the command starts
_STARTING = 4.0  # seconds within which these come


@dataclass(frozen=True)
class Chain:
    """A command that is killed `kills` times; where it comes to its end before a kill, it begins in a new folder.

    Attributes:
        within: Kills come within this share of the undisturbed command's time after its first line.
        cold: Whether a calibration measures its costs itself. The others have those of the undisturbed run, to be
            comparable with it; this one is compared with an undisturbed run that has its costs.
    """

    command: str
    kills: int
    within: float
    cold: bool = False


CHAINS = (
    Chain("calibrate", 6, 0.8, cold=True),
    *(Chain("calibrate", 7, 0.3),) * 3,
    Chain("collect", 5, 0.5),
    Chain("collect", 4, 0.5),
    Chain("train", 4, 0.8),
)
QUICK = (Chain("collect", 1, 0.5),)


def attack(stage: Stage) -> Iterator[Case]:
    chains = QUICK if stage.quick else CHAINS
    numbers = stage.numbers(len(chains), quick=len(chains))
    for number in numbers:
        undisturbed(chains[number].command, stage.material)
    each = [(chains[number], number, stage.seed, stage.material, stage.scratch) for number in numbers]
    yield from stage.at_once(_attack, each)


def _attack(chain: Chain, number: int, seed: int, material: Material, scratch: Path) -> Iterator[Case]:
    """Yields a case for each kill, and one for each command that was finished after kills."""
    reference, random = undisturbed(chain.command, material), random_of(seed, ATTACK, number)
    lives, kills = 0, 0
    while kills < chain.kills:
        job = replace(reference, folder=scratch / f"{ATTACK}-{number}-{lives}")  # type: ignore[type-var]
        shutil.rmtree(job.folder, ignore_errors=True)
        job.folder.mkdir(parents=True)
        if isinstance(job, Calibration) and isinstance(reference, Calibration) and not chain.cold:
            job.take_facts(reference)
        for case in _until_it_ends(chain, job, number, random, material.seconds(reference), chain.kills - kills):
            kills += case.subject.endswith("killed")
            yield case
        yield from _compare(chain, job, reference, number)
        lives += 1


def undisturbed(command: str, material: Material) -> Job:
    jobs: dict[str, Callable[[], Job]] = {
        "calibrate": material.calibration, "collect": material.collection, "train": material.training,
    }  # fmt: skip
    return jobs[command]()


def _until_it_ends(chain: Chain, job: Job, number: int, random: Random, seconds: float, kills: int) -> Iterator[Case]:
    """Kills the command up to `kills` times; it may come to its end earlier."""
    for _ in range(kills):
        before, early = saved_so_far(job), random.random() < _EARLY
        after = random.uniform(0, _STARTING if early else chain.within * seconds)
        ended = run_and_kill(job.name, job.arguments(), after, begun=not early)
        if ended.code >= 0:
            return
        moment = f"{after:.2f} s after {'its start' if early else 'its first line'}"
        yield Case(ATTACK, number, f"fsd-{job.name} killed", moment, *_judge_kill(ended, before - saved_so_far(job)))


def _judge_kill(ended: Ended, gone: object) -> tuple[str, str]:
    complaint = replace(ended, code=0).complaint()  # that it was killed is no complaint
    if complaint is not None:
        return complaint
    return ("lost", f"saved before, gone after the kill: {gone!s:.300}") if gone else ("resumed", "")


def _compare(chain: Chain, job: Job, reference: Job, number: int) -> Iterator[Case]:
    """Lets the command come to its end, and compares all that it left with the undisturbed one's."""
    ended = run(job.name, job.arguments())
    if chain.cold and isinstance(job, Calibration):
        reference = calm = Calibration(job.folder.with_name(f"{job.folder.name}-calm"))
        shutil.rmtree(calm.folder, ignore_errors=True)
        calm.take_facts(job)
        finish(calm)
    yield Case(ATTACK, number, f"fsd-{job.name} finished", "after kills", *judge_end(ended, job, reference))
    for name, arguments in _checks(job):
        checked = run(name, arguments)
        verdict = ("lost", f"exit code {checked.code}: {checked.last_line}") if checked.code else ("resumed", "")
        yield Case(ATTACK, number, f"fsd-{name} {arguments[0]}", "after kills", *(checked.complaint() or verdict))


def judge_end(ended: Ended, job: Job, reference: Job) -> tuple[str, str]:
    """Returns the verdict on a disturbed command that was run to its end."""
    if (complaint := ended.complaint()) is not None:
        return complaint
    if ended.code:
        return "lost", f"it does not finish: exit code {ended.code}: {ended.last_line}"
    try:
        found = list(job.faults(reference))
    except (UsageError, OSError, sqlite3.DatabaseError) as error:
        return "lost", f"what it left cannot be read: {error}"
    if found:
        return "lost", "; ".join(found)
    left = litter(job, reference)
    return ("lost", f"files are left: {', '.join(left)}") if left else ("resumed", "")


def _checks(job: Job) -> list[tuple[str, list[str | Path]]]:
    if isinstance(job, Calibration):
        return [("profile", ["validate", job.profile])]
    return [("traces", ["verify", job.folder / "out"])] if job.name == "collect" else []
