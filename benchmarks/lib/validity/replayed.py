"""Attempts through the real ledger, holdout and test, with outcomes that were drawn.

Each takes a hundredth of a second and more, so that thousands of runs are sifted first: a test whose p-value, computed
for many runs at once, is above its level passes nowhere, and the real attempts are made in the other runs alone. Levels
are those that the real ledger gives; what counts as lost besides only makes p-values larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fsd_calib.certification.attempt_ledger import AttemptLedger, Numbered, Run
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.holdout import Holdout, HoldoutAttempt
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Decoding, Seeds
from fsd_calib.tasks.base import Problem
from fsd_collectors.split import hashed
from fsd_common.digests import facts_digest
from fsd_common.errors import UsageError
from fsd_decoding.profile.setting import Setting
from lib.validity.shares import CONFIDENCE
from lib.validity.sizes import Counts, Floats
from lib.validity.worlds import WANTED

KINDS = 4  # of outcomes: both right, lost, gained, both wrong
LOST = 1
_FAMILY = "target"
_ALONE, _FUZZY = Setting("target", "js", 1), Setting("fsd-coupled", "js", 5, 0.1)
_GRADED: dict[bool, Seeds] = {right: (Decoding(right, "", 10, 2, 10, 8),) for right in (True, False)}


class Known(Problem):
    """A problem whose hashes are computed once, as thousands of runs ask for them."""

    @cached_property
    def key(self) -> int:
        return super().key

    @cached_property
    def row_key(self) -> int:
        return super().row_key

    @cached_property
    def answer_key(self) -> int:
        return super().answer_key


def problems_of(rows: Iterable[int], asked: str = "question", each: int = 1, answer: str = "1") -> tuple[Problem, ...]:
    """Returns one problem a row.

    Args:
        asked: How it is asked, which is part of the text and not of the row.
        each: Problems of a group, if more than 1.
    """
    return tuple(
        Known(hashed(f"{asked} {row}"), f"{asked} {row}", f"{asked} {row}", answer, None, source={"row": row},
              group=row // each if each > 1 else None)
        for row in rows
    )  # fmt: skip


@dataclass(frozen=True)
class Step:
    """An attempt that somebody makes.

    Attributes:
        problems: Of the certification part.
        claim: What it claims to the ledger.
    """

    problems: Sequence[Problem]
    claim: str = "task, retention"


def opened(ledger: AttemptLedger, step: Step, kinds: Counts, looks: int = 1, extends: bool = False) -> HoldoutAttempt:
    """Returns the attempt on problems with these kinds of outcomes, (problems,), that the ledger leaves to certify on.

    It looks once by default: what is simulated of the ledger's levels does not depend on looks, see `designs`.

    Args:
        extends: Whether it goes on from the attempt before it.

    Raises:
        UsageError: It leaves none.
    """
    outcomes = {problem.id: kind for problem, kind in zip(step.problems, kinds.tolist(), strict=True)}

    def decode(setting: Setting, problems: Sequence[Problem]) -> list[Seeds]:
        right = (0, 1) if setting == _ALONE else (0, 2)
        return [_GRADED[outcomes[problem.id] in right] for problem in problems]

    part = Evaluator(decode, step.problems, "certification")
    run = Run(facts_digest([problem.id for problem in step.problems]), "")
    usable = Holdout(part, ledger, _FAMILY, step.claim, "models").of_run(run.name)
    claim = Claim(WANTED, confidence=CONFIDENCE)
    if extends:
        before = usable.extendable(claim, lambda facts: True)
        assert before is not None
        usable = usable.extending(before)
    claim = replace(claim, looks=usable.looks(looks))
    return usable.open([_FUZZY], _ALONE, claim, CONFIDENCE, run)


def any_passes(steps: Iterable[tuple[Step, Counts]], looked_at: Sequence[Numbered] = ()) -> bool:
    """Whether any of the attempts passes that are made in turn with one ledger; a refused one does not.

    Args:
        looked_at: Problems that were decoded under thresholds before, as lm-eval's plugin records them.
    """
    with AttemptLedger(None) as ledger:
        ledger.tuned_on(_FAMILY, looked_at)
        try:
            return any(opened(ledger, step, kinds).decide().passed is not None for step, kinds in steps)
        except UsageError:
            if not looked_at:
                raise
            return False


def levels_of(steps: Iterable[Step], looked_at: Sequence[Numbered] = ()) -> Floats:
    """Returns the significance levels of attempts that are made in turn, of which none passes."""
    levels = []
    with AttemptLedger(None) as ledger:
        ledger.tuned_on(_FAMILY, looked_at)
        for step in steps:
            attempt = opened(ledger, step, np.full(len(step.problems), LOST))
            levels.append(attempt.delta)
            assert attempt.decide().passed is None
    return np.array(levels)


def share_false(p: Floats, levels: Floats, passes: Callable[[int], bool]) -> float:
    """Returns the share of runs in which an attempt passes.

    Args:
        p: Smallest p-values that the attempts can have, (runs, attempts).
        passes: Makes the attempts of a run, by its number, and says whether any passes.
    """
    return sum(passes(int(run)) for run in np.flatnonzero((p <= levels).any(1))) / len(p)


def arranged(counts: Counts, rng: np.random.Generator) -> Counts:
    """Returns kinds of outcomes with these counts, (4,), in a random order."""
    return rng.permutation(np.repeat(np.arange(KINDS), counts))
