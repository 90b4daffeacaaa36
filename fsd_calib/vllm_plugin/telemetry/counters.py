"""Numbers that one process of vLLM counts and another reads, without locks, through a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

STEPS: Final = "engine-{}.counters"
"""Name of the file in which an engine's worker counts, by the engine's index among data-parallel ones."""
AUDITS: Final = "audits-{}.counters"
"""The same of the file in which its audits are counted."""


class Counters:
    """Numbers in a file: one process writes, each number alone.

    Args:
        file: which is created, or begun anew. On a host without the front end its folder is, too, and nobody reads it.
        names: of the numbers.
    """

    def __init__(self, file: Path, names: Sequence[str]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._names = tuple(names)
        self._values = np.asarray(np.memmap(file, np.float64, "w+", shape=(len(names),)))

    def increase(self, name: str, by: float) -> None:
        self._values[self._names.index(name)] += by


def read_counters(file: Path, names: Sequence[str]) -> dict[str, float]:
    """Returns the numbers of a file by name, as they are now; 0 where it is only being made."""
    numbers = np.fromfile(file, np.float64).tolist()
    return dict(zip(names, numbers if len(numbers) == len(names) else [0.0] * len(names), strict=True))
