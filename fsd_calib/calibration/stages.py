"""What displays show of a calibration while it runs: its stages, as planned, and the best setting so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fsd_calib.calibration.plan import Plan
from fsd_calib.search.objective import FinishedTrial
from fsd_common.formatting import percent
from fsd_common.progress.base import Stage
from fsd_decoding.profile.content import CERTIFIED, Outcome
from fsd_decoding.profile.setting import Setting

_GRAPHS, _SEARCH, _TIMING = "graphs", "search", "timing"


def stages_of(plan: Plan) -> list[Stage]:
    """Returns the stages of a plan, in their order.

    Graphs are made whenever a shape of rounds comes up, mostly while searching. Timing is told by the clock, since its
    decodings are no results that are counted.
    """
    graphs = sum(step.seconds for step in plan.steps if step.name == _GRAPHS)
    stages = [
        Stage(step.name, step.seconds, 0 if step.name == _TIMING else step.decodings)
        for step in plan.steps
        if step.name != _GRAPHS
    ]
    return [replace(one, seconds=one.seconds + graphs) if one.name == _SEARCH else one for one in stages]


def best_so_far(trials: Sequence[FinishedTrial], lossless: float, front: bool) -> str:
    """Returns the setting that the search would choose now, with what is known of it.

    Args:
        lossless: forecast tokens/s of lossless decoding.
        front: whether many settings are searched for, none of which is the best.
    """
    feasible = [trial for trial in trials if trial.feasible]
    if front or not feasible:
        tried = f"settings tried: {len(trials)}"
        return tried if front or not trials else f"{tried}, none likely to meet the goal"
    best = max(feasible, key=lambda trial: trial.value)
    faster = best.tokens_per_second / lossless
    return f"best: retention {percent(best.retention)}, about {faster:.2f}x lossless, {best.setting}"


def decided(outcome: Outcome, chosen: Setting | None) -> str:
    """Returns what the test decided, before the clock says what is known of speed."""
    tested = "certified" if outcome in CERTIFIED else outcome
    return f"{tested}, before timing{'' if chosen is None else f': {chosen}'}"
