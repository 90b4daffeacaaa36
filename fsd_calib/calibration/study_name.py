"""Names of studies: readable words for lists of studies, and a hash that keeps different searches apart."""

from __future__ import annotations

import hashlib

from fsd_calib.calibration.prepare import Prepared
from fsd_calib.config import Goal
from fsd_calib.search.objective import Objective
from fsd_calib.search.pareto import ParetoFront

_MAX_LENGTH = 200  # characters of the words: databases keep 512 of a name


def study_name(ready: Prepared, objective: Objective) -> str:
    """Returns a name made of everything that the values of a trial depend on, so such processes share the study.

    Beside the run's name these are the level of its attempt, on which chances of passing depend, and the costs of a
    round, on which forecasts and the early stop depend.
    """
    facts = [
        ready.facts.name,
        ready.session.identity,
        type(objective).__name__,
        objective.description,
        *ready.facts.costs,
    ]
    digest = hashlib.sha256(" ".join(map(str, facts)).encode()).hexdigest()[:8]
    words = ", ".join([ready.session.task.name, _pair(ready), _goal(ready.goal, objective)])
    return f"{words[:_MAX_LENGTH]}, {digest}"


def _pair(ready: Prepared) -> str:
    """Architectures and sizes: the same models in other folders share the study."""
    engines = [*ready.session.drafts.values()] or [ready.session.engine]
    drafts = [engine.short_names[1] for engine in engines]
    return f"{engines[0].short_names[0]} with {' or '.join(drafts)}"


def _goal(goal: Goal, objective: Objective) -> str:
    if goal.min_acc is not None:
        return f"keep {goal.acc} {goal.min_acc:g}"
    if goal.min_speed is None or isinstance(objective, ParetoFront):
        return "the front"
    return f"reach {goal.min_speed:g} tokens/s"
