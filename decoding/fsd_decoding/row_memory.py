"""What a threshold policy keeps of each text being decoded.

Knows columns, one entry a row, that follow the rows of a batch. Knows nothing of what they mean.
"""

from __future__ import annotations

import torch
from torch import Tensor


class RowMemory:
    """Columns (B,) float64 on the batch's device, by name. A row's entries begin anew with each text."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._rows, self._device = rows, device
        self._columns: dict[str, Tensor] = {}
        self._fills: dict[str, float] = {}
        self._parts: dict[str, RowMemory] = {}

    def column(self, name: str, fill: float = 0.0) -> Tensor:
        """To be read, and changed in place; `fill` is what every text begins with, as first asked."""
        if name not in self._columns:
            self._fills[name] = fill
            self._columns[name] = torch.full((self._rows,), fill, dtype=torch.float64, device=self._device)
        return self._columns[name]

    def part(self, name: str) -> RowMemory:
        """That of a policy within a policy: of the same rows, with columns of its own."""
        if name not in self._parts:
            self._parts[name] = RowMemory(self._rows, self._device)
        return self._parts[name]

    def forget(self, rows: Tensor) -> None:
        """Other texts begin in `rows` (R,)."""
        for name, column in self._columns.items():
            column[rows] = self._fills[name]
        for part in self._parts.values():
            part.forget(rows)

    def keep(self, rows: Tensor) -> None:
        """Gives up all rows but these (R,), which are numbered anew in this order."""
        self._rows = len(rows)
        self._columns = {name: column[rows] for name, column in self._columns.items()}
        for part in self._parts.values():
            part.keep(rows)
