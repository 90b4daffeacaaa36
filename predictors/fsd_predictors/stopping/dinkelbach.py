"""What time is worth at each T, found on traces: Dinkelbach's iteration for tokens over seconds.

Knows replay and its costs. Knows no formula of a rule.

Dinkelbach (1967), Management Science 13(7): to make N/D largest, make N − λD so, and set λ to the N/D that gave; λ
rises to the largest ratio, faster than linearly, from any λ below it. Here N counts tokens, D the seconds of a
`CostModel`, and the throughput rule makes N − λD as large as it can foresee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fsd_collectors.replay.blocks import Traces
from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.replaying import replay
from fsd_predictors.features.share_scale import ShareScale
from fsd_predictors.features.token_kinds import TokenKinds
from fsd_predictors.stopping.in_replay import InReplay
from fsd_predictors.stopping.rates import Rates
from fsd_predictors.stopping.rule import StoppingRule

_CLOSE = 1e-4  # relative: an iterate that rises no further is the last
_MOST = 30


def climb(reached: Callable[[float], float], start: float) -> list[float]:
    """λ after λ, rising, from one that is too low: the next is what was reached with the last, while that is higher."""
    iterates = [start]
    while len(iterates) < _MOST and (found := reached(iterates[-1])) > iterates[-1] * (1 + _CLOSE):
        iterates.append(found)
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
    """λ at each threshold, of the stopping rule that `throughput` makes of rates, on the completions `where` chooses.

    Args:
        rule, divergence: what is accepted, see `replay`. most: L, the longest draft.

    Raises:
        UsageError: as `replay`; no thresholds.
    """
    found: dict[float, float] = {}
    lowest = float(costs.tokens_per_second(tokens=1, rounds=1, drafted=1))  # where all is rejected
    for threshold in sorted(thresholds):
        share = scale.of(divergence, threshold)

        def reached(rate: float, threshold: float = threshold, share: float = share) -> float:
            asked = InReplay(throughput(Rates((share,), (rate,), costs)), kinds, scale)
            return tokens_per_second(traces, asked, rule, divergence, threshold, costs, most, where)

        found[share] = climb(reached, lowest)[-1]
    return Rates(tuple(found), tuple(found.values()), costs)


def tokens_per_second(
    traces: Traces,
    asked: InReplay,
    rule: str,
    divergence: str,
    threshold: float,
    costs: CostModel,
    most: int,
    where: Any = None,
) -> float:
    """Of one stream under a stopping rule."""
    return replay(traces, rule, divergence, threshold, most, asked.policy, where).tokens_per_second(costs)
