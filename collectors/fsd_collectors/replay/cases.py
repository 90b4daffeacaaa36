"""What a replay is asked for, checked: rules with their divergences and thresholds, and draft lengths.

Knows which rules a trace along the target can answer for. Knows nothing of rows or rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsd_collectors.replay.blocks import Array, Block, Traces
from fsd_collectors.replay.share_quantiles import check_divergence, even_shares, quantiles
from fsd_decoding.errors import UsageError

# MERGED: """Which thresholds accept a token: one small integer a row that answers for all of them.
#
# Knows a case and a block's columns. Knows nothing of rounds.
# """


Thresholds = Sequence[float] | Array | Mapping[str, Sequence[float] | Array] | int


@dataclass(frozen=True)
class Replayable:
    """exact: the column that accepts at every threshold, None where there is none. fuzzy: D <= T accepts too."""

    exact: str | None
    fuzzy: bool


REPLAYABLE: Mapping[str, Replayable] = {
    "sd": Replayable("sd_accepts", fuzzy=False),
    "coupled": Replayable("same_token", fuzzy=False),
    "fsd": Replayable(None, fuzzy=True),
    "fsd-sd": Replayable("sd_accepts", fuzzy=True),
    "fsd-coupled": Replayable("same_token", fuzzy=True),
}
_REFUSED = {
    "target": "it drafts nothing, so every round is one token",
    "typical": "no column holds the score it decides by",
    "ensemble": "it emits from a mixture, where rejections change the text too",
}


@dataclass(frozen=True)
class Case:
    """One rule; for a fuzzy one a divergence and thresholds, rising: (m,). Else None and a threshold of -inf."""

    rule: str
    divergence: str | None
    thresholds: Array

    @property
    def exact(self) -> str | None:
        return REPLAYABLE[self.rule].exact

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name in ("same_token", self.exact, self.divergence) if name is not None)


def cases(
    traces: Traces, rules: Sequence[str], divergences: Sequence[str], thresholds: Thresholds, where: Any
) -> list[Case]:
    """Every rule with every divergence it has use for; see `replay.sweep`."""
    if traces.manifest.way != "along-target":
        raise UsageError(f"these traces are {traces.manifest.way}; replay needs the target's own text: along-target")
    for rule in rules:
        check_rule(rule)
    scales: dict[str, Array] = {}
    if any(REPLAYABLE[rule].fuzzy for rule in rules):
        scales = {name: _scale(traces, name, thresholds, where) for name in divergences}
    asked = [
        Case(rule, name, scale)
        for rule in rules
        for name, scale in (scales.items() if REPLAYABLE[rule].fuzzy else [(None, np.array([-np.inf]))])
    ]
    if not asked:
        raise UsageError(f"rules={rules!r} with divergences={divergences!r} are no combination; give one of each")
    return asked


def check_rule(name: str) -> None:
    """UsageError where traces cannot answer for the rule."""
    if name not in REPLAYABLE:
        why = f"cannot be replayed: {_REFUSED[name]}" if name in _REFUSED else "is unknown"
        raise UsageError(f"rule {name!r} {why}; replay one of {', '.join(REPLAYABLE)}")


def check_lengths(lengths: Sequence[int]) -> Array:
    """As (lengths,) int64. UsageError where one is no whole number from 1 on."""
    given = list(lengths)
    if not given or not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 1 for n in given):
        raise UsageError(f"draft lengths are {given!r:.80}; each must be a whole number, 1 or more")
    return np.asarray(given, np.int64)


def _scale(traces: Traces, divergence: str, thresholds: Thresholds, where: Any) -> Array:
    """The divergence's thresholds, rising, each once."""
    check_divergence(traces, divergence)
    if isinstance(thresholds, (int, np.integer)):
        if thresholds < 1:
            raise UsageError(f"thresholds={thresholds}; it must be 1 or more quantiles, or the thresholds themselves")
        return np.unique(quantiles(traces, divergence, even_shares(int(thresholds)), where))
    if isinstance(thresholds, Mapping) and divergence not in thresholds:
        raise UsageError(f"thresholds name {', '.join(thresholds)}, not {divergence!r}; give those of every divergence")
    given = thresholds[divergence] if isinstance(thresholds, Mapping) else thresholds
    try:
        scale = np.unique(np.asarray(given, np.float64))
    except (TypeError, ValueError):
        scale = np.empty(0)
    if not len(scale) or np.isnan(scale).any():
        raise UsageError(f"thresholds of {divergence!r} are {given!r:.80}; they must be numbers, one at least")
    return scale


@dataclass(frozen=True)
class Grades:
    """grade: (n,) 0 where the rule's exact part accepts x, k where the k-th threshold is the first that does, else
    m + 1. differs: (n,) bool, accepting x by D would put it in the place of another token of the target's."""

    grade: Array
    differs: Array

    def rejected(self, k: int) -> Array:
        """(n,) bool at the k-th threshold, from 0."""
        return np.asarray(self.grade > k + 1)


def grades_of(case: Case, block: Block) -> Grades:
    """Of every row of the block."""
    never = len(case.thresholds) + 1
    if case.divergence is None:
        grade = np.full(block.rows, never)
    else:
        d = block.columns[case.divergence]
        grade = np.searchsorted(case.thresholds, d) + 1
        grade[~np.isfinite(d)] = never  # as in decoding: no T accepts them
    grade = grade.astype(np.min_scalar_type(never))
    if case.exact is not None:
        grade[block.columns[case.exact]] = 0
    return Grades(grade, ~block.columns["same_token"] & (grade > 0))
