"""Size of the test at populations whose retention is exactly what is wanted, where a false certificate is most likely.

With one seed per problem the probability of p <= level is summed over outcomes, without simulation. With several seeds
it is simulated, under laws by which seeds agree in different ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import groupby, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from fsd_calib.certification import betting_test
from fsd_calib.certification.multi_seed import FEW, fitted_p_values
from fsd_calib.certification.power import Cells, cells
from fsd_calib.certification.score_test import p_values
from fsd_common.errors import UsageError
from lib.validity.shares import allowed, line, own_level

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Law = NDArray[np.float64]
Classes = list[tuple[float, float, float, float]]

NUMBERS = (1, 2, 4)  # attempts whose levels are reported
_DEVIATIONS = 5.5  # standard deviations from a count's mean; counts beyond have a probability below 1e-6
_EVERY = 40  # from so many likely numbers of solved problems on, every second is summed over, and so on
_AGAIN = 8  # a cell above its level is drawn anew with this many times as many draws


LEVELS = tuple(own_level(number) for number in NUMBERS)


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
    solved = solved[:: 1 + len(solved) // _EVERY]  # their neighbours have all but the same sizes
    weights = binom.pmf(solved, cell.problems, either)
    weights /= weights.sum()
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


# --- several seeds ----------------------------------------------------------------------------------------


def law(k: int, classes: Classes) -> Law:
    """Returns the law of one problem's table of counts, (k + 1, k + 1): seeds solved by the target, by the fuzzy rule.

    Args:
        k: number of seeds.
        classes: of problems: (share, P(target right), P(lost | right), P(gained | wrong)). Seeds are independent within
            a class, so problems differ and the seeds of one problem agree.
    """
    table = np.zeros((k + 1, k + 1))
    for (share, right, lost, gained), a in product(classes, range(k + 1)):
        kept, won = binom.pmf(np.arange(a + 1), a, 1 - lost), binom.pmf(np.arange(k - a + 1), k - a, gained)
        table[a] += share * binom.pmf(a, k, right) * np.convolve(kept, won)
    return table


def retention(table: Law) -> float:
    solved = np.arange(len(table))
    return float(table.sum(0) @ solved / (table.sum(1) @ solved))


def _by_seed(flips: float, stays: float) -> list[tuple[float, float]]:
    """Returns (share of problems, probability that a seed flips) where each seed flips by itself."""
    return [(flips + stays, flips / (flips + stays) if flips else 0.0)]


def _together(flips: float, stays: float) -> list[tuple[float, float]]:
    """Returns the same where all seeds of a problem flip or none."""
    return [(flips, 1.0), (stays, 0.0)]


_Side = Callable[[float, float], list[tuple[float, float]]]


def _sides(losses: _Side, gains: _Side) -> Callable[[Cells], Classes]:
    """Returns the classes of a law under which the target solves a problem with all seeds or with none."""
    return lambda p: [
        *((share, 1.0, rate, 0.0) for share, rate in losses(p.lost, p.both_right)),
        *((share, 0.0, 0.0, rate) for share, rate in gains(p.gained, p.both_wrong)),
    ]


def _in_doubt(p: Cells) -> Classes:
    """Returns classes where only problems flip that the target solves with half of the seeds.

    Half of those seeds flip that can, if the population allows. Where it cannot hold so many such problems, there are
    no classes.
    """
    accuracy, most = p.both_right + p.lost, max(p.lost, p.gained)
    doubtful = min(4 * most, 2 * accuracy, 2 - 2 * accuracy)
    if 2 * most > doubtful:
        return []
    flips = (doubtful, 0.5, 2 * p.lost / doubtful, 2 * p.gained / doubtful)
    return [flips, (accuracy - doubtful / 2, 1.0, 0.0, 0.0), (1 - accuracy - doubtful / 2, 0.0, 0.0, 0.0)]


LAWS: dict[str, Callable[[Cells], Classes]] = {
    "seed by seed": _sides(_by_seed, _by_seed),
    "together": _sides(_together, _together),
    "gains together": _sides(_by_seed, _together),
    "losses together": _sides(_together, _by_seed),
    "in doubt": _in_doubt,
}
MEANING = {
    "seed by seed": "the target solves a problem with all seeds or none; each seed flips by itself",
    "together": "the target solves a problem with all seeds or none; a problem flips with all seeds",
    "gains together": "losses seed by seed, gains with all seeds of a problem",
    "losses together": "losses with all seeds of a problem, gains seed by seed",
    "in doubt": "only problems flip that the target solves half of the time, each seed by itself",
}


def laws_of(cell: Cell, k: int) -> dict[str, Law]:
    """Returns the law of a table under each way in which seeds agree, as far as it allows the cell's numbers."""
    classes = {name: of(cell.population) for name, of in LAWS.items()}
    return {name: law(k, some) for name, some in classes.items() if some}


def several_seeds(k: int, grid: Grid, draws: int, rng: np.random.Generator) -> dict[str, Any]:
    """Simulates the size of all cells under all laws.

    Cells above their level by three standard errors are simulated anew with more draws, because the largest of many
    estimates may be large by chance.
    """
    simulated, above = list[tuple[str, Floats]](), list[str]()
    for cell in grid.feasible():
        for name, table in laws_of(cell, k).items():
            shares, what = drawn_sizes(cell, table, draws, rng), line(*astuple(cell), name)
            simulated.append((what, shares))
            if any(share > allowed(level, draws) for share, level in zip(shares, LEVELS, strict=True)):
                anew = np.mean([drawn_sizes(cell, table, draws, rng) for _ in range(_AGAIN)], axis=0)
                above.append(line(what, *shares.tolist(), "anew", *anew.tolist()))
                print(f"{k} seeds, above: {above[-1]}", flush=True)
    return {
        "seeds": k,
        "laws": MEANING,
        "draws": draws,
        "draws_anew": _AGAIN * draws,
        "columns": "problems | accuracy | churn | wanted, and true | law, then the share of draws with p <= each level",
        "largest_over_level": np.max([shares / LEVELS for _, shares in simulated], axis=0).tolist(),
        "above": above,  # with a second estimate at each level, drawn anew
        "rows": [line(what, *shares.tolist()) for what, shares in simulated],
    }


def drawn_sizes(cell: Cell, table: Law, draws: int, rng: np.random.Generator) -> Floats:
    """Returns the share of draws with p <= each level; equal draws are tested once."""
    drawn = rng.multinomial(cell.problems, table.ravel() / table.sum(), size=draws)
    tables, times = np.unique(drawn, axis=0, return_counts=True)
    p = _p_values(tables.reshape(-1, *table.shape), cell, rng)
    return np.array([times[p <= level].sum() / draws for level in LEVELS])


def _p_values(tables: Counts, cell: Cell, rng: np.random.Generator) -> Floats:
    """Returns p-values like `fsd_calib.certification.multi_seed`; where that bets, problems are in a random order."""
    few = cell.problems - np.trace(tables, axis1=1, axis2=2) < FEW
    p = np.ones(len(tables))
    if not few.all():
        p[~few] = fitted_p_values(tables[~few], cell.wanted)
    if few.any():
        k = tables.shape[-1] - 1
        kinds = np.stack([np.repeat(np.arange((k + 1) ** 2), table.ravel()) for table in tables[few]])
        ordered = rng.permuted(kinds, axis=1)
        p[few] = betting_test.p_values(ordered // (k + 1) / k, ordered % (k + 1) / k, cell.wanted)
    return p
