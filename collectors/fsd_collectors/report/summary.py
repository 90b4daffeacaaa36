"""What a run of traces says as a whole, from one pass over its rows.

Knows which rows count and what is counted of them, a shard at a time: memory is a shard's columns, 1 MB a divergence
and 8 bytes a problem. Knows neither how the figures are shown nor where traces lie.

Rows that count are those whose verdict shaped the text: `decided` and `in_text`, along the target all of them.
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
_SHAPED = ["decided", "in_text"]


class TraceSource(Protocol):
    """What is needed of traces; `fsd_collectors.store.reading.Traces` is one."""

    @property
    def manifest(self) -> Manifest: ...

    def batches(self, columns: Sequence[str], where: Any = None, table: str = "tokens") -> Iterator[pa.Table]: ...


@dataclass
class Mean:
    """Of a column's values that are not null."""

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
    """One split. `tokens` are those that rounds brought, an EOS included; `rows` those of the table of tokens."""

    completions: int = 0
    right: int = 0
    tokens: int = 0
    rows: int = 0
    problems: int = 0


@dataclass(frozen=True)
class DivergenceSummary:
    """`counts` (2, 2, BINS.count): rows by `same_argmax`, by `same_token`, by bin of D."""

    counts: Counts

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    @property
    def exact(self) -> int:
        """Rows that are accepted without fuzziness: x = y."""
        return int(self.counts[:, 1].sum())

    def histogram(self, same_argmax: bool | None = None, same_token: bool | None = None) -> Histogram:
        """Of the rows where the argmaxes agree or differ, where x = y or not; None: whether or not."""
        argmax, token = (slice(None) if chosen is None else [int(chosen)] for chosen in (same_argmax, same_token))
        return Histogram(self.counts[argmax][:, token].sum(axis=(0, 1)))

    def accepted(self, or_same_token: bool) -> Counts:
        """(BINS.count,) rows accepted at T = BINS.edges, exactly, where T is finite: D <= T, or also x = y."""
        if or_same_token:
            return self.histogram(same_token=False).at_most + self.exact
        return self.histogram().at_most

    def threshold(self, share: float, or_same_token: bool) -> float | None:
        """The least edge of a bin that accepts `share` of the rows: at most 1/128 above the least T that does.

        Negative where x = y alone accepts so many; None where no finite T does, and where there are no rows.
        """
        if not self.rows:
            return None
        wanted = share * self.rows
        if or_same_token and self.exact >= wanted:
            return -1.0
        enough = np.flatnonzero(self.accepted(or_same_token) >= wanted)
        first = float(BINS.edges[enough[0]]) if len(enough) else np.inf
        return first if np.isfinite(first) else None


@dataclass(frozen=True)
class Summary:
    """`rows`: all of them; `counted`: those that `means` (by column) and `divergences` are of."""

    rows: int
    counted: int
    parts: dict[str, PartSummary]
    means: dict[str, Mean]
    divergences: dict[str, DivergenceSummary]

    @property
    def whole(self) -> PartSummary:
        """All parts together."""
        return PartSummary(
            *(sum(counts) for counts in zip(*(astuple(part) for part in self.parts.values()), strict=True))
        )


@dataclass
class _Tally:
    """The pass over tokens, so far."""

    means: dict[str, Mean]
    counts: dict[str, Counts]
    rows: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by split
    counted: int = 0

    def add(self, tokens: pa.Table) -> None:
        for split in pc.value_counts(tokens["split"]):
            self.rows[split["values"].as_py()] += split["counts"].as_py()
        if set(_SHAPED) <= set(tokens.column_names):
            tokens = tokens.filter(pc.and_(*(tokens[name] for name in _SHAPED)))
        self.counted += len(tokens)
        for name, mean in self.means.items():
            mean.add(tokens[name])
        self._count(tokens)

    def _count(self, tokens: pa.Table) -> None:
        argmax, token = (tokens[name].to_numpy().astype(np.uint32) for name in ("same_argmax", "same_token"))
        place = (2 * argmax + token) * np.uint32(BINS.count)  # (N,)
        for name, counts in self.counts.items():
            values = tokens[name].to_numpy().astype(np.float32, copy=False)  # null becomes NaN
            np.add.at(counts.reshape(-1), place + BINS.of(values), 1)


def summarise(traces: TraceSource) -> Summary:
    """One pass over the tokens and one over the completions."""
    manifest = traces.manifest
    on_policy = manifest.way == "on-policy"
    means = [name for name in SHARES + ENTROPIES if on_policy or name != "accepted"]
    tally = _Tally(
        {name: Mean() for name in means},
        {name: np.zeros((2, 2, BINS.count), np.int64) for name in manifest.divergences},
    )
    for tokens in traces.batches(["split", *(_SHAPED if on_policy else ()), *means, *manifest.divergences]):
        tally.add(tokens)
    return Summary(
        sum(tally.rows.values()),
        tally.counted,
        _parts(traces, tally.rows),
        tally.means,
        {name: DivergenceSummary(counts) for name, counts in tally.counts.items()},
    )


def _parts(traces: TraceSource, rows: dict[str, int]) -> dict[str, PartSummary]:
    """By split, the tuning part first."""
    parts: dict[str, PartSummary] = defaultdict(PartSummary)
    problems: dict[str, list[np.ndarray]] = defaultdict(list)
    for completions in traces.batches(_COMPLETION, table="completions"):
        for split in pc.unique(completions["split"]).to_pylist():
            of = completions.filter(pc.equal(completions["split"], split))
            parts[split].completions += len(of)
            parts[split].right += pc.sum(of["correct"]).as_py()
            parts[split].tokens += pc.sum(of["emitted"]).as_py()
            problems[split].append(of["problem"].to_numpy())
    for split, part in parts.items():
        part.problems = len(np.unique(np.concatenate(problems[split])))
        part.rows = rows.get(split, 0)
    return dict(sorted(parts.items(), reverse=True))
