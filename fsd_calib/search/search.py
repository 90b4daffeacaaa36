"""The search loop: runs trials until the objective proposes no more or the budget of trials is spent."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from fsd_calib.engines.configuration import Configuration
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search.agreement import first_recorded, recorded
from fsd_calib.search.digests import damaged
from fsd_calib.search.forecast import Forecast
from fsd_calib.search.history import FinishedTrial, History
from fsd_calib.search.objective import Objective
from fsd_calib.search.sampler import NothingLeftError, Propose, ProposingSampler, history_of
from fsd_calib.search.space import Point, Space
from fsd_calib.search.study import add_attributes, open_study
from fsd_calib.search.trial import TrialRunner, measured_attributes, setting_attributes
from fsd_calib.search.workers import Workers, fail_dead_trials
from fsd_common.progress.base import Advance, Progress, Waiting

_POLL = 0.5  # seconds between checks of other workers' trials


@dataclass(frozen=True)
class SearchResult:
    """The state of a study after a search.

    Attributes:
        trials: The finished trials of the study when the first of its processes ended the search.
        untried: A sentence on the arms without a trial: how many, and why; empty where there are none.
    """

    trials: tuple[FinishedTrial, ...]
    untried: str


def search(
    evaluator: Evaluator,
    target: Measurement,
    forecast: Forecast,
    space: Space,
    objective: Objective,
    storage: str | None,
    name: str,
    trials: int,
    progress: Progress,
    seen: Callable[[Sequence[FinishedTrial]], None] = lambda trials: None,
) -> SearchResult:
    """Continues the study of that name, or begins it. Finished trials are not repeated; those of killed processes are.

    The first process that finds nothing left to try records which trials the search ended with, and all processes, also
    later ones with the same budget, return those.

    Args:
        evaluator: Measures on the tuning part.
        target: Measurement of the target alone on all of it.
        storage: None: in memory; a path: a journal file; else a database URL. Several processes may share one.
        name: Name of the study; must differ where models, task or settings do.
        trials: Budget of finished trials, including earlier ones and those of other workers.
        seen: Receives the finished trials whenever there are more.

    Raises:
        UsageError: The storage cannot be opened, or the study of that name belongs to another search.
    """

    def propose(history: History) -> Point | None:
        """Returns the next point within the budget."""
        if len(history.trials) + len(history.running) >= trials:
            return None
        return objective.propose(history, space, forecast)

    workers = Workers()
    sampler = ProposingSampler(propose, space, forecast.lowest, forecast.highest, workers)
    runner = TrialRunner(evaluator, target, forecast, objective, space, progress)
    identity = _identity(space, objective, evaluator)
    with (
        open_study(storage, name, identity, sampler) as study,
        progress.step(f"searching, at most {trials} trials", trials) as advance,
    ):
        history = _loop(study, runner, propose, workers, f"ended with at most {trials} trials", advance, seen)
    reason_untried = partial(objective.reason_untried, history=history, space=space, forecast=forecast)
    return SearchResult(history.trials, _untried(history, space, reason_untried))


def freeze(
    searched: SearchResult,
    space: Space,
    evaluator: Evaluator,
    target: Measurement,
    forecast: Forecast,
    objective: Objective,
) -> list[Configuration]:
    """Returns the configurations to certify, safest first, chosen on the tuning part alone.

    Thresholds between two that were tried may be measured for it. Empty where no trial finished.
    """
    return objective.freeze(searched.trials, space, evaluator, target, forecast)


def record_recounts(
    searched: SearchResult,
    evaluator: Evaluator,
    target: Measurement,
    forecast: Forecast,
    storage: str | None,
    name: str,
) -> None:
    """Adds to the study what freezing measured on the whole tuning part and no trial did.

    They become attributes of the study, `recounted 1` and so on, since those of a finished trial are final. A study in
    memory gets none.
    """
    known = {(t.configuration, t.problems) for t in searched.trials}
    whole = [m for m in evaluator.measured() if m.configuration.threshold is not None and m.problems == target.problems]
    recounted = [m for m in whole if (m.configuration, m.problems) not in known]
    if storage is not None and recounted:
        counted = [setting_attributes(m.configuration) | measured_attributes(m, target, forecast) for m in recounted]
        add_attributes(storage, name, {f"recounted {number}": values for number, values in enumerate(counted, 1)})


def _loop(
    study: Study, runner: TrialRunner, propose: Propose, workers: Workers, end: str, advance: Advance,
    seen: Callable[[Sequence[FinishedTrial]], None],
) -> History:  # fmt: skip
    """Runs trials; where no point is proposed while other workers still run trials, waits for their results.

    Args:
        end: The study's attribute with the numbers of the trials that the search ended with.
    """
    reported, waiting = 0, Waiting(runner.progress, "has begun the last trials of this study")
    while True:
        fail_dead_trials(study)
        ended = recorded(study, end)  # read before the trials, so that these are all among them
        trials = study.get_trials(deepcopy=False)
        if ended is not None:
            return history_of(_counted(trials, ended), workers)
        history = history_of(trials, workers)
        advance(len(history.trials) - reported)
        seen(history.trials)
        reported = len(history.trials)
        if propose(history) is not None:
            study.optimize(runner, n_trials=1, catch=(NothingLeftError,))
        elif workers.running(trials):  # also one that has no parameters yet
            waiting.still()
            time.sleep(_POLL)
        else:
            first_recorded(study, end, [trial.number for trial in trials if trial.state == TrialState.COMPLETE])


def _counted(trials: Sequence[FrozenTrial], numbers: Sequence[int]) -> list[FrozenTrial]:
    """Returns the finished trials of these numbers. UsageError: one is gone, or is not finished any more."""
    counted = [trial for trial in trials if trial.number in numbers and trial.state == TrialState.COMPLETE]
    if len(counted) != len(numbers):
        raise damaged(f"one of the trials {', '.join(map(str, numbers))}")
    return counted


def _untried(history: History, space: Space, reason_untried: Callable[[Configuration], str]) -> str:
    """Returns how many arms were not tried, by reason."""
    arms = [*chain.from_iterable(space.families)]
    reasons = Counter(reason_untried(arm) for arm in arms if not history.of(arm))
    if not reasons:
        return ""
    why = "; ".join(reasons if len(reasons) == 1 else (f"{count} as {reason}" for reason, count in reasons.items()))
    return (
        f"{reasons.total()} of {len(arms)} ways to decode (rule, divergence, draft length, …) were not tried: {why} "
        "(docs/calibration.md, What it does)"
    )


def _identity(space: Space, objective: Objective, evaluator: Evaluator) -> dict[str, str]:
    """Returns what must agree for two runs to belong to one search."""
    ids = hashlib.sha256(json.dumps([problem.id for problem in evaluator.problems]).encode()).hexdigest()[:12]
    return {
        "space": json.dumps(space.values),
        "goal": objective.description,
        "problems": f"{len(evaluator.problems)} of {ids}",
    }
