"""What a comparison of threshold policies says, in numbers and as tables. Knows no decoding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from fsd_collectors.replay.cost import CostModel
from lib.policies.world import Counts

_ALLOWED = 0.005  # of retention, either way


def told(count: Counts, target: Counts, costs: CostModel) -> dict[str, Any]:
    return {
        "arm": asdict(count.arm),
        "tokens_a_round": count.tokens_a_round,
        "tokens_per_second": count.timed(costs).rate,
        "retention": float(count.right.sum() / target.right.sum()),
    }


def printed(found: Mapping[str, Any]) -> str:
    head = (
        f"{found['problems']['fresh']} fresh problems; chosen on {found['problems']['tuning']}, "
        f"where {found['retention']:g} is kept\n\n"
        "| divergence | family | L | T | tokens/round | tokens/s | gain | retention | difference, points |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    return "\n".join([head, *(row for one in found["comparisons"] for row in _rows(one)), "", *_claims(found)])


def _rows(one: Mapping[str, Any]) -> Iterator[str]:
    yield _row(one, "constant", one["constant"], "", "")
    for family, told in one["families"].items():
        yield _row(one, family, told, _span(told["gain"], "gain"), _span(told["retention_difference"], "value"))


def _row(one: Mapping[str, Any], family: str, told: Mapping[str, Any], gain: str, apart: str) -> str:
    arm = told["arm"]
    return (
        f"| {one['divergence']} | {family} | {arm['draft_length']} | {arm['threshold']:g} | "
        f"{told['tokens_a_round']:.3f} | {told['tokens_per_second']:.0f} | {gain} | {told['retention']:.4f} | {apart} |"
    )


def _claims(found: Mapping[str, Any]) -> Iterator[str]:
    """A line each: was the policy that tuning chose faster, at the same retention, and what was there to win."""
    for one in found["comparisons"]:
        best, gap, clock = one["families"][one["best"]], one["oracle"], one["clock"]["gain"]
        apart = best["retention_difference"]
        faster = best["gain"]["low"] > 0
        yield (
            f"{one['divergence']}: {one['best']} is {'' if faster else 'not '}surely faster, "
            f"{_span(best['gain'], 'gain')}, by the clock {_span(clock, 'gain')}; "
            f"its retention is {_apart(apart)}, {_span(apart, 'value')}; "
            f"an oracle T per problem gains {gap['gain']:+.2%}, share had {gap['share_had']:.0%}"
        )


def _apart(difference: Mapping[str, float]) -> str:
    if difference["low"] < -_ALLOWED:
        return "NOT surely the same within 0.5 points"
    return f"surely {'the same within' if difference['high'] <= _ALLOWED else 'not lower by'} 0.5 points"


def _span(told: Mapping[str, float], value: str) -> str:
    return f"{100 * told[value]:+.2f} [{100 * told['low']:+.2f}, {100 * told['high']:+.2f}] %"
