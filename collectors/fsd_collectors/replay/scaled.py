"""Traces as a policy sees them that scales T: divergences over its scales.

D <= T·m is D/m <= T, so replaying these at T is replaying the others at T·m, place by place. Knows which columns are
divergences. Knows no policy in particular.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fsd_collectors.replay.blocks import Array, Facts, Traces
from fsd_decoding.errors import UsageError
from fsd_decoding.policies.threshold import ScalePolicy


@dataclass(frozen=True)
class ScaledTraces:
    """`Traces` whose divergences are over the policy's scales; a scale of 0 accepts nothing."""

    traces: Traces
    policy: ScalePolicy

    @property
    def manifest(self) -> Facts:
        return self.traces.manifest

    def batches(self, columns: Sequence[str], where: Any = None) -> Iterator[Any]:
        """UsageError: the policy's scales are not one a row."""
        scaled = [name for name in columns if name in self.manifest.divergences]
        read = [*columns, *self.policy.columns] if scaled else list(columns)
        for table in self.traces.batches(list(dict.fromkeys(read)), where):
            yield (self._scaled(table, scaled) if scaled else table).select(list(columns))

    def _scaled(self, table: Any, names: Sequence[str]) -> Any:
        columns = {name: table[name].to_numpy().copy() for name in self.policy.columns}  # torch takes none read-only
        scales = np.asarray(self.policy.traced(columns))
        if scales.shape != (table.num_rows,):
            raise UsageError(
                f"the policy {type(self.policy).__name__} traced scales of shape {scales.shape}; it must give one a "
                f"row: ({table.num_rows},)"
            )
        for name in names:
            over = pa.array(_over(table[name].to_numpy(), scales))
            table = table.set_column(table.column_names.index(name), name, over)
        return table


def _over(divergences: Array, scales: Array) -> Array:
    """(n,) float64."""
    none = np.full(len(scales), np.inf)
    return np.asarray(np.divide(divergences, scales, out=none, where=scales > 0, dtype=np.float64))
