"""Populations whose retention is exactly what is wanted, where a false certificate is likeliest, and the size there.

One decoding a problem: the chance of p <= level is summed over outcomes, without draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import groupby, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from fsd_calib.certification.power import Cells, cells
from fsd_calib.certification.score_test import p_values
from fsd_decoding.errors import UsageError
from lib.validity.rows import LEVELS, line

Floats = NDArray[np.float64]
_DEVIATIONS = 5.5  # from the expectation of a count; all beyond is less than 1e-6


@dataclass(frozen=True)
class Cell:
    problems: int
    accuracy: float  # of the target
    churn: float
    wanted: float  # and true

    @property
    def population(self) -> Cells:
        """UsageError: no outcomes have these numbers."""
        return cells(self.accuracy, self.churn, self.wanted)


@dataclass(frozen=True)
class Grid:
    problems: Sequence[int]
    accuracy: Sequence[float]
    churn: Sequence[float]
    wanted: Sequence[float]

    def feasible(self) -> Iterator[Cell]:
        for cell in (Cell(*numbers) for numbers in product(self.problems, self.accuracy, self.churn, self.wanted)):
            try:
                population = cell.population
            except UsageError:
                continue
            if population.lost + population.gained:
                yield cell


def one_seed(grid: Grid) -> dict[str, Any]:
    """Sizes of all cells, those above their level, and the largest of each level."""
    found = list[tuple[Cell, Floats]]()
    for problems, cells_of in groupby(grid.feasible(), lambda cell: cell.problems):
        found += [(cell, summed_sizes(cell)) for cell in cells_of]
        print(f"one seed, {problems} problems: {len(found)} cells", flush=True)
    return {
        "columns": "problems | accuracy | churn | wanted, and true, then the chance of p <= each level",
        "largest_over_level": np.max([sizes / LEVELS for _, sizes in found], axis=0).tolist(),
        "above": [_row(cell, sizes) for cell, sizes in found if (sizes > LEVELS).any()],
        "rows": [_row(cell, sizes) for cell, sizes in found],
    }


def _row(cell: Cell, sizes: Floats) -> str:
    return line(*astuple(cell), *sizes.tolist())


def summed_sizes(cell: Cell) -> Floats:
    """The chance of p <= each level, given how many either solved, and over that number."""
    p = cell.population
    either = 1 - p.both_wrong
    solved = _likely(cell.problems, either)
    weights = binom.pmf(solved, cell.problems, either)
    given = [_given(int(s), cell, p.lost / either, p.gained / either) for s in solved]
    return np.asarray(weights @ np.array(given), np.float64)


def _given(solved: int, cell: Cell, p_lost: float, p_gained: float) -> Floats:
    lost, gained = _likely(solved, p_lost)[:, None], _likely(solved, p_gained)
    chances = binom.pmf(lost, solved, p_lost) * binom.pmf(gained, solved - lost, min(p_gained / (1 - p_lost), 1.0))
    kept = np.maximum(solved - lost - gained, 0)  # where that is negative the chance is 0
    p = p_values(kept, lost, gained, cell.problems - solved, cell.wanted)
    return np.array([chances[p <= level].sum() for level in LEVELS])


def _likely(number: int, chance: float) -> NDArray[np.int64]:
    reach = _DEVIATIONS * ((number * chance * (1 - chance)) ** 0.5 + 1)
    return np.arange(max(int(number * chance - reach), 0), min(int(number * chance + reach), number) + 1)
