"""Traces along the target that a test writes down row by row. Knows what replaying asks of traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Facts:
    way: str = "along-target"
    divergences: tuple[str, ...] = ("js",)


@dataclass(frozen=True)
class InMemory:
    """Completions of rows of columns, `per_table` of them in a table. `where` is an expression of pyarrow."""

    completions: Sequence[Sequence[dict[str, Any]]]
    per_table: int = 2
    manifest: Facts = field(default_factory=Facts)

    def batches(self, columns: Sequence[str], where: Any = None) -> Iterator[Any]:
        for i in range(0, len(self.completions), self.per_table):
            rows = [
                {"position": t} | row
                for completion in self.completions[i : i + self.per_table]
                for t, row in enumerate(completion)
            ]
            table = pa.Table.from_pylist(rows)
            yield (table if where is None else table.filter(where)).select(columns)
