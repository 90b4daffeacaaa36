"""Results of a comparison of threshold policies, as numbers and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from fsd_collectors.replay.cost import CostModel
from lib.policies.world import Counts

_ALLOWED = 0.005  # difference in retention that counts as the same


def summarise(count: Counts, target: Counts, costs: CostModel) -> dict[str, Any]:
    return {
        "arm": asdict(count.arm),
        "tokens_a_round": count.tokens_a_round,
        "tokens_per_second": count.timed(costs).rate,
        "retention": float(count.right.sum() / target.right.sum()),
    }


def as_markdown(results: Mapping[str, Any]) -> str:
    """Returns a table, and one line per comparison with what follows from it."""
    head = (
        f"{results['problems']['fresh']} fresh problems; chosen on {results['problems']['tuning']} "
        f"at retention {results['retention']:g}\n\n"
        "| divergence | family | L | T | tokens/round | tokens/s | gain | retention | difference, points |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    rows = (row for comparison in results["comparisons"] for row in _rows(comparison))
    return "\n".join([head, *rows, "", *_conclusions(results)])


def _rows(comparison: Mapping[str, Any]) -> Iterator[str]:
    yield _row(comparison, "constant", comparison["constant"], "", "")
    for family, best in comparison["families"].items():
        gain, difference = _interval(best["gain"], "gain"), _interval(best["retention_difference"], "value")
        yield _row(comparison, family, best, gain, difference)


def _row(comparison: Mapping[str, Any], family: str, best: Mapping[str, Any], gain: str, difference: str) -> str:
    arm, speed, retention = best["arm"], best["tokens_per_second"], best["retention"]
    return (
        f"| {comparison['divergence']} | {family} | {arm['draft_length']} | {arm['threshold']:g} | "
        f"{best['tokens_a_round']:.3f} | {speed:.0f} | {gain} | {retention:.4f} | {difference} |"
    )


def _conclusions(results: Mapping[str, Any]) -> Iterator[str]:
    """Yields for each comparison whether the policy chosen by tuning was faster, at which retention, and the oracle."""
    for one in results["comparisons"]:
        best, oracle, clock = one["families"][one["best"]], one["oracle"], one["clock"]["gain"]
        difference = best["retention_difference"]
        faster = best["gain"]["low"] > 0
        yield (
            f"{one['divergence']}: {one['best']} is {'' if faster else 'not '}significantly faster, "
            f"{_interval(best['gain'], 'gain')}, by the clock {_interval(clock, 'gain')}; "
            f"its retention is {_compared(difference)}, {_interval(difference, 'value')}; "
            f"an oracle T per problem gains {oracle['gain']:+.2%}, of which the policy has {oracle['share_had']:.0%}"
        )


def _compared(difference: Mapping[str, float]) -> str:
    if difference["low"] < -_ALLOWED:
        return "NOT shown to be the same within 0.5 points"
    return f"shown to be {'the same within' if difference['high'] <= _ALLOWED else 'not lower by'} 0.5 points"


def _interval(value: Mapping[str, float], name: str) -> str:
    return f"{100 * value[name]:+.2f} [{100 * value['low']:+.2f}, {100 * value['high']:+.2f}] %"
