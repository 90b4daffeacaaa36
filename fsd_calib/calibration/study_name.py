"""The name of a search's study: words for who reads a list of studies, and a hash that keeps other searches apart."""

from __future__ import annotations

import hashlib
from pathlib import PurePath

from fsd_calib.calibration.goal import Goal
from fsd_calib.calibration.prepare import Prepared
from fsd_calib.search.max_accuracy import MaxAccuracy
from fsd_calib.search.max_speed import MaxSpeed
from fsd_calib.search.objective import Objective
from fsd_calib.search.pareto import ParetoFront
from fsd_decoding.profile.parts import ModelInfo

_LONGEST = 200  # characters of the words: databases keep 512 of a name


_KINDS: dict[type, str] = {MaxSpeed: "KeepAccuracy", MaxAccuracy: "ReachSpeed", ParetoFront: "Front"}
"""What objectives are called in studies; never changed, so that an interrupted search of an earlier version goes on."""


def study_name(ready: Prepared, objective: Objective) -> str:
    """Of all that its trials' numbers follow from; so processes that share these share the study.

    Beside the run that is the level of its attempt, on which chances depend, and what a round costs, on which
    forecasts do and where early stops end drafts.
    """
    facts = [
        ready.facts.name,
        ready.session.identity,
        _KINDS[type(objective)],
        objective.description,
        *ready.facts.costs,
    ]
    which = hashlib.sha256(" ".join(map(str, facts)).encode()).hexdigest()[:8]
    words = ", ".join([ready.session.task.name, _pair(ready), _asked(ready.goal, objective)])
    return f"{words[:_LONGEST]}, {which}"


def _pair(ready: Prepared) -> str:
    decoders = ready.session.drafts.values() or [ready.session.decoder]
    drafts = [_short(ModelInfo.of(decoder.draft)) for decoder in decoders]
    return f"{_short(ModelInfo.of(ready.session.decoder.target))} with {' or '.join(drafts)}"


def _short(model: ModelInfo) -> str:
    """Its folder or repository; models that were made in memory have neither."""
    return PurePath(model.id).name or model.fingerprint[:8]


def _asked(goal: Goal, objective: Objective) -> str:
    if goal.min_acc is not None:
        return f"keep {goal.acc} {goal.min_acc:g}"
    if goal.min_speed is None or isinstance(objective, ParetoFront):
        return "the front"
    return f"reach {goal.min_speed:g} tokens/s"
