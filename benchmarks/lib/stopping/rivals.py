"""Candidates of every family of rivals, and the choice of the best one on the tuning problems.

All families are tuned in the same way, by counts priced at the costs of a single stream.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import product

from fsd_calib.tasks.base import Problem
from fsd_collectors.replay.cost import CostModel
from fsd_predictors.features.token_kinds import TokenKinds
from fsd_predictors.stopping.baselines import AdaEdl, Confidence, Heuristic, Svip
from fsd_predictors.stopping.in_loop import EarlyStop
from fsd_predictors.stopping.rule import StoppingRule
from lib.stopping.decode import MOST, Contestant, Setting
from lib.stopping.until_end import UntilEnd

FIXED, UNTIL_END = "fixed", "fixed, ends behind EOS"
_LENGTHS = range(1, MOST + 1)
_CAPS = (12, MOST)
_CONFIDENCE = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_SVIP = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7)
_ADAEDL = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_HEURISTIC = (3, 5, 8, 12, 20)
_SCREENING, _FINALISTS = 4, 4  # candidates are screened on a fourth of the problems; four go on to all of them


def families(kinds: TokenKinds, eos: Collection[int]) -> dict[str, list[Contestant]]:
    """Returns all candidates by family."""

    def candidate(rule: StoppingRule, cap: int) -> Contestant:
        return Contestant(f"{rule.identity}, L={cap}", cap, EarlyStop(rule, kinds))

    def each(rule: Callable[[float, int], StoppingRule], numbers: Sequence[float]) -> list[Contestant]:
        return [candidate(rule(n, cap), cap) for n, cap in product(numbers, _CAPS)]

    return {
        FIXED: [Contestant(f"L={length}", length) for length in _LENGTHS],
        UNTIL_END: [Contestant(f"L={length}", length, UntilEnd(eos)) for length in _LENGTHS],
        "confidence": each(lambda n, _: Confidence(n), _CONFIDENCE),
        "svip": each(lambda n, _: Svip(n), _SVIP),
        "adaedl": each(AdaEdl, _ADAEDL),
        "heuristic": each(lambda n, cap: Heuristic(int(n), cap), _HEURISTIC),
    }


def tune(
    setting: Setting, candidates: Sequence[Contestant], problems: Sequence[Problem], costs: CostModel
) -> Contestant:
    """Returns the fastest on all problems of the candidates that were fastest on a few of them."""

    def rate(on: Sequence[Problem]) -> Callable[[Contestant], float]:
        return lambda by: setting.counts(on, by).rate(costs)

    fastest_first = sorted(candidates, key=rate(problems[: max(1, len(problems) // _SCREENING)]), reverse=True)
    return max(fastest_first[:_FINALISTS], key=rate(problems))
