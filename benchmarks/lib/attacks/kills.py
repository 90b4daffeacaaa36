"""Commands that are killed again and again and then compared with undisturbed ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from lib.attacks.cases import Case, Stage, Verdict, at_once
from lib.attacks.commands import Ended, run, run_and_kill
from lib.attacks.jobs import UNDISTURBED, Calibration, Job, judge_end, saved_so_far

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
    Chain("train_predictor", 4, 0.8),
)
_QUICK = Chain("collect", 1, 0.5)


def attack(stage: Stage) -> Iterator[Case]:
    numbers = stage.chosen(range(len(CHAINS)), [0])
    for number in numbers:
        UNDISTURBED[_chain(stage, number).command](stage)
    yield from at_once(partial(_attack, stage), numbers)


def _chain(stage: Stage, number: int) -> Chain:
    return _QUICK if stage.quick else CHAINS[number]


def _attack(stage: Stage, number: int) -> Iterator[Case]:
    """Yields a case for each kill, and one for each command that was finished after kills."""
    chain, random = _chain(stage, number), stage.random(ATTACK, number)
    reference = UNDISTURBED[chain.command](stage)
    lives, kills = 0, 0
    while kills < chain.kills:
        job = replace(reference, folder=stage.scratch / f"{ATTACK}-{number}-{lives}")
        shutil.rmtree(job.folder, ignore_errors=True)
        job.folder.mkdir(parents=True)
        if not chain.cold:
            job.prepare(reference)
        for case in _until_it_ends(chain, job, number, random, reference.took or 0.0, chain.kills - kills):
            kills += 1
            yield case
        yield from _compare(chain, job, reference, number)
        lives += 1


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


def _judge_kill(ended: Ended, gone: object) -> Verdict:
    complaint = replace(ended, code=0).complaint()  # that it was killed is no complaint
    if complaint is not None:
        return complaint
    return ("lost", f"saved before, gone after the kill: {gone!s:.300}") if gone else ("resumed", "")


def _compare(chain: Chain, job: Job, reference: Job, number: int) -> Iterator[Case]:
    """Lets the command come to its end, and compares all that it left with the undisturbed one's."""
    ended = run(job.name, job.arguments())
    if chain.cold and isinstance(job, Calibration):
        calm = Calibration(job.folder.with_name(f"{job.folder.name}-calm"))
        shutil.rmtree(calm.folder, ignore_errors=True)
        calm.prepare(job)
        reference = calm.finish()
    yield Case(ATTACK, number, f"fsd-{job.name} finished", "after kills", *judge_end(ended, job, reference))
    if (check := job.check()) is not None:
        checked = run(*check)
        verdict = ("lost", f"exit code {checked.code}: {checked.last_line}") if checked.code else ("resumed", "")
        what = f"fsd-{check[0]} {check[1][0]}"
        yield Case(ATTACK, number, what, "after kills", *(checked.complaint() or verdict))
