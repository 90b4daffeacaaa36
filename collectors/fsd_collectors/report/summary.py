"""Summary statistics of a run of traces, from one pass over its rows.

Only rows that influenced the text count: those that are `decided` and `in_text`, which along the target are all. Memory
is bounded by the columns of one shard, 1 MB a divergence and 8 bytes a problem.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fsd_collectors.manifest import Manifest
from fsd_collectors.report.histogram import BINS, Counts, Histogram

SHARES = ("same_argmax", "same_token", "sd_accepts", "sd_probability", "accepted")
ENTROPIES = ("target_entropy", "draft_entropy")
_COMPLETION = ["problem", "split", "emitted", "correct"]
_INFLUENCED = ["decided", "in_text"]


class TraceSource(Protocol):
    """What a summary needs of traces, such as `fsd_collectors.store.reading.Traces`."""

    @property
    def manifest(self) -> Manifest: ...

    def batches(self, columns: Sequence[str], where: Any = None, table: str = "tokens") -> Iterator[pa.Table]: ...


@dataclass
class Mean:
    """The mean of a column's values that are not null."""

    total: float = 0.0
    values: int = 0
    nulls: int = 0

    @property
    def value(self) -> float | None:
        return self.total / self.values if self.values else None

    def add(self, column: pa.ChunkedArray) -> None:
        self.total += pc.sum(column, min_count=0).as_py() or 0.0
        self.nulls += column.null_count
        self.values += len(column) - column.null_count


@dataclass
class PartSummary:
    """Counts of one split: `tokens` are emitted tokens, an EOS included; `rows` are rows of the table of tokens.

    Of the `graded` completions is known whether they are `right`: of served ones it is not.
    """

    completions: int = 0
    graded: int = 0
    right: int = 0
    tokens: int = 0
    rows: int = 0
    problems: int = 0


@dataclass(frozen=True)
class DivergenceSummary:
    """The distribution of a divergence.

    `counts` (2, 2, BINS.count) are by `same_argmax`, `same_token` and bin of D; where nobody knows whether x = y, as of
    sampled tokens that were served, they are counted as x ≠ y.
    """

    counts: Counts

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    @property
    def exact(self) -> int:
        """Number of rows that are accepted losslessly: x = y."""
        return int(self.counts[:, 1].sum())

    def histogram(self, same_argmax: bool | None = None, same_token: bool | None = None) -> Histogram:
        """Returns the histogram of the rows with these values of `same_argmax` and `same_token`; None selects both."""
        argmax, token = (slice(None) if value is None else [int(value)] for value in (same_argmax, same_token))
        return Histogram(self.counts[argmax][:, token].sum(axis=(0, 1)))

    def accepted(self, or_same_token: bool) -> Counts:
        """Returns the exact number of rows accepted at finite T = BINS.edges, by D <= T or also by x = y."""
        if or_same_token:
            return self.histogram(same_token=False).at_most + self.exact
        return self.histogram().at_most

    def threshold(self, share: float, or_same_token: bool) -> float | None:
        """Returns the smallest edge of a bin that accepts `share` of the rows.

        It is at most 1/128 above the smallest such T. It is negative where x = y alone accepts this share, and None
        where no finite T does or there are no rows.
        """
        if not self.rows:
            return None
        target = share * self.rows
        if or_same_token and self.exact >= target:
            return -1.0
        enough = np.flatnonzero(self.accepted(or_same_token) >= target)
        first = float(BINS.edges[enough[0]]) if len(enough) else np.inf
        return first if np.isfinite(first) else None


@dataclass(frozen=True)
class Summary:
    """The summary of a run.

    Args:
        rows: number of token rows.
        counted: number of those that `means` and `divergences` are of.
        parts: counts by split.
        means: means by column.
        divergences: distributions by divergence.
    """

    rows: int
    counted: int
    parts: dict[str, PartSummary]
    means: dict[str, Mean]
    divergences: dict[str, DivergenceSummary]

    @property
    def whole(self) -> PartSummary:
        """The sum of all parts."""
        return PartSummary(
            *(sum(counts) for counts in zip(*(astuple(part) for part in self.parts.values()), strict=True))
        )


@dataclass
class _Tally:
    """Running totals of the pass over tokens."""

    means: dict[str, Mean]
    counts: dict[str, Counts]
    rows: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by split
    counted: int = 0

    def add(self, tokens: pa.Table) -> None:
        for split in pc.value_counts(tokens["split"]):
            self.rows[split["values"].as_py()] += split["counts"].as_py()
        if set(_INFLUENCED) <= set(tokens.column_names):
            tokens = tokens.filter(pc.and_(*(tokens[name] for name in _INFLUENCED)))
        self.counted += len(tokens)
        for name, mean in self.means.items():
            mean.add(tokens[name])
        self._count(tokens)

    def _count(self, tokens: pa.Table) -> None:
        named = ("same_argmax", "same_token")
        argmax, token = (pc.fill_null(tokens[name], False).to_numpy().astype(np.uint32) for name in named)
        place = (2 * argmax + token) * np.uint32(BINS.count)  # (N,)
        for name, counts in self.counts.items():
            values = tokens[name].to_numpy().astype(np.float32, copy=False)  # null becomes NaN
            np.add.at(counts.reshape(-1), place + BINS.of(values), 1)


def summarise(traces: TraceSource) -> Summary:
    """Summarises traces in one pass over the tokens and one over the completions."""
    manifest = traces.manifest
    on_policy = manifest.way != "along-target"
    means = [name for name in SHARES + ENTROPIES if on_policy or name != "accepted"]
    tally = _Tally(
        {name: Mean() for name in means},
        {name: np.zeros((2, 2, BINS.count), np.int64) for name in manifest.divergences},
    )
    for tokens in traces.batches(["split", *(_INFLUENCED if on_policy else ()), *means, *manifest.divergences]):
        tally.add(tokens)
    return Summary(
        sum(tally.rows.values()),
        tally.counted,
        _parts(traces, tally.rows),
        tally.means,
        {name: DivergenceSummary(counts) for name, counts in tally.counts.items()},
    )


def _parts(traces: TraceSource, rows: dict[str, int]) -> dict[str, PartSummary]:
    """Returns the counts by split, the tuning part first."""
    parts: dict[str, PartSummary] = defaultdict(PartSummary)
    problems: dict[str, list[np.ndarray]] = defaultdict(list)
    for completions in traces.batches(_COMPLETION, table="completions"):
        for split in pc.unique(completions["split"]).to_pylist():
            selected = completions.filter(pc.equal(completions["split"], split))
            parts[split].completions += len(selected)
            parts[split].graded += len(selected) - selected["correct"].null_count
            parts[split].right += pc.sum(selected["correct"], min_count=0).as_py()
            parts[split].tokens += pc.sum(selected["emitted"]).as_py()
            problems[split].append(selected["problem"].to_numpy())
    for split, part in parts.items():
        part.problems = len(np.unique(np.concatenate(problems[split])))
        part.rows = rows.get(split, 0)
    return dict(sorted(parts.items(), reverse=True))
