"""Cases of a replay: a rule with a score and its thresholds, and which rows each threshold accepts.

Not every rule can be replayed; `REPLAYABLE` lists those whose decisions the columns of traces determine. Thresholds may
be given by the share of drafted tokens that they accept: quantiles of D over traces, in one pass and 8 MB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsd_collectors.replay.blocks import Array, Block, Traces, blocks
from fsd_common.errors import UsageError
from fsd_decoding.rules import rule_named
from fsd_decoding.scores import score_named

Values = NDArray[np.float32]

_MANTISSA = 23  # bits
_EXPONENTS = 1 << 8


@dataclass(frozen=True)
class FloatBins:
    """2^kept bins per octave from 1e-38 to 3e38, then one for infinity and the rest for NaN.

    The relative width of a bin is at most 2^-kept; below 1e-38, where float32 itself is coarse, its absolute width is
    at most 2^-kept · 1e-38.

    Args:
        kept: number of leading bits of the mantissa that tell bins apart, 0 to 22.
    """

    kept: int

    @property
    def count(self) -> int:
        return _EXPONENTS << self.kept

    @property
    def infinite(self) -> int:
        """Index of the bin of infinity."""
        return (_EXPONENTS - 1) << self.kept

    def of(self, values: Values) -> NDArray[np.uint32]:
        """Returns the bin indices (N,) of values (N,); -0.0 counts as 0."""
        return (values.view(np.uint32) & np.uint32(0x7FFFFFFF)) >> np.uint32(self._dropped)

    @cached_property
    def edges(self) -> Values:
        """(count,) largest value of each bin: D <= edges[i] holds exactly for the values in bins 0 to i."""
        return self._with((1 << self._dropped) - 1)

    @cached_property
    def middles(self) -> Values:
        """(count,) middle of each bin, within a relative 2^-(kept + 1) of all its values; that of the first is 0."""
        middles = self._with(1 << (self._dropped - 1))
        middles[0] = 0.0
        return middles

    @property
    def _dropped(self) -> int:
        return _MANTISSA - self.kept

    def _with(self, lower_bits: int) -> Values:
        bits = np.arange(self.count, dtype=np.uint32) << np.uint32(self._dropped)
        values = (bits | np.uint32(lower_bits)).view(np.float32)
        values[self.infinite], values[self.infinite + 1 :] = np.inf, np.nan
        return values


_LOWEST, _HIGHEST = 0.1, 0.999  # of `even_shares`
_BINS = FloatBins(kept=11)  # relative width below 0.05 %


def quantiles(traces: Traces, score: str, shares: Sequence[float] | Array, where: Any = None) -> Array:
    """Returns, for each share, a threshold that accepts this share of all rows by D alone.

    The threshold is the largest number of the quantile's bin. So it accepts no less than its share and is less than
    0.05 % above the smallest threshold that does.

    Args:
        traces: traces that hold the score.
        score: name of the score.
        shares: each in (0, 1].
        where: selects rows, see `Traces.batches`.

    Returns:
        (len(shares),) float64; inf where the share exceeds that of the rows with a finite D.

    Raises:
        UsageError: a share is out of range, the traces lack the score, or no rows are selected.
    """
    targets = np.asarray(shares, np.float64)
    if not ((targets > 0) & (targets <= 1)).all():
        raise UsageError(f"shares are {list(shares)!r:.80}; each must be above 0 and at most 1")
    check_score(traces, score)
    counts = np.zeros(_BINS.count, np.int64)
    for block in blocks(traces, [score], where):
        counts += np.bincount(_BINS.of(block.columns[score].astype(np.float32)), minlength=_BINS.count)
    bins = np.searchsorted(counts.cumsum(), targets * counts.sum())
    return np.asarray(_BINS.edges[np.minimum(bins, _BINS.infinite)], np.float64)


def even_shares(count: int) -> Array:
    """Returns `count` shares from .1 to .999, evenly spaced in logit: retention changes where most is accepted."""
    low, high = (np.log(u / (1 - u)) for u in (_LOWEST, _HIGHEST))
    odds = np.linspace(low, high, count)
    return np.asarray(1 / (1 + np.exp(-odds)))


def check_score(traces: Traces, name: str) -> None:
    """Raises UsageError where the traces do not hold the score."""
    available = traces.manifest.scores
    if name not in available:
        raise UsageError(f"these traces hold no score {name!r}, only {', '.join(available)}; collect again with it")


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
    "sd-block": "it judges a draft as a whole, of which no column tells",
}


def replayable(name: str) -> Replayable:
    """Returns how traces tell what a rule accepts, or one that is replayed in its place. UsageError: they do not."""
    known = name in REPLAYABLE or name in _REFUSED
    found = REPLAYABLE.get(name if known else rule_named(name, lambda rule: rule.name in REPLAYABLE).replayed_as or "")
    if found is None:
        why = _REFUSED.get(name, "its replayed_as names no rule that can be")
        raise UsageError(f"rule {name!r} cannot be replayed: {why}; replay one of {', '.join(REPLAYABLE)}")
    return found


@dataclass(frozen=True)
class Case:
    """A rule with, if it is fuzzy, a score and rising thresholds (m,); else with None and a threshold of -inf."""

    rule: str
    score: str | None
    thresholds: Array

    @property
    def exact(self) -> str | None:
        return replayable(self.rule).exact

    @property
    def window(self) -> int:
        """How many drafted tokens after a mismatch the exact rule must keep, or no T keeps it."""
        return 0 if self.score is None else score_named(self.score).window

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name in ("same_token", self.exact, self.score) if name is not None)


def cases(
    traces: Traces, rules: Sequence[str], scores: Sequence[str], thresholds: Thresholds, where: Any
) -> list[Case]:
    """Returns a case for every rule and, if the rule is fuzzy, every score; the arguments are those of `sweep`.

    Raises:
        UsageError: as `sweep`.
    """
    check_along_target(traces, "replay")
    scale = cache(partial(_scale, traces, thresholds=thresholds, where=where))
    combined = [
        Case(rule, name, np.array([-np.inf]) if name is None else scale(name))
        for rule in rules
        for name in (_scores_of(rule, scores) if replayable(rule).fuzzy else [None])
    ]
    if not combined:
        raise UsageError(f"rules={rules!r} and scores={scores!r} make no case; give at least one of each")
    return combined


def _scores_of(rule: str, scores: Sequence[str]) -> Sequence[str]:
    """Returns the rule's own score where it has one, else those that are given."""
    own = rule_named(rule).score
    return scores if own is None else [own]


