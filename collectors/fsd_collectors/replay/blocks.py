"""Tokens along the target as NumPy arrays: whole completions, in blocks of a size that memory and cache like.

Knows where completions begin and end. Knows nothing of rules, thresholds or rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fsd_decoding.errors import UsageError

Array = npt.NDArray[Any]

CACHED_ROWS = 1 << 17  # a block's, about: what is worked on then stays in a core's cache


class Facts(Protocol):
    """What replaying needs of a manifest."""

    @property
    def way(self) -> str: ...

    @property
    def divergences(self) -> tuple[str, ...]: ...


class Traces(Protocol):
    """What replaying needs of traces. `batches` gives tables of whole completions, their rows in order."""

    @property
    def manifest(self) -> Facts: ...

    def batches(self, columns: Sequence[str], where: Any = None) -> Iterator[Any]: ...


@dataclass(frozen=True)
class Block:
    """n rows of c whole completions."""

    columns: Mapping[str, Array]  # (n,) each
    starts: Array  # (c,) row where each completion begins
    ends: Array  # (c,) row behind its last

    @property
    def rows(self) -> int:
        return int(self.ends[-1])

    @property
    def longest(self) -> int:
        """Tokens of the longest completion."""
        return int((self.ends - self.starts).max())


def blocks(traces: Traces, columns: Sequence[str], where: Any = None, rows: int = CACHED_ROWS) -> Iterator[Block]:
    """The chosen rows, `columns` of them.

    Raises:
        UsageError: no rows are chosen, or not whole completions.
    """
    wanted = list(dict.fromkeys(("position", *columns)))
    waiting: list[Any] = []
    held = seen = 0
    for table in traces.batches(wanted, where):
        waiting.append(table)
        held += table.num_rows
        if held >= rows:
            yield from _cut(pa.concat_tables(waiting), rows)
            waiting, held, seen = [], 0, seen + held
    if held:
        yield from _cut(pa.concat_tables(waiting), rows)
    elif not seen:
        raise UsageError(f"where={where!r} chooses no rows of these traces; loosen it, or collect more")


def _cut(table: Any, rows: int) -> Iterator[Block]:
    """Blocks of about `rows`, each up to the end of a completion."""
    starts = _starts(table["position"].to_numpy())
    first = np.unique(np.searchsorted(starts, np.arange(0, table.num_rows, rows)))
    edges = [*starts[first[first < len(starts)]].tolist(), table.num_rows]
    for begin, end in pairwise(edges):
        within = starts[(starts >= begin) & (starts < end)] - begin
        part = table.slice(begin, end - begin)
        columns = {name: part[name].to_numpy() for name in part.column_names}
        yield Block(columns, within, np.append(within[1:], end - begin))


def _starts(position: Array) -> Array:
    """Rows where completions begin; every other row must follow the one before it."""
    begins = position == 0
    if not begins[0] or not (begins[1:] | (np.diff(position) == 1)).all():
        raise UsageError("rows of completions are missing in what was chosen; where= must choose whole completions")
    return np.flatnonzero(begins)
