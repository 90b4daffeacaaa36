"""Cases of a replay: a rule with a divergence and its thresholds, and which rows each threshold accepts.

Not every rule can be replayed; `REPLAYABLE` lists those whose decisions the columns of traces determine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsd_collectors.replay.blocks import Array, Block, Traces
from fsd_collectors.replay.share_quantiles import check_divergence, even_shares, quantiles
from fsd_common.errors import UsageError

Thresholds = Sequence[float] | Array | Mapping[str, Sequence[float] | Array] | int


@dataclass(frozen=True)
class Replayable:
    """How a rule accepts.

    Args:
        exact: column that accepts whatever the threshold; None where the rule has no such part.
        fuzzy: whether D <= T accepts too.
    """

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
    "ensemble": "it samples from a mixture, so rejections change the text too",
}


@dataclass(frozen=True)
class Case:
    """A rule with, if it is fuzzy, a divergence and rising thresholds (m,); else with None and a threshold of -inf."""

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
    """Returns a case for every rule and, if the rule is fuzzy, every divergence; the arguments are those of `sweep`.

    Raises:
        UsageError: as `sweep`.
    """
    if traces.manifest.way != "along-target":
        raise UsageError(
            f"these traces are {traces.manifest.way}; replay needs traces along the target: collect some with "
            "fsd-collect, without --rule"
        )
    for rule in rules:
        check_rule(rule)
    scales: dict[str, Array] = {}
    if any(REPLAYABLE[rule].fuzzy for rule in rules):
        scales = {name: _scale(traces, name, thresholds, where) for name in divergences}
    combined = [
        Case(rule, name, scale)
        for rule in rules
        for name, scale in (scales.items() if REPLAYABLE[rule].fuzzy else [(None, np.array([-np.inf]))])
    ]
    if not combined:
        raise UsageError(f"rules={rules!r} and divergences={divergences!r} make no case; give at least one of each")
    return combined


def check_rule(name: str) -> None:
    """Raises UsageError where the rule cannot be replayed."""
    if name not in REPLAYABLE:
        why = f"cannot be replayed: {_REFUSED[name]}" if name in _REFUSED else "is unknown"
        raise UsageError(f"rule {name!r} {why}; replay one of {', '.join(REPLAYABLE)}")


def check_lengths(lengths: Sequence[int]) -> Array:
    """Returns the draft lengths as int64. Raises UsageError where one is not a whole number of 1 or more."""
    values = list(lengths)
    if not values or not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 1 for n in values):
        raise UsageError(f"draft lengths are {values!r:.80}; each must be a whole number, 1 or more")
    return np.asarray(values, np.int64)


def _scale(traces: Traces, divergence: str, thresholds: Thresholds, where: Any) -> Array:
    """Returns the distinct thresholds of a divergence, rising."""
    check_divergence(traces, divergence)
    if isinstance(thresholds, (int, np.integer)):
        if thresholds < 1:
            raise UsageError(
                f"thresholds={thresholds}; it must be a number of quantiles, 1 or more, or the thresholds themselves"
            )
        return np.unique(quantiles(traces, divergence, even_shares(int(thresholds)), where))
    if isinstance(thresholds, Mapping) and divergence not in thresholds:
        raise UsageError(f"thresholds name {', '.join(thresholds)}, not {divergence!r}; give those of every divergence")
    values = thresholds[divergence] if isinstance(thresholds, Mapping) else thresholds
    try:
        scale = np.unique(np.asarray(values, np.float64))
    except (TypeError, ValueError):
        scale = np.empty(0)
    if not len(scale) or np.isnan(scale).any():
        raise UsageError(f"thresholds of {divergence!r} are {values!r:.80}; they must be numbers, at least one")
    return scale


@dataclass(frozen=True)
class AcceptanceLevels:
    """The smallest threshold that accepts each row's drafted token x, for all m thresholds of a case at once.

    Args:
        level: (n,) 0 where the rule's exact part accepts x; k where the k-th threshold, from 1, is the first that does;
            m + 1 where none does.
        differs: (n,) bool, whether accepting x by D would substitute it for another token of the target's.
    """

    level: Array
    differs: Array

    def rejected(self, k: int) -> Array:
        """Returns a mask (n,) of the rows rejected at the k-th threshold, here from 0."""
        return np.asarray(self.level > k + 1)


def acceptance_levels(case: Case, block: Block) -> AcceptanceLevels:
    """Returns the levels of the block's rows."""
    never = len(case.thresholds) + 1
    if case.divergence is None:
        level = np.full(block.rows, never)
    else:
        d = block.columns[case.divergence]
        level = np.searchsorted(case.thresholds, d) + 1
        level[~np.isfinite(d)] = never  # as in decoding: no T accepts them
    level = level.astype(np.min_scalar_type(never))
    if case.exact is not None:
        level[block.columns[case.exact]] = 0
    return AcceptanceLevels(level, ~block.columns["same_token"] & (level > 0))
