"""Whether a portion's rows stand where they should: whose they are, and in what order.

Knows a portion's tables in memory. Knows no file, and no measured value: a checksum tells of those.
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
    """What is wrong with one portion, a line each.

    Args:
        tables: `WHOSE` of every table of the run, `ORDER` too of tokens.
    """
    completions = _owners(tables["completions"])
    if len(completions) < tables["completions"].num_rows:
        yield "a problem has two completions"
    for name, table in tables.items():
        if runs := set(pc.unique(table["run"]).to_pylist()) - {manifest.run}:
            yield f"{name} has rows of run {min(runs)}, not {manifest.run}"
        if strangers := _owners(table) - completions:
            problem, split = min(strangers)
            yield f"{name} has rows of problem {problem} in the split {split}, completions has none"
    if broken := _out_of_place(tables["tokens"], manifest):
        yield f"tokens has {broken} rows out of order, or rows are missing before them"


def _owners(table: pa.Table) -> set[tuple[int, str]]:
    """Every problem in the table, with its split."""
    owners = table.group_by(["problem", "split"]).aggregate([])
    return set(zip(owners["problem"].to_pylist(), owners["split"].to_pylist(), strict=True))


def _out_of_place(tokens: pa.Table, manifest: Manifest) -> int:
    """Rows that do not follow the row before them in their completion, or begin one that began before."""
    problem = tokens["problem"].to_numpy()
    new = _changes(problem)
    scattered = int(new.sum()) - len(np.unique(problem))
    if manifest.way == "along-target":
        return scattered + _gaps(new, tokens["position"].to_numpy())
    turn = tokens["round"].to_numpy()
    backwards = ~new[1:] & (np.diff(turn) < 0)
    return scattered + int(backwards.sum()) + _gaps(new | _changes(turn), tokens["draft_position"].to_numpy())


def _changes(values: Any) -> Any:
    """True where a row differs from the one before it, and in the first row."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


def _gaps(new: Any, place: Any) -> int:
    """Rows whose place is not their distance from the last `new` row."""
    index = np.arange(len(place))
    return int((place != index - np.maximum.accumulate(np.where(new, index, 0))).sum())
