"""What a policy adds to a draft step at batch 1, beside what the step takes.

Knows clocks around a policy, and draft phases of one length with it and without. Knows nothing of what it decides.
"""

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
    """Another policy, timed. A step's share is asking about its token, and then whether to go on."""

    def __init__(self, policy: StopPolicy, obeys: bool = True) -> None:
        self._policy, self._obeys = policy, obeys
        self.steps: list[float] = []  # seconds
        self.rounds: list[float] = []  # seconds around a round: beginning it, and remembering the one before

    def goes_on(self, state: DraftState) -> list[bool]:
        began = time.perf_counter()
        told = list(as_bools(self._policy.goes_on(state), len(state.rows)))
        taken = time.perf_counter() - began
        if state.logits:
            self.steps[-1] += taken
        else:
            self.rounds.append(taken)
        return told if self._obeys else [True] * len(told)

    def withholds(self, state: DraftState) -> Any:
        began = time.perf_counter()
        told = self._policy.withholds(state)
        self.steps.append(time.perf_counter() - began)
        return told if self._obeys else None

    def remember(self, memory: Any, verified: Verified) -> Any:
        began = time.perf_counter()
        kept = self._policy.remember(memory, verified)
        self.rounds[-1] += time.perf_counter() - began
        return kept


def step_time(setting: Setting, by: Contestant, problems: Sequence[Problem]) -> dict[str, float]:
    """Microseconds a draft step. asked: within the policy. whole: what the step takes longer, the asking included."""
    assert by.policy is not None
    watched = Stopwatch(by.policy)
    setting.decode(problems[:1], Contestant("warms up", by.draft_length, watched))
    watched.steps.clear()
    watched.rounds.clear()
    setting.decode(problems, Contestant(by.name, by.draft_length, watched))
    bare, asked = _drafting(setting, by.policy, problems)
    return {
        "draft_step": bare * 1e6,
        "asked": median(watched.steps) * 1e6,
        "asked_p99": float(np.quantile(watched.steps, 0.99)) * 1e6,
        "asked_a_round": median(watched.rounds) * 1e6,
        "whole": (asked - bare) * 1e6,
        "asked_share": median(watched.steps) / bare,
        "whole_share": asked / bare - 1,
        "steps": len(watched.steps),
    }


def _drafting(setting: Setting, policy: StopPolicy, problems: Sequence[Problem]) -> tuple[float, float]:
    """Seconds a draft step, with nobody asked and with the policy asked but not obeyed: they take turns."""
    ways = (None, Stopwatch(policy, obeys=False))
    seconds: tuple[list[float], ...] = ([], [])
    for problem in problems:
        for way, taken in zip(ways, seconds, strict=True):
            by = Contestant("timed", _LENGTH, way)
            setting.decode([problem], by, observer=_clock(taken))
    bare, asked = (median(taken) / _LENGTH for taken in seconds)
    return bare, asked


def _clock(seconds: list[float]) -> Any:
    def look(record: RoundRecord) -> None:
        seconds.append(record.draft_seconds)

    return look
