"""Everyone's ways to be set, and the best of them on the problems to tune on.

Knows each family's numbers and how one is chosen: by counts at the costs of a single row, which is what all are
chosen by. Knows none of the formulas.
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
_FIRST_LOOK, _LIKELY = 4, 4  # at so small a part of the problems; so many of a family are then looked at on all


def families(kinds: TokenKinds, eos: Collection[int]) -> dict[str, list[Contestant]]:
    """Every candidate of every family."""

    def by(rule: Callable[[], StoppingRule], cap: int = MOST) -> Contestant:
        made = rule()
        return Contestant(f"{made.identity}, L={cap}", cap, EarlyStop(made, kinds))

    def each(rule: Callable[[float, int], StoppingRule], numbers: Sequence[float]) -> list[Contestant]:
        return [by(lambda n=n, cap=cap: rule(n, cap), cap) for n, cap in product(numbers, _CAPS)]  # type: ignore[misc]

    return {
        FIXED: [Contestant(f"L={length}", length) for length in _LENGTHS],
        UNTIL_END: [Contestant(f"L={length}", length, UntilEnd(eos)) for length in _LENGTHS],
        "confidence": each(lambda n, _: Confidence(n), _CONFIDENCE),
        "svip": each(lambda n, _: Svip(n), _SVIP),
        "adaedl": each(AdaEdl, _ADAEDL),
        "heuristic": each(lambda n, cap: Heuristic(int(n), cap), _HEURISTIC),
    }


def tuned(
    setting: Setting, candidates: Sequence[Contestant], problems: Sequence[Problem], costs: CostModel
) -> Contestant:
    """The fastest on all problems of those that were the fastest on a few."""

    def rate(on: Sequence[Problem]) -> Callable[[Contestant], float]:
        return lambda by: setting.counted(on, by).rate(costs)

    likely = sorted(candidates, key=rate(problems[: max(1, len(problems) // _FIRST_LOOK)]), reverse=True)
    return max(likely[:_LIKELY], key=rate(problems))
