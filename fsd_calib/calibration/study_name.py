"""The name of a search's study: words for who reads a list of studies, and a hash that keeps other searches apart."""

from __future__ import annotations

import hashlib
from pathlib import PurePath

from fsd_calib.calibration.goal import Wish
from fsd_calib.calibration.prepare import Prepared
from fsd_calib.search.objective import Goal
from fsd_calib.search.pareto import Front
from fsd_decoding.profile.parts import ModelInfo

_LONGEST = 200  # characters of the words: databases keep 512 of a name


def study_name(ready: Prepared, goal: Goal) -> str:
    """Of all that its trials' numbers follow from; so processes that share these share the study.

    Beside the run that is the level of its attempt, on which chances depend, and what a round costs, on which
    forecasts do and where early stops end drafts.
    """
    facts = [ready.facts.name, ready.bench.identity, type(goal).__name__, goal.asked, *ready.facts.costs]
    which = hashlib.sha256(" ".join(map(str, facts)).encode()).hexdigest()[:8]
    words = ", ".join([ready.bench.task.name, _pair(ready), _asked(ready.wish, goal)])
    return f"{words[:_LONGEST]}, {which}"


def _pair(ready: Prepared) -> str:
    decoders = ready.bench.drafts.values() or [ready.bench.decoder]
    drafts = [_short(ModelInfo.of(decoder.draft)) for decoder in decoders]
    return f"{_short(ModelInfo.of(ready.bench.decoder.target))} with {' or '.join(drafts)}"


def _short(model: ModelInfo) -> str:
    """Its folder or repository; models that were made in memory have neither."""
    return PurePath(model.id).name or model.fingerprint[:8]


def _asked(wish: Wish, goal: Goal) -> str:
    if wish.min_acc is not None:
        return f"keep {wish.acc} {wish.min_acc:g}"
    if wish.min_speed is None or isinstance(goal, Front):
        return "the front"
    return f"reach {wish.min_speed:g} tokens/s"
