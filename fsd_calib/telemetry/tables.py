"""The summary of a run as one table, with remarks on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fsd_collectors.report.description import number, percent, unit_of
from fsd_common.pages.blocks import Sheet
from fsd_decoding.observers.round_log import FACT_PREFIX, DecodingSetup

if TYPE_CHECKING:
    import pandas as pd


def summary_table(table: pd.DataFrame, setups: Sequence[DecodingSetup]) -> Sheet:
    """Returns the totals and means of a whole run, from the table of its rounds."""
    total = table.sum()
    seconds, streams = table.seconds.iloc[-1], (table.rows * table.round_seconds).sum()
    each = unit(setups)
    facts = {
        "decoded with": "; ".join(_describe(setup) for setup in setups),
        "rounds": f"{len(table):,} in {seconds:,.1f} s, of {number(table.rows.mean())} texts each",
        "tokens": f"{total.emitted:,.0f} emitted, {number(total.emitted / total.rows)} per row and round",
        "speed": f"{number(total.emitted / seconds)} tokens/s; one text {number(total.emitted / streams)} tokens/s",
        "drafted tokens accepted": f"{percent(total.accepted, total.drafted)} of {total.drafted:,.0f}",
        "accepted only because D ≤ T": f"{percent(total.substituted, total.emitted)} of emitted tokens",
        f"T{each}": _mean_and_range(table, "threshold", "threshold_least", "threshold_most"),
        f"D of decided tokens{each}": number(_mean(table, "divergence")),
        f"largest D accepted only because D ≤ T{each}": number(table.divergence_substituted.max()),
        **{name: f"{number(table[column].mean())}; last {number(table[column].iloc[-1])}"
           for column, name in facts_of(table).items()},
    }  # fmt: skip
    return Sheet("", (), tuple(facts.items()))


def remarks(setups: Sequence[DecodingSetup]) -> list[str]:
    """Returns remarks on what the figures lack, and why."""
    without = [setup.rule for setup in setups if not setup.fuzzy]
    lines = [f"The rule {rule} has no T, so no token was accepted only because D ≤ T." for rule in without]
    return list(dict.fromkeys(lines))


def facts_of(table: pd.DataFrame) -> dict[str, str]:
    """Returns the columns that hold the policy's facts, with the names of the facts."""
    return {
        str(column): str(column).removeprefix(FACT_PREFIX) for column in table if str(column).startswith(FACT_PREFIX)
    }


def divergences_line(setups: Sequence[DecodingSetup]) -> str:
    """Returns the divergences of a run in words."""
    return " and ".join(dict.fromkeys(f"{setup.divergence} of {setup.on} logits" for setup in setups))


def unit(setups: Sequence[DecodingSetup]) -> str:
    """Returns the unit of T and D, " (nats)", or "" if they have none, or not all the same."""
    units = {unit_of(setup.divergence) for setup in setups}
    return f" ({name})" if len(units) == 1 and (name := units.pop()) else ""


def _describe(setup: DecodingSetup) -> str:
    by = f", T set by {setup.policy}" if setup.policy else ""
    return f"{setup.rule}, {setup.divergence} of {setup.on} logits{by}"


def _mean(table: pd.DataFrame, name: str) -> float:
    """Returns the mean over decided tokens."""
    rounds = table[table.decided > 0]
    if rounds.empty:
        return float("nan")
    return float((rounds[name] * rounds.decided).sum(skipna=False) / rounds.decided.sum())


def _mean_and_range(table: pd.DataFrame, name: str, least: str, most: str) -> str:
    return f"{number(_mean(table, name))}, from {number(table[least].min())} to {number(table[most].max())}"
