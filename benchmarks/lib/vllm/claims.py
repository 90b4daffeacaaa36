"""What the project claims of FSD inside vLLM, compared with what `vllm_fsd.py` measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lib.common.claims import Claim
from lib.vllm.retention import Retention
from lib.vllm.speeds import BEST, FSD

_COST = {1: 1.03, 32: 1.05}
_FASTER = {1: 1.25}
_LARGEST_DIFFERENCE = 2.576  # standard errors; a true agreement is further apart in 1 % of all runs


def vllm_claims(speeds: Mapping[int, Mapping[str, Any]], retention: Retention | None) -> list[Claim]:
    return [*_of_speeds(speeds), *([] if retention is None else _of_retention(retention))]


def _of_speeds(speeds: Mapping[int, Mapping[str, Any]]) -> Iterator[Claim]:
    for batch, wanted in _COST.items():
        yield Claim.at_most_times(f"CPU seconds of a step, plugin / without, batch {batch}", wanted,
                                  speeds[batch]["step_cost"])  # fmt: skip
        same = float(speeds[batch]["same_steps"])
        yield Claim.at_least(f"same steps and texts in both (1: yes), batch {batch}", 1, same)
    for batch, wanted in _FASTER.items():
        yield Claim.faster(f"{FSD} / {BEST}, vLLM, tokens per CPU second, batch {batch}", wanted,
                           speeds[batch]["speed_ups"][f"{FSD} / {BEST}"])  # fmt: skip


def _of_retention(found: Retention) -> Iterator[Claim]:
    name = f"retention on {found.outcomes.problems} fresh problems served through the plugin"
    if found.wanted is not None:
        reached = found.lower_bound >= found.wanted
        yield Claim(name, f">= {found.wanted:g}", found.retention, found.lower_bound, reached)
    yield Claim.at_most("its distance from the profile's, in standard errors", _LARGEST_DIFFERENCE,
                        found.difference_errors)  # fmt: skip
