"""Dinkelbach's iteration: the tokens per second λ that the throughput rule can reach at each T, found by replay.

Dinkelbach (1967), Management Science 13(7): to maximise N/D, maximise N − λD and set λ to the ratio N/D of the
solution; λ then rises to the largest ratio superlinearly from any start below it. Here N counts tokens, D the seconds
of a `CostModel`, and the throughput rule maximises N − λD as far as it can forecast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fsd_collectors.replay.blocks import Traces
from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.simulation import replay
from fsd_predictors.features.share_scale import ShareScale
from fsd_predictors.features.token_kinds import TokenKinds
from fsd_predictors.stopping.in_replay import InReplay
from fsd_predictors.stopping.rates import Rates
from fsd_predictors.stopping.rule import StoppingRule

_CLOSE = 1e-4  # relative tolerance
_MOST = 30  # iterations


def climb(reached: Callable[[float], float], start: float) -> list[float]:
    """Returns the rising iterates of λ, from `start` on.

    Args:
        reached: tokens per second that the rule reaches when it is given a λ.
        start: a λ that is too low.
    """
    iterates = [start]
    while len(iterates) < _MOST and (rate := reached(iterates[-1])) > iterates[-1] * (1 + _CLOSE):
        iterates.append(rate)
    return iterates


def rates_on(
    traces: Traces,
    throughput: Callable[[Rates], StoppingRule],
    kinds: TokenKinds,
    scale: ShareScale,
    rule: str,
    divergence: str,
    thresholds: Iterable[float],
    costs: CostModel,
    most: int,
    where: Any = None,
) -> Rates:
    """Finds λ at each threshold, on the completions that `where` selects.

    Args:
        traces: traces along the target.
        throughput: makes the stopping rule from rates.
        rule, divergence: acceptance rule and its divergence, see `replay`.
        thresholds: thresholds to find λ at.
        costs: seconds of draft steps and verifications.
        most: L, the longest draft.

    Raises:
        UsageError: as `replay`, or there are no thresholds.
    """
    rates: dict[float, float] = {}  # by share
    lowest = float(costs.tokens_per_second(tokens=1, rounds=1, drafted=1))  # where every draft is rejected
    for threshold in sorted(thresholds):
        share = scale.of(divergence, threshold)

        def reached(rate: float, threshold: float = threshold, share: float = share) -> float:
            stopping = InReplay(throughput(Rates((share,), (rate,), costs)), kinds, scale)
            return tokens_per_second(traces, stopping, rule, divergence, threshold, costs, most, where)

        rates[share] = climb(reached, lowest)[-1]
    return Rates(tuple(rates), tuple(rates.values()), costs)


def tokens_per_second(
    traces: Traces,
    stopping: InReplay,
    rule: str,
    divergence: str,
    threshold: float,
    costs: CostModel,
    most: int,
    where: Any = None,
) -> float:
    """Returns the tokens per second of one stream under a stopping rule, by replay and the cost model."""
    return replay(traces, rule, divergence, threshold, most, stopping.policy, where).tokens_per_second(costs)
