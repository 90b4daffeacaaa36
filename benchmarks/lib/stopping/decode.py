"""Contestants that decode the same problems at the same T, and counts of their rounds with the cost of those."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fsd_calib import SpeculativeDecoder
from fsd_calib.tasks.base import Problem, Task
from fsd_collectors.replay.cost import CostModel
from fsd_decoding.engine.result import Result
from fsd_decoding.observers.round_record import Observer
from fsd_decoding.policies.stopping import DraftState, StopPolicy, Verified, as_bools
from lib.common.paired_contest import Array

MOST = 24  # the longest draft of any contestant
BATCH = 32


@dataclass(frozen=True)
class Contestant:
    """A way to end drafts: by their length, and by a policy if there is one."""

    name: str
    draft_length: int = MOST
    policy: StopPolicy | None = None


@dataclass(frozen=True)
class Setting:
    """What all contestants have in common: models, sampling, problems and T."""

    decoder: SpeculativeDecoder
    task: Task
    threshold: float

    def decode(
        self, problems: Sequence[Problem], by: Contestant, batch_size: int = 1, observer: Observer | None = None
    ) -> list[Result]:
        return self.decoder.generate(
            [problem.prompt for problem in problems], self.task.max_new_tokens, threshold=self.threshold,
            draft_length=by.draft_length, batch_size=batch_size, ids=[problem.id for problem in problems],
            stop=self.task.stop, stop_policy=by.policy, observer=observer,
        )  # fmt: skip

    def right(self, problems: Sequence[Problem], results: Sequence[Result]) -> Array:
        """Returns grades, (n,) bool."""
        return np.array([self.task.grade(p, r.text) for p, r in zip(problems, results, strict=True)])

    def counts(self, problems: Sequence[Problem], by: Contestant) -> Counts:
        """Decodes problems in batches, which counts do not depend on, and returns the counts."""
        counting = None if by.policy is None else Counting(by.policy)
        results = self.decode(problems, replace(by, policy=counting), BATCH)
        drafted = [result.drafted for result in results]
        steps = drafted if counting is None else [counting.steps[i] for i in range(len(results))]
        tokens, rounds = [result.emitted for result in results], [result.rounds for result in results]
        right = self.right(problems, results)
        return Counts(np.array(tokens), np.array(rounds), np.array(steps), np.array(drafted), right)


@dataclass(frozen=True)
class Counts:
    """Counts of n problems, (n,) each. steps: draft steps, including those of tokens that were not verified."""

    tokens: Array
    rounds: Array
    steps: Array
    drafted: Array
    right: Array

    def seconds(self, costs: CostModel) -> Array:
        """Returns the seconds of rounds, (n,), without prefill, which is the same for all contestants."""
        unverified = costs.draft_step * (self.steps - self.drafted)
        return np.asarray(unverified + costs.seconds(self.rounds, self.drafted))

    def rate(self, costs: CostModel) -> float:
        """Returns tokens per second."""
        return float(self.tokens.sum() / self.seconds(costs).sum())

    def summary(self, costs: CostModel) -> dict[str, float]:
        rounds = self.rounds.sum()
        return {
            "tokens_per_second": self.rate(costs),
            "tokens_a_round": float(self.tokens.sum() / rounds),
            "steps_a_round": float(self.steps.sum() / rounds),
            "drafted_a_round": float(self.drafted.sum() / rounds),
            "accuracy": float(self.right.mean()),
        }


class Counting(StopPolicy):
    """Follows another policy, and counts the draft steps that each request takes."""

    def __init__(self, policy: StopPolicy) -> None:
        self._policy = policy
        self.identity, self.reads_threshold = policy.identity, policy.reads_threshold
        self.steps: Counter[int] = Counter()  # by the request's index

    def goes_on(self, state: DraftState) -> list[bool]:
        answer = as_bools(self._policy.goes_on(state), len(state.rows))
        first = not state.logits  # the draft takes one step even where it drafts nothing
        for row, going, wanted in zip(state.rows, state.going, answer, strict=True):
            self.steps[row.request.index if row else -1] += going and (wanted or first)
        return list(answer)

    def withholds(self, state: DraftState) -> Any:
        return self._policy.withholds(state)

    def remember(self, memory: Any, verified: Verified) -> Any:
        return self._policy.remember(memory, verified)
