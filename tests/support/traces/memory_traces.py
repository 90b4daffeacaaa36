"""Traces along the target that are held in memory, written down row by row or collected from decoded texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from fsd_collectors.collection.along_target import Completion, trace_completions
from fsd_collectors.collection.measures import Measures
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from fsd_decoding.sampling import Sampling


@dataclass(frozen=True)
class MemoryManifest:
    """The fields of a manifest that replay reads."""

    way: str = "along-target"
    scores: tuple[str, ...] = ("js", "fly@1", "fly@2")


@dataclass(frozen=True)
class MemoryTraces:
    """Traces whose tables are built from Python rows.

    Args:
        completions: for each completion its rows, which map column names to values; `position` is filled in.
        per_table: how many completions one table holds.
    """

    completions: Sequence[Sequence[dict[str, Any]]]
    per_table: int = 2
    manifest: MemoryManifest = field(default_factory=MemoryManifest)

    def batches(self, columns: Sequence[str], where: Any = None) -> Iterator[Any]:
        """Yields tables with these columns. where: a pyarrow expression that rows must meet."""
        for i in range(0, len(self.completions), self.per_table):
            rows = [
                {"position": t} | row
                for completion in self.completions[i : i + self.per_table]
                for t, row in enumerate(completion)
            ]
            table = pa.Table.from_pylist(rows)
            yield (table if where is None else table.filter(where)).select(columns)


def trace_texts(
    decoder: SpeculativeDecoder, prompts: Sequence[Sequence[int]], results: Sequence[Result], sampling: Sampling
) -> MemoryTraces:
    """Collects traces of target-only results, with the prompts' indices as ids and `js` as the score."""
    completions = [
        Completion.of(i, prompt, result) for i, (prompt, result) in enumerate(zip(prompts, results, strict=True))
    ]
    measures = Measures(["js"], "raw", sampling)
    traced = trace_completions(decoder, completions, measures, 8)
    rows: list[list[dict[str, Any]]] = [[] for _ in prompts]
    for owner, values in zip(traced.owner.tolist(), traced.measured.T.tolist(), strict=True):
        row: dict[str, Any] = dict(zip(measures.columns, values, strict=True))
        decided = {name: row[name] == 1 for name in ("same_token", "sd_accepts")}
        rows[owner].append(row | decided | {"drafted": int(row["drafted"]), "problem": owner})
    return MemoryTraces(rows)
