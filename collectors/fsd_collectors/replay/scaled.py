"""Traces for a policy that scales T: the divergences divided by the policy's scales.

A policy that accepts where D <= T·m, with a scale m for each row, accepts where D/m <= T. So replaying the scaled
traces at T is replaying the original ones at T·m.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fsd_collectors.replay.blocks import Array, Facts, Traces
from fsd_common.errors import UsageError
from fsd_decoding.policies.threshold import ScalePolicy


@dataclass(frozen=True)
class ScaledTraces:
    """`Traces` whose divergences are divided by the policy's scales; a scale of 0 accepts nothing."""

    traces: Traces
    policy: ScalePolicy

    @property
    def manifest(self) -> Facts:
        return self.traces.manifest

    def batches(self, columns: Sequence[str], where: Any = None) -> Iterator[Any]:
        """Yields the tables of the underlying traces, scaled.

        Raises:
            UsageError: the policy does not return one scale for each row.
        """
        scaled = [name for name in columns if name in self.manifest.divergences]
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


def _divide(divergences: Array, scales: Array) -> Array:
    """Returns the quotients (n,) in float64, inf where the scale is 0."""
    quotients = np.full(len(scales), np.inf)
    return np.asarray(np.divide(divergences, scales, out=quotients, where=scales > 0, dtype=np.float64))
