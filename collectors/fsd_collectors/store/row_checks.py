"""Checks of a portion's rows: their run, problem and split, and their order.

Measured values are not checked: they are covered by the files' checksums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fsd_collectors.manifest import Manifest

WHOSE = ("run", "problem", "split")
ORDER = ("position", "round", "draft_position")  # of the tokens


def row_faults(tables: Mapping[str, pa.Table], manifest: Manifest) -> Iterator[str]:
    """Yields the faults of one portion, one line each.

    Args:
        tables: every table of the run, with the columns `WHOSE`, and of tokens `ORDER` too.
        manifest: the run's manifest.
    """
    completions = _owners(tables["completions"])
    if len(completions) < tables["completions"].num_rows:
        yield "a problem has two completions"
    for name, table in tables.items():
        if runs := set(pc.unique(table["run"]).to_pylist()) - {manifest.run}:
            yield f"{name} has rows of run {min(runs)}, not {manifest.run}"
        if unknown := _owners(table) - completions:
            problem, split = min(unknown)
            yield f"{name} has rows of problem {problem} in the split {split}, completions has none"
    if broken := _out_of_place(tables["tokens"], manifest):
        yield f"tokens has {broken} rows out of order, or rows are missing before them"


def _owners(table: pa.Table) -> set[tuple[int, str]]:
    """Returns the problems in the table, with their splits."""
    owners = table.group_by(["problem", "split"]).aggregate([])
    return set(zip(owners["problem"].to_pylist(), owners["split"].to_pylist(), strict=True))


def _out_of_place(tokens: pa.Table, manifest: Manifest) -> int:
    """Counts the rows that do not follow the row before them, or that return to an earlier completion."""
    problem = tokens["problem"].to_numpy()
    new = _changes(problem)
    scattered = int(new.sum()) - len(np.unique(problem))
    if manifest.way == "along-target":
        return scattered + _gaps(new, tokens["position"].to_numpy())
    turn = tokens["round"].to_numpy()
    backwards = ~new[1:] & (np.diff(turn) < 0)
    return scattered + int(backwards.sum()) + _gaps(new | _changes(turn), tokens["draft_position"].to_numpy())


def _changes(values: Any) -> Any:
    """Returns a mask of the rows that differ from the one before, the first row included."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


def _gaps(new: Any, place: Any) -> int:
    """Counts the rows whose place is not their distance from the last `new` row."""
    index = np.arange(len(place))
    return int((place != index - np.maximum.accumulate(np.where(new, index, 0))).sum())
