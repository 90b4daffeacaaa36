"""Blocks: traces along the target as NumPy arrays, whole completions in chunks that fit memory and cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fsd_common.errors import UsageError
from fsd_decoding.policies.threshold import ScalePolicy

Array = npt.NDArray[Any]

CACHED_ROWS = 1 << 17  # rows of a block, about: the arrays in use then fit a core's cache


class TraceFacts(Protocol):
    """What replay needs of a manifest."""

    @property
    def way(self) -> str: ...

    @property
    def scores(self) -> tuple[str, ...]: ...


class Traces(Protocol):
    """What replay needs of traces. `batches` yields tables of whole completions, their rows in order."""

    @property
    def manifest(self) -> TraceFacts: ...

    def batches(self, columns: Sequence[str], where: Any = None) -> Iterator[Any]: ...


@dataclass(frozen=True)
class Block:
    """n rows of c whole completions."""

    columns: Mapping[str, Array]  # (n,) each
    starts: Array  # (c,) row where each completion begins
    ends: Array  # (c,) row after its last

    @property
    def rows(self) -> int:
        return int(self.ends[-1])

    @property
    def longest(self) -> int:
        """Number of tokens of the longest completion."""
        return int((self.ends - self.starts).max())


def blocks(traces: Traces, columns: Sequence[str], where: Any = None, rows: int = CACHED_ROWS) -> Iterator[Block]:
    """Yields the rows that `where` selects, in blocks of about `rows` with `position` and the requested columns.

    Raises:
        UsageError: `where` selects no rows, or only parts of completions.
    """
    names = list(dict.fromkeys(("position", *columns)))
    pending: list[Any] = []
    count = yielded = 0
    for table in traces.batches(names, where):
        pending.append(table)
        count += table.num_rows
        if count >= rows:
            yield from _cut(pa.concat_tables(pending), rows)
            pending, count, yielded = [], 0, yielded + count
    if count:
        yield from _cut(pa.concat_tables(pending), rows)
    elif not yielded:
        raise UsageError(f"where={where!r} selects no rows of these traces; loosen it, or collect more")


def _cut(table: Any, rows: int) -> Iterator[Block]:
    """Yields blocks of about `rows`, each of which ends with a completion."""
    starts = _starts(table["position"].to_numpy())
    first = np.unique(np.searchsorted(starts, np.arange(0, table.num_rows, rows)))
    edges = [*starts[first[first < len(starts)]].tolist(), table.num_rows]
    for begin, end in pairwise(edges):
        within = starts[(starts >= begin) & (starts < end)] - begin
        part = table.slice(begin, end - begin)
        columns = {name: part[name].to_numpy() for name in part.column_names}
        yield Block(columns, within, np.append(within[1:], end - begin))


def _starts(position: Array) -> Array:
    """Returns the rows where completions begin, and checks that every other row follows the one before it."""
    begins = position == 0
    if not begins[0] or not (begins[1:] | (np.diff(position) == 1)).all():
        raise UsageError("where= selects parts of completions; it must select whole completions")
    return np.flatnonzero(begins)


@dataclass(frozen=True)
class ScaledTraces:
    """`Traces` whose scores are divided by the policy's scales; a scale of 0 accepts nothing."""

    traces: Traces
    policy: ScalePolicy

    @property
    def manifest(self) -> TraceFacts:
        return self.traces.manifest

    def batches(self, columns: Sequence[str], where: Any = None) -> Iterator[Any]:
        """Yields the tables of the underlying traces, scaled.

        Raises:
            UsageError: the policy does not return one scale for each row.
        """
        scaled = [name for name in columns if name in self.manifest.scores]
        needed = [*columns, *self.policy.columns] if scaled else list(columns)
        for table in self.traces.batches(list(dict.fromkeys(needed)), where):
            yield (self._scaled(table, scaled) if scaled else table).select(list(columns))

    def _scaled(self, table: Any, names: Sequence[str]) -> Any:
        columns = {
            name: table[name].to_numpy().copy() for name in self.policy.columns
        }  # torch refuses read-only arrays
        scales = np.asarray(self.policy.traced(columns))
        if scales.shape != (table.num_rows,):
            raise UsageError(
                f"the policy {type(self.policy).__name__} returned scales of shape {scales.shape}; it must return one "
                f"for each row: ({table.num_rows},)"
            )
        for name in names:
            quotients = pa.array(_divide(table[name].to_numpy(), scales))
            table = table.set_column(table.column_names.index(name), name, quotients)
        return table


def _divide(scores: Array, scales: Array) -> Array:
    """Returns the quotients (n,) in float64, inf where the scale is 0."""
    quotients = np.full(len(scales), np.inf)
    return np.asarray(np.divide(scores, scales, out=quotients, where=scales > 0, dtype=np.float64))
