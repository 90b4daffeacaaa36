"""Budgets on the bundled pair: speed requested and reached, risk allowed and taken, and the cost of policies.

Seconds are wall-clock seconds, as a server would see them, so nothing else may run at the same time.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import cycle
from typing import Any, Literal

import torch
from torch import Tensor

from fsd_calib import SpeculativeDecoder, load_task
from fsd_calib.tasks.base import Problem
from fsd_data import pair_paths
from fsd_decoding.adaptive import Constant, DivergenceBudget, EntropyScaled, Min, SpeedBudget, Switch
from fsd_decoding.config import Threshold
from fsd_decoding.engine.result import Result
from fsd_decoding.engine.threshold_control import ThresholdControl
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.policies.rounds import RoundState
from fsd_decoding.policies.threshold import ScalePolicy, ThresholdPolicy
from fsd_decoding.profile.parts import ModelInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from lib.common.delayed_draft import slowed
from lib.common.timing import Run, rates, speed_up, take_turns
from lib.policies.budget_world import Point, profile_of

_DRAFT_LENGTH, _THRESHOLD, _SEED = 5, 0.1, 424_243
_CLOCK = time.perf_counter
_CURVE = (0.05, 0.065, 0.08, 0.1)


class Bundled:
    """The bundled pair, greedy, on held-out problems."""

    def __init__(self, problems: int) -> None:
        self.decoder = SpeculativeDecoder.from_pretrained(*pair_paths(), draft_length=_DRAFT_LENGTH)
        self.task = load_task("arithmetic", seed=_SEED, limit=problems, tokenizer=self.decoder.tokenizer)

    def decode(self, problems: Sequence[Problem], threshold: Threshold, batch_size: int = 1) -> list[Result]:
        return self.decoder.generate(
            [p.prompt for p in problems], self.task.max_new_tokens, threshold=threshold, batch_size=batch_size,
            ids=[p.id for p in problems], stop=self.task.stop,
        )  # fmt: skip

    def timed(self, threshold: Threshold, batch_size: int, problems: Sequence[Problem]) -> tuple[Run, int]:
        """Decodes; returns tokens and seconds of the call, and the sum of its rows' rounds."""
        began = _CLOCK()
        results = self.decode(problems, threshold, batch_size)
        seconds = _CLOCK() - began
        return Run(sum(r.emitted for r in results), seconds), sum(r.rounds for r in results)

    def profile(self, problems: Sequence[Problem]) -> ThresholdProfile:
        """Returns a profile that is timed now, each T in turn on each problem."""
        self.timed(-1.0, 1, problems[:1])  # warms up
        sums = {threshold: (Run(0.0, 0.0), 0) for threshold in (-1.0, *_CURVE)}
        for problem in problems:
            for threshold, (run, rounds) in sums.items():
                more, also = self.timed(threshold, 1, [problem])
                sums[threshold] = run + more, rounds + also
        points = [Point(None if t < 0 else t, run.amount / n, run.rate) for t, (run, n) in sums.items()]
        models = ModelInfo.of(self.decoder.target), ModelInfo.of(self.decoder.draft)
        return profile_of(points, _THRESHOLD, _DRAFT_LENGTH, *models, tokenizer_fingerprint(self.decoder.tokenizer))


def speeds(pair: Bundled, profile: ThresholdProfile, shares: Sequence[float], texts: int, delay: float) -> Any:
    """Measures the speeds that budgets reach at batch 1; they take turns, problem by problem.

    An error is relative to the requested speed, or to the nearest one within reach of lossless decoding and the
    profile's T in the same turns, since the machine may have slowed down after the profile was timed.

    Args:
        shares: requested speeds, as shares of the way from lossless speed to the profile's fastest, with the delay.
        texts: how many are counted, once all budgets have settled.
        delay: seconds that are added to every draft step.
    """
    ends = [p for p in profile.curve if p.threshold in (None, _THRESHOLD)]
    slow, fast = (p.tokens_per_round / (p.tokens_per_round / (p.forecast or 1.0) + _DRAFT_LENGTH * delay) for p in ends)
    budgets = {share: SpeedBudget(slow + share * (fast - slow), profile, clock=_CLOCK) for share in shares}
    contenders: dict[Any, Threshold] = {"lossless": -1.0, "fastest": _THRESHOLD, **budgets}
    runs = dict.fromkeys(contenders, Run(0.0, 0.0))
    rounds = dict.fromkeys(contenders, 0)
    slower: AbstractContextManager[None] = slowed(pair.decoder.draft, delay) if delay else nullcontext()
    counted, problems = 0, cycle(pair.task.problems)
    with slower, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a budget may be out of reach on a single text
        while counted < texts:
            settled = all(rounds[share] >= budget.settling for share, budget in budgets.items())
            problem = next(problems)
            for name, threshold in contenders.items():
                run, n = pair.timed(threshold, 1, [problem])
                rounds[name] += n
                if settled:
                    runs[name] += run
            counted += settled
    reach = [runs[name].rate for name in ("lossless", "fastest")]
    return [
        {"share": share, "asked": budget.tokens_per_second, "reach": reach, "made": runs[share].rate,
         "tokens": runs[share].amount, "threshold": float(budget.current), "delay": delay,
         "error": runs[share].rate / min(max(budget.tokens_per_second, reach[0]), reach[1]) - 1}
        for share, budget in budgets.items()
    ]  # fmt: skip


