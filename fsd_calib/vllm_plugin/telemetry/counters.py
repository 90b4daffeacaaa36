"""Counters that workers pass on to vLLM's front end, which is another process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np

from fsd_calib.vllm_plugin.telemetry.steps import Step

NAMES: Final = ("exact", "fuzzy", "rejected", "fuzzy_divergence", "texts", "accepted_share", "drifted")
"""What is counted: drafted tokens accepted without need of D <= T, by it, and rejected; the sum of D of the second;
texts that were decoded as the profile says, with the sum of their shares of accepted tokens; whether they drifted."""


class Counters:
    """Numbers in a file that another process reads, without locks: one process writes, each number alone.

    Args:
        file: which is created, or begun anew. On a host without the front end its folder is, too, and nobody reads it.
    """

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._values = np.asarray(np.memmap(file, np.float64, "w+", shape=(len(NAMES),)))

    def increase(self, name: str, by: float) -> None:
        self._values[NAMES.index(name)] += by

    def add(self, step: Step) -> None:
        if step.layout.count:
            needed, kept = step.needed, step.kept.sum()
            fuzzy = needed.sum()
            rejected = step.decided.sum() - kept
            self._values[:4] += (kept - fuzzy, fuzzy, rejected, step.divergences[needed].sum())  # as in NAMES

    def finish(self, ids: Iterable[str]) -> None:
        """Counts nothing by request."""


def read_counters(file: Path) -> dict[str, float]:
    """Returns the numbers of a file by name, as they are now; 0 where it is only being made."""
    numbers = np.fromfile(file, np.float64).tolist()
    return dict(zip(NAMES, numbers if len(numbers) == len(NAMES) else [0.0] * len(NAMES), strict=True))
