"""Whether a calibration goes on from an earlier attempt of the same command, and tests what that froze."""

from __future__ import annotations

from dataclasses import replace

from fsd_calib.calibrate_options import Goal, RunConfig
from fsd_calib.calibration.odds import GoesOn
from fsd_calib.calibration.plan import claim_of
from fsd_calib.calibration.run_facts import asked_of
from fsd_calib.calibration.session import Session
from fsd_calib.certification.extension import Extension
from fsd_common.argument_checks import named, off
from fsd_common.errors import UsageError

_MOST = 4  # times as many as then, or as few: with many more a search has more to choose by, and few show little


def check_extends(goal: Goal, config: RunConfig, predictor: bool) -> None:
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
    if predictor:
        raise UsageError(
            f"{extend} tests what was frozen before, and {named('predictor')} ends drafts by costs that are measured "
            "anew; leave one of them out"
        )


def extension_of(session: Session, goal: Goal, config: RunConfig, asked: str, begun: bool) -> Extension | None:
    """Returns what the calibration goes on from: where it is told to, or where its problems are more than then, up to
    four times as many, and some setting did not pass; None: it searches.

    Args:
        asked: See `RunFacts`.
        begun: Whether a search with these problems has begun.

    Raises:
        UsageError: It is told to go on, and there is nothing to go on from.
    """
    if config.extend is False or goal.min_acc is None or goal.explore or goal.guarantee == "dataset":
        return None
    holdout = session.holdout
    claim = claim_of(goal, holdout.looks(goal.tests, holdout.next_attempt))
    found = holdout.extendable(claim, lambda facts: asked_of(facts) == asked)
    if config.extend:
        _check_found(found, holdout.problems)
        return found
    if found is None or found.failed is None or begun:
        return None
    before, more = len(found.problems), len(found.more)
    return found if before <= _MOST * more and more <= _MOST * before else None


def _check_found(found: Extension | None, problems: int) -> None:
    way_out = f"leave {named('extend')} out to search"
    if found is None:
        raise UsageError(
            f"there is nothing to go on from: no decided attempt of this command had some of these {problems:,} "
            f"certification problems and no others; {way_out}"
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