def check_along_target(traces: Traces, use: str) -> None:
    """Raises UsageError where the traces are of another way than a use needs."""
    if traces.manifest.way != "along-target":
        raise UsageError(
            f"these traces are {traces.manifest.way}; {use} needs traces along the target: collect some without a rule"
        )


def check_lengths(lengths: Sequence[int]) -> Array:
    """Returns the draft lengths as int64. Raises UsageError where one is not a whole number of 1 or more."""
    values = list(lengths)
    if not values or not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 1 for n in values):
        raise UsageError(f"draft lengths are {values!r:.80}; each must be a whole number, 1 or more")
    return np.asarray(values, np.int64)


def _scale(traces: Traces, score: str, thresholds: Thresholds, where: Any) -> Array:
    """Returns the distinct thresholds of a score, rising."""
    check_score(traces, score)
    if isinstance(thresholds, (int, np.integer)):
        if thresholds < 1:
            raise UsageError(
                f"thresholds={thresholds}; it must be a number of quantiles, 1 or more, or the thresholds themselves"
            )
        return np.unique(quantiles(traces, score, even_shares(int(thresholds)), where))
    if isinstance(thresholds, Mapping) and score not in thresholds:
        raise UsageError(f"thresholds name {', '.join(thresholds)}, not {score!r}; give those of every score")
    values = thresholds[score] if isinstance(thresholds, Mapping) else thresholds
    try:
        scale = np.unique(np.asarray(values, np.float64))
    except (TypeError, ValueError):
        scale = np.empty(0)
    if not len(scale) or np.isnan(scale).any():
        raise UsageError(f"thresholds of {score!r} are {values!r:.80}; they must be numbers, at least one")
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


def scores_of_rows(case: Case, block: Block) -> Array:
    """Returns what T is compared with at each row: (n,), infinite where no T accepts. The case has a threshold.

    Of a score with a window the tokens of the target's text stand in for those that would be drafted after a mismatch;
    that a draft must go on for long enough is up to whoever knows its length.
    """
    assert case.score is not None
    scores, window = block.columns[case.score], case.window
    if window:
        exact = block.columns[case.exact or "same_token"]
        kept = np.concatenate([[0], np.cumsum(exact)])
        rows = np.arange(block.rows)
        last = np.minimum(rows + window, block.rows - 1)
        ends = np.repeat(block.ends, block.ends - block.starts)
        followed = (rows + window < ends) & (kept[last + 1] - kept[rows + 1] == window)
        scores = np.where(followed, scores, np.inf)
    return scores


def acceptance_levels(case: Case, block: Block) -> AcceptanceLevels:
    """Returns the levels of the block's rows."""
    never = len(case.thresholds) + 1
    if case.score is None:
        level = np.full(block.rows, never)
    else:
        d = scores_of_rows(case, block)
        level = np.searchsorted(case.thresholds, d) + 1
        level[~np.isfinite(d)] = never  # as in decoding: no T accepts them
    level = level.astype(np.min_scalar_type(never))
    if case.exact is not None:
        level[block.columns[case.exact]] = 0
    return AcceptanceLevels(level, ~block.columns["same_token"] & (level > 0))
