"""Whether a calibration goes on from an earlier attempt of the same command, and tests what that froze."""

from __future__ import annotations

from dataclasses import replace

from fsd_calib.calibration.odds import GoesOn
from fsd_calib.calibration.plan import claim_of
from fsd_calib.calibration.run_facts import asked_of
from fsd_calib.calibration.run_name import RunName
from fsd_calib.calibration.session import Session
from fsd_calib.certification.extension import Extension
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_common.argument_checks import named, off
from fsd_common.errors import UsageError

_MOST = 4  # times as many as then, or as few: with many more a search has more to choose by, and few show little


def check_extends(goal: Goal, decoding: SearchSpace, config: RunConfig) -> None:
    """UsageError: the calibration is to go on from an earlier one, and is of a kind that cannot."""
    if not config.extend:
        return
    extend = named("extend")
    if goal.min_acc is None or goal.explore:
        given = "explore" if goal.explore else "min_speed" if goal.min_speed is not None else "pareto"
        raise UsageError(f"{extend} goes on with a test, and {named(given)} tests nothing; leave one of them out")
    if goal.guarantee == "dataset":
        raise UsageError(
            f"{extend} adds problems, and {named('guarantee')} 'dataset' is about no others than these; leave one of "
            "them out"
        )
    if decoding.predictor is not None or decoding.moving:
        given = "predictor" if decoding.predictor is not None else "threshold_policy"
        raise UsageError(
            f"{extend} tests what was frozen before, and what {named(given)} does is learned anew; leave one of them "
            "out"
        )


def extension_of(run: RunName, trained: frozenset[int]) -> Extension | None:
    """Returns what a calibration goes on from; None: it searches.

    It goes on where it is told to, where it has done so before, or where its problems are more than then, up to four
    times as many, and some setting did not pass.

    Args:
        trained: Keys of problems that its predictor or drafts were trained on.

    Raises:
        UsageError: It is told to go on, and there is nothing to go on from.
    """
    goal, extend, later = run.goal, run.config.extend, replace(run, extends=True)
    moves = run.space.policies != (None,) or "predictor" in run.given
    if extend is False or goal.min_acc is None or goal.explore or goal.guarantee == "dataset" or moves:
        return None
    begun = later.facts
    if begun is None and extend is None and run.facts is not None:
        return None
    holdout = run.session.holdout.of_run(later.text, trained)
    claim = claim_of(goal, holdout.looks(goal.tests))
    if begun is not None and begun.extends is not None:
        then = holdout.extension_from(begun.extends, claim)
        if holdout.facts_of(begun.name) is None and not holdout.is_new(then):  # it has not been opened yet
            _check_found(None, holdout.problems)
        return then
    found = holdout.extendable(claim, lambda facts: asked_of(facts) == run.asked)
    if extend:
        _check_found(found, holdout.problems)
        return found
    if found is None or found.failed is None:
        return None
    before, more = len(found.problems), len(found.more)
    return found if before <= _MOST * more and more <= _MOST * before else None


def _check_found(found: Extension | None, problems: int) -> None:
    way_out = f"leave {named('extend')} out to search"
    if found is None:
        raise UsageError(
            f"there is nothing to go on from: no decided attempt of this command had some of these {problems:,} "
            f"certification problems and no others, or others were certified on since; {way_out}"
        )
    if found.failed is None:
        raise UsageError(
            f"all settings of attempt {found.attempts[-1]} passed, so none is left to go on with; {way_out}"
        )


def going_on(session: Session, extension: Extension) -> Session:
    """Returns the session with the holdout of an attempt that goes on, and says so."""
    holdout = session.holdout.extending(extension)
    several, out = len(extension.settings), session.holdout.problems - holdout.problems
    settings = f"its {several} frozen settings are" if several > 1 else "its frozen setting is"
    grouped = f" ({out} that share a group with one of those are left out)" if out else ""
    session.progress.note(
        f"goes on from attempt {extension.attempts[-1]}: {settings} tested on its {len(extension.problems):,} problems "
        f"and {len(extension.more):,} new ones{grouped}; {off('extend')} searches anew"
    )
    return replace(session, holdout=holdout)


def goes_on_from(extension: Extension | None) -> GoesOn | None:
    """Returns what a plan starts from; None: a setting has nothing to start from, so that it is as any other."""
    if extension is None or extension.failed is None:
        return None
    return GoesOn(extension.attempts, len(extension.settings), extension.failed)