def risk(
    pair: Bundled, measure: Literal["divergence", "substitutions"], per_token: float, texts: int, batch: int
) -> Any:  # fmt: skip
    """Measures the risk that a budget takes on a stream of short problems followed by long ones."""
    by_length = sorted(pair.task.problems, key=lambda p: p.reference.count("\n"))
    budget = DivergenceBudget(per_token, measure)
    parts: list[dict[str, Any]] = []
    excess = 0.0  # the largest difference of mean and guaranteed bound after any call
    before = (0.0, 0.0)
    for name, half in (("short", by_length[: texts // 2]), ("long", by_length[-(texts - texts // 2) :])):
        thresholds: list[float] = []
        for start in range(0, len(half), 8 * batch):
            pair.decode(half[start : start + 8 * batch], budget, batch)
            state = budget.state_dict()
            excess = max(excess, budget.mean - budget.bound(state["tokens"]))
            thresholds.append(state["threshold"])
        tokens, spent = state["tokens"] - before[0], state["spent"] - before[1]
        before = state["tokens"], state["spent"]
        mean = sum(thresholds) / len(thresholds)
        parts.append({"half": name, "tokens": tokens, "mean": spent / tokens, "threshold": mean})
    return {"measure": measure, "per_token": per_token, "mean": budget.mean, "error": budget.mean / per_token - 1,
            "bound": budget.bound(before[0]), "excess": excess, "batch": batch, "halves": parts}  # fmt: skip


class _Constant(ThresholdPolicy):
    def thresholds(self, state: RoundState) -> Tensor:
        return torch.full_like(state.base, _THRESHOLD)


class _ByPlace(ScalePolicy):
    """T that rises with the position like a schedule's, but so little that no text changes."""

    threshold = _THRESHOLD

    def scales(self, state: RoundState) -> Tensor:
        return 1.0 + (state.places.double() / 200).clamp_max(1.0) * 1e-12


def policies(profile: ThresholdProfile) -> Mapping[str, Threshold]:
    """Returns policies that all decode the same texts at the same T: the budgets are too large to be spent."""
    return {
        "none": _THRESHOLD,
        "constant": _Constant(),
        "schedule": _ByPlace(),
        "speed": SpeedBudget(1e6, profile, beyond=True, clock=_CLOCK),
        "divergence": DivergenceBudget(0.99 * _THRESHOLD, ceiling=_THRESHOLD, start=_THRESHOLD),
        "both entropies": Min(*(EntropyScaled(_THRESHOLD, 1e-12, of) for of in ("target", "draft"))),
        "after a sentence": Switch.after_sentence(Constant(_THRESHOLD), Constant(_THRESHOLD)),
    }


class PolicyClock:
    """Times the methods of `ThresholdControl`, which call all methods of policies, within a `with` block."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> PolicyClock:
        self._originals = {
            name: getattr(ThresholdControl, name) for name in ("start", "adapt", "record_verdict", "observe")
        }
        for name, method in self._originals.items():
            setattr(ThresholdControl, name, self._timed(method))
        return self

    def __exit__(self, *_: object) -> None:
        for name, method in self._originals.items():
            setattr(ThresholdControl, name, method)

    def _timed(self, method: Callable[..., None]) -> Callable[..., None]:
        def timed(*arguments: Any) -> None:
            began = _CLOCK()
            method(*arguments)
            self.seconds += _CLOCK() - began

        return timed


def overhead(pair: Bundled, profile: ThresholdProfile, batch: int, pieces: int, repeats: int) -> Any:
    """Measures the cost of policies in two ways.

    `shares` are the shares of a call's seconds that policies take, which vary little. `ratios` compare the seconds of
    a round without a policy and with one, in turns on the same work; other work on the machine blurs them.
    """
    work = [pair.task.problems[i * batch : (i + 1) * batch] for i in range(pieces)]

    def rounds(threshold: Threshold, problems: Sequence[Problem]) -> Run:
        run, n = pair.timed(threshold, batch, problems)
        return Run(n, run.seconds)

    contenders = {name: partial(rounds, policy) for name, policy in policies(profile).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these budgets are out of reach
        take_turns(contenders, work[:1], 1)  # warms up
        runs = take_turns(contenders, work, repeats)
        shares = {name: _share(pair, policy, batch, work) for name, policy in policies(profile).items()}
    base = runs.pop("none")
    return {
        "batch": batch,
        "milliseconds_a_row_and_round": 1000 / rates(base).median,
        "shares": {name: share for name, share in shares.items() if name != "none"},
        "ratios": {name: speed_up(base, timed) for name, timed in runs.items()},
    }


def _share(pair: Bundled, policy: Threshold, batch: int, work: Sequence[Sequence[Problem]]) -> float:
    """Returns the share of a call's seconds that the policy takes."""
    with PolicyClock() as clock:
        seconds = sum(pair.timed(policy, batch, piece)[0].seconds for piece in work)
    return clock.seconds / seconds
