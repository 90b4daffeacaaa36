"""A run in words and numbers: one table, and what to know of it.

Knows the table of rounds that `telemetry.py` makes, and how its rounds were decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fsd_collectors.report.tables import Sheet, number, percent, unit_of
from fsd_decoding.observers.round_log import FACT, Way

if TYPE_CHECKING:
    import pandas as pd


def sheet(table: pd.DataFrame, ways: Sequence[Way]) -> Sheet:
    """Of the whole run."""
    total = table.sum()
    seconds, streams = table.seconds.iloc[-1], (table.rows * table.round_seconds).sum()
    each = unit(ways)
    facts = {
        "decoded by": "; ".join(_said(way) for way in ways),
        "rounds": f"{len(table):,} in {seconds:,.1f} s, of {number(table.rows.mean())} texts each",
        "tokens": f"{total.emitted:,.0f} emitted, {number(total.emitted / total.rows)} a row and round",
        "speed": f"{number(total.emitted / seconds)} tokens/s, of one text {number(total.emitted / streams)} tokens/s",
        "drafted tokens accepted": f"{percent(total.accepted, total.drafted)} of {total.drafted:,.0f}",
        "accepted for D ≤ T alone": f"{percent(total.substituted, total.emitted)} of emitted tokens",
        f"T{each}": _mean_and_range(table, "threshold", "threshold_least", "threshold_most"),
        f"D of decided tokens{each}": number(_mean(table, "divergence")),
        f"largest D accepted for D ≤ T alone{each}": number(table.divergence_substituted.max()),
        **{name: f"{number(table[column].mean())}, at last {number(table[column].iloc[-1])}"
           for column, name in facts_of(table).items()},
    }  # fmt: skip
    return Sheet("The whole run", (), tuple(facts.items()))


def remarks(ways: Sequence[Way]) -> list[str]:
    """What the picture lacks, and why."""
    without = [way.rule for way in ways if not way.fuzzy]
    said = [f"Under the rule {rule} there is no T, and so no token that it alone accepted." for rule in without]
    return list(dict.fromkeys(said))


def facts_of(table: pd.DataFrame) -> dict[str, str]:
    """The columns that the policy named, and what it named them."""
    return {str(column): str(column).removeprefix(FACT) for column in table if str(column).startswith(FACT)}


def divergences_line(ways: Sequence[Way]) -> str:
    return " and ".join(dict.fromkeys(f"{way.divergence} of {way.on} logits" for way in ways))


def unit(ways: Sequence[Way]) -> str:
    """Of T and D: " (nats)", or "" where they have none, or not all the same."""
    units = {unit_of(way.divergence) for way in ways}
    return f" ({found})" if len(units) == 1 and (found := units.pop()) else ""


def _said(way: Way) -> str:
    by = f", T from {way.policy}" if way.policy else ""
    return f"{way.rule}, {way.divergence} of {way.on} logits{by}"


def _mean(table: pd.DataFrame, name: str) -> float:
    """Of the decided tokens."""
    there = table[table.decided > 0]
    return float((there[name] * there.decided).sum(skipna=False) / there.decided.sum()) if len(there) else float("nan")


def _mean_and_range(table: pd.DataFrame, name: str, least: str, most: str) -> str:
    return f"{number(_mean(table, name))}, from {number(table[least].min())} to {number(table[most].max())}"
