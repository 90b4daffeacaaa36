"""Size of the test with one seed per problem, at populations whose retention is exactly what is wanted.

There a false certificate is most likely. The probability of p <= level is summed over outcomes, without simulation.
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
from fsd_common.errors import UsageError
from lib.validity.levels import LEVELS, line

Floats = NDArray[np.float64]
_DEVIATIONS = 5.5  # standard deviations from a count's mean; counts beyond have a probability below 1e-6


@dataclass(frozen=True)
class Cell:
    """A population, and the number of problems drawn from it."""

    problems: int
    accuracy: float  # of the target
    churn: float
    wanted: float  # the required retention, which is the true one

    @property
    def population(self) -> Cells:
        """Probabilities of the outcomes of a problem. Raises `UsageError` if none have these numbers."""
        return cells(self.accuracy, self.churn, self.wanted)


@dataclass(frozen=True)
class Grid:
    """Values of which all combinations are cells."""

    problems: Sequence[int]
    accuracy: Sequence[float]
    churn: Sequence[float]
    wanted: Sequence[float]

    def feasible(self) -> Iterator[Cell]:
        """Yields the cells that a population with any flips exists for."""
        for cell in (Cell(*numbers) for numbers in product(self.problems, self.accuracy, self.churn, self.wanted)):
            try:
                population = cell.population
            except UsageError:
                continue
            if population.lost + population.gained:
                yield cell


def one_seed(grid: Grid) -> dict[str, Any]:
    """Returns the sizes of all cells, those above their level, and the largest at each level."""
    computed = list[tuple[Cell, Floats]]()
    for problems, cells_of in groupby(grid.feasible(), lambda cell: cell.problems):
        computed += [(cell, summed_sizes(cell)) for cell in cells_of]
        print(f"one seed, {problems} problems: {len(computed)} cells", flush=True)
    return {
        "columns": "problems | accuracy | churn | wanted, and true, then the chance of p <= each level",
        "largest_over_level": np.max([sizes / LEVELS for _, sizes in computed], axis=0).tolist(),
        "above": [_row(cell, sizes) for cell, sizes in computed if (sizes > LEVELS).any()],
        "rows": [_row(cell, sizes) for cell, sizes in computed],
    }


def _row(cell: Cell, sizes: Floats) -> str:
    return line(*astuple(cell), *sizes.tolist())


def summed_sizes(cell: Cell) -> Floats:
    """Returns the probability of p <= each level, summed over how many problems target or fuzzy rule solve."""
    p = cell.population
    either = 1 - p.both_wrong
    solved = _likely(cell.problems, either)
    weights = binom.pmf(solved, cell.problems, either)
    conditional = [_conditional_sizes(int(s), cell, p.lost / either, p.gained / either) for s in solved]
    return np.asarray(weights @ np.array(conditional), np.float64)


def _conditional_sizes(solved: int, cell: Cell, p_lost: float, p_gained: float) -> Floats:
    lost, gained = _likely(solved, p_lost)[:, None], _likely(solved, p_gained)
    masses = binom.pmf(lost, solved, p_lost) * binom.pmf(gained, solved - lost, min(p_gained / (1 - p_lost), 1.0))
    kept = np.maximum(solved - lost - gained, 0)  # where this is clipped the probability is 0
    p = p_values(kept, lost, gained, cell.problems - solved, cell.wanted)
    return np.array([masses[p <= level].sum() for level in LEVELS])


def _likely(number: int, probability: float) -> NDArray[np.int64]:
    """Returns the binomial counts that have any probability to speak of."""
    mean = number * probability
    reach = _DEVIATIONS * ((mean * (1 - probability)) ** 0.5 + 1)
    return np.arange(max(int(mean - reach), 0), min(int(mean + reach), number) + 1)
