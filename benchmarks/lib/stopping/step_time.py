"""Time that a stop policy adds to a draft step at batch 1, compared with the time of the step itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from fsd_calib.tasks.base import Problem
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.policies.stopping import DraftState, StopPolicy, Verified, as_bools
from lib.stopping.decode import Contestant, Setting

_LENGTH = 8  # of the drafts compared


class Stopwatch(StopPolicy):
    """Times another policy. A step's seconds are those of `withholds` for its token and of the `goes_on` after it.

    Args:
        obeys: whether the policy's answers are used; if not, drafts never end early.
    """

    def __init__(self, policy: StopPolicy, obeys: bool = True) -> None:
        self._policy, self._obeys = policy, obeys
        self.steps: list[float] = []  # seconds
        self.rounds: list[float] = []  # seconds of the first `goes_on` of a round and of `remember` after it

    def goes_on(self, state: DraftState) -> list[bool]:
        began = time.perf_counter()
        answer = list(as_bools(self._policy.goes_on(state), len(state.rows)))
        seconds = time.perf_counter() - began
        if state.logits:
            self.steps[-1] += seconds
        else:
            self.rounds.append(seconds)
        return answer if self._obeys else [True] * len(answer)

    def withholds(self, state: DraftState) -> Any:
        began = time.perf_counter()
        answer = self._policy.withholds(state)
        self.steps.append(time.perf_counter() - began)
        return answer if self._obeys else None

    def remember(self, memory: Any, verified: Verified) -> Any:
        began = time.perf_counter()
        kept = self._policy.remember(memory, verified)
        self.rounds[-1] += time.perf_counter() - began
        return kept


def step_time(setting: Setting, by: Contestant, problems: Sequence[Problem]) -> dict[str, float]:
    """Returns microseconds per draft step.

    "asked" are those within the policy. "whole" is how much longer the step takes in all, the policy included.
    """
    assert by.policy is not None
    stopwatch = Stopwatch(by.policy)
    setting.decode(problems[:1], Contestant("warms up", by.draft_length, stopwatch))
    stopwatch.steps.clear()
    stopwatch.rounds.clear()
    setting.decode(problems, Contestant(by.name, by.draft_length, stopwatch))
    bare, with_policy = _drafting(setting, by.policy, problems)
    return {
        "draft_step": bare * 1e6,
        "asked": median(stopwatch.steps) * 1e6,
        "asked_p99": float(np.quantile(stopwatch.steps, 0.99)) * 1e6,
        "asked_a_round": median(stopwatch.rounds) * 1e6,
        "whole": (with_policy - bare) * 1e6,
        "asked_share": median(stopwatch.steps) / bare,
        "whole_share": with_policy / bare - 1,
        "steps": len(stopwatch.steps),
    }


def _drafting(setting: Setting, policy: StopPolicy, problems: Sequence[Problem]) -> tuple[float, float]:
    """Returns seconds per draft step without a policy, and with the policy called but not obeyed, in turns."""
    policies = (None, Stopwatch(policy, obeys=False))
    seconds: tuple[list[float], ...] = ([], [])
    for problem in problems:
        for either, taken in zip(policies, seconds, strict=True):
            by = Contestant("timed", _LENGTH, either)
            setting.decode([problem], by, observer=_draft_clock(taken))
    bare, with_policy = (median(taken) / _LENGTH for taken in seconds)
    return bare, with_policy


def _draft_clock(seconds: list[float]) -> Any:
    def observe(record: RoundRecord) -> None:
        seconds.append(record.draft_seconds)

    return observe
