"""Runs a search: trials one after the other, until the goal has nothing left to try or the trials run out.

Knows the loop. Where to try next, what is feasible and what is frozen in the end is the goal's.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import PurePath

from optuna.study import Study

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.progress import Advance, Progress
from fsd_calib.search.forecast import Forecast
from fsd_calib.search.history import History, Tried
from fsd_calib.search.objective import Objective
from fsd_calib.search.sampler import NothingLeftError, ProposingSampler, history_of
from fsd_calib.search.space import Space
from fsd_calib.search.study import add_attributes, opened_study
from fsd_calib.search.trial import Trying, setting, shown
from fsd_calib.search.workers import fail_dead_trials
from fsd_decoding.profile.policy import brief

_POLL = 0.5  # seconds between looks at what other workers do


@dataclass(frozen=True)
class Searched:
    """tried: every finished trial of the study. skipped: lines that say which arms were not tried, and why."""

    tried: tuple[Tried, ...]
    skipped: tuple[str, ...]


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
) -> Searched:
    """Goes on where the study stands. A finished trial is not repeated, one that a killed process left is.

    Args:
        bench: of the tuning part.
        target: of the target alone on all of it.
        storage: None: in memory; a path: a journal; else a database's URL. Several processes may share one.
        name: of the study; it must differ where models, task or settings do.
        trials: finished ones at most, earlier ones and other workers' included.

    Raises:
        UsageError: the storage cannot be opened, or holds a study of that name for something else.
    """
    sampler = ProposingSampler(lambda history: objective.propose(history, space, forecast), space, forecast.lowest,
                               forecast.highest)  # fmt: skip
    trying = Trying(evaluator, target, forecast, objective, space, progress)
    identity = _identity(space, objective, evaluator)
    with (
        opened_study(storage, name, identity, sampler) as study,
        progress.step(f"searching, at most {trials} trials", trials) as advance,
    ):
        history = _loop(study, trying, trials, advance)
    why_not = partial(objective.why_not, history=history, space=space, forecast=forecast)
    return Searched(history.tried, _skipped(history, space, why_not))


def freeze(
    searched: Searched,
    space: Space,
    evaluator: Evaluator,
    target: Measurement,
    forecast: Forecast,
    objective: Objective,
) -> list[Configuration]:
    """What to put to the test, safest first; from the tuning part alone. Thresholds between two that were tried may
    be measured for it. Empty where nothing was tried."""
    return objective.freeze(searched.tried, space, evaluator, target, forecast)


def tell_recounted(
    searched: Searched, evaluator: Evaluator, target: Measurement, forecast: Forecast, storage: str | None, name: str
) -> None:
    """Adds to the study what freezing counted on the whole tuning part, where no trial did: `recounted 1` and so on, as
    attributes of the study, since those of a finished trial are final. In memory nobody looks at it."""
    known = {(t.configuration, t.problems) for t in searched.tried}
    whole = [m for m in evaluator.measured() if m.configuration.threshold is not None and m.problems == target.problems]
    later = [m for m in whole if (m.configuration, m.problems) not in known]
    if storage is not None and later:
        told = [setting(m.configuration) | shown(m, target, forecast) for m in later]
        add_attributes(storage, name, {f"recounted {number}": one for number, one in enumerate(told, 1)})


def _loop(study: Study, trying: Trying, trials: int, advance: Advance) -> History:
    """Where nothing can be proposed while others still work, their results may yet ask for more."""
    shown = 0
    while True:
        fail_dead_trials(study)
        history = history_of(study.get_trials(deepcopy=False))
        advance(len(history.tried) - shown)
        shown = len(history.tried)
        wanted = shown + len(history.running) < trials
        if wanted and trying.objective.propose(history, trying.space, trying.forecast) is not None:
            study.optimize(trying, n_trials=1, catch=(NothingLeftError,))
        elif history.running:
            time.sleep(_POLL)
        else:
            return history


def _skipped(history: History, space: Space, why_not: Callable[[Configuration], str]) -> tuple[str, ...]:
    """Of one family those that share a reason share a line."""
    lengths: dict[tuple[Configuration, str], list[int]] = defaultdict(list)
    for arm in chain.from_iterable(space.families):
        if not history.of(arm):
            lengths[arm.family, why_not(arm)].append(arm.draft_length)
    return tuple(
        f"{_named(family)} at L = {', '.join(map(str, some))} was not tried: {why}"
        for (family, why), some in lengths.items()
    )


def _named(family: Configuration) -> str:
    moved = "" if family.policy is None else f", T by {brief(family.policy)},"
    drafting = "" if family.draft is None else f" with {PurePath(family.draft).name}"
    return f"{family.rule} by {family.divergence}{moved}{drafting}"


def _identity(space: Space, objective: Objective, evaluator: Evaluator) -> dict[str, str]:
    """What must agree for trials to be of one search."""
    ids = hashlib.sha256(json.dumps([problem.id for problem in evaluator.problems]).encode()).hexdigest()[:12]
    return {
        "space": json.dumps(asdict(space)),
        "goal": objective.asked,
        "problems": f"{len(evaluator.problems)} of {ids}",
    }
