"""The pair and the problems that threshold policies are compared on, and decoding with a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from transformers.utils import logging

from fsd_calib import SpeculativeDecoder
from fsd_calib.engines.own.round_costs import measure_costs
from fsd_calib.tasks.base import Problem
from fsd_collectors.replay.cost import CostModel
from fsd_data import pair_paths
from fsd_decoding.adaptive import policy_named
from fsd_decoding.engine.result import Result
from lib.common.interval_cache import IntervalCache
from lib.common.paired_contest import Array, Timed
from lib.common.problem_sets import ProblemSets, problem_sets

RULE, BATCH = "fsd-coupled", 32
_COST_LENGTHS = (4, 12, 20)
_TEST_SEED = 71_005  # 71_004 was used while slopes and grids were chosen


@dataclass(frozen=True)
class Arm:
    """A way to decode. policy: the identity of a threshold policy; "": T is constant."""

    divergence: str
    draft_length: int
    policy: str = ""
    threshold: float = 0.0
    rule: str = RULE


@dataclass(frozen=True)
class Part:
    """Problems `start` to `stop` of the set of `ProblemSets` that is named `of`."""

    of: str
    start: int
    stop: int

    def halves(self) -> tuple[Part, Part]:
        middle = (self.start + self.stop) // 2
        return replace(self, stop=middle), replace(self, start=middle)


@dataclass(frozen=True)
class Counts:
    """Tokens, rounds and grades of an arm, (n,) each, of n problems."""

    arm: Arm
    tokens: Array
    rounds: Array
    right: Array

    def timed(self, costs: CostModel) -> Timed:
        """Returns seconds by the cost model; all drafts have the arm's length."""
        seconds = costs.seconds(self.rounds, self.rounds * self.arm.draft_length)
        return Timed(self.tokens, np.asarray(seconds), self.right)

    @property
    def tokens_a_round(self) -> float:
        return float(self.tokens.sum() / self.rounds.sum())

    def __add__(self, more: Counts) -> Counts:
        both = (np.concatenate([getattr(self, n), getattr(more, n)]) for n in ("tokens", "rounds", "right"))
        return Counts(self.arm, *both)


class World:
    """The bundled pair, greedy, with sets of problems of these sizes."""

    def __init__(self, training: int, tuning: int, test: int) -> None:
        torch.set_num_threads(1)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._pair = SpeculativeDecoder.from_pretrained(*pair_paths(), rule=RULE)
        self.sets: ProblemSets = problem_sets(training, tuning, test, self._pair.tokenizer, _TEST_SEED)

    def decoder(self, divergence: str) -> SpeculativeDecoder:
        pair = self._pair
        return SpeculativeDecoder(pair.target, pair.draft, pair.tokenizer, rule=RULE, divergence=divergence)

    def problems(self, part: Part) -> Sequence[Problem]:
        return getattr(self.sets, part.of).problems[part.start : part.stop]  # type: ignore[no-any-return]

    def decode(self, problems: Sequence[Problem], by: Arm, batch_size: int = 1) -> list[Result]:
        task, threshold = self.sets.test, policy_named(by.policy).at(by.threshold) if by.policy else by.threshold
        return self.decoder(by.divergence).generate(
            [p.prompt for p in problems], task.max_new_tokens, rule=by.rule,
            threshold=threshold if by.rule == RULE else None, draft_length=by.draft_length, batch_size=batch_size,
            ids=[p.id for p in problems], stop=task.stop,
        )  # fmt: skip

    def right(self, problems: Sequence[Problem], results: Sequence[Result]) -> Array:
        """Returns grades, (n,) bool."""
        return np.array([self.sets.test.grade(p, r.text) for p, r in zip(problems, results, strict=True)])

    def counts(self, arm: Arm, thresholds: Sequence[float], part: Part) -> list[Counts]:
        """Decodes a part at each threshold, and returns its counts."""
        problems = self.problems(part)
        cache = IntervalCache(lambda t, stale: self.decode(stale, replace(arm, threshold=t), BATCH), problems)
        return [self._counts(replace(arm, threshold=t), problems, cache.at(t)) for t in thresholds]

    def costs(self) -> CostModel:
        """Measures costs at batch 1."""
        task = self.sets.tuning
        prompts, ids = [p.prompt for p in task.problems], [p.id for p in task.problems]
        return measure_costs(
            self._pair, prompts, ids, task.max_new_tokens, task.stop, batch_size=1, draft_lengths=_COST_LENGTHS
        ).model

    def _counts(self, arm: Arm, problems: Sequence[Problem], results: Sequence[Result]) -> Counts:
        tokens, rounds = np.array([r.emitted for r in results]), np.array([r.rounds for r in results])
        return Counts(arm, tokens, rounds, self.right(problems, results))


@cache
def world(training: int, tuning: int, test: int) -> World:
    """Returns the one world of this process."""
    return World(training, tuning, test)
