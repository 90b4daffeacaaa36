"""How often whole attempts are false: candidates are frozen on a tuning part and tested in sequence on another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lib.validity.levels import LEVELS, Share, line, summarise
from lib.validity.world import SHAPES, Counts, World, freeze, in_sequence, p_of


def sequences(problems: Sequence[int], churns: Sequence[float], runs: int, rng: np.random.Generator) -> dict[str, Any]:
    """Simulates first attempts for each shape of retention by threshold.

    The outcomes of the frozen thresholds are nested, as those of one draft are, or independent of each other, as those
    of several drafts may be.
    """
    shares = list[Share]()
    for shape, number, churn in product(SHAPES, problems, churns):
        world = World(shape, number, churn)
        order = freeze(world.draw(runs, rng), LEVELS[0])
        for way, draws in (("nested", 1), ("independent", order.shape[1])):
            counts = [world.draw(runs, rng) for _ in range(draws)]
            false = world.false(in_sequence(_tested(counts, order), LEVELS[0]), order)
            shares.append(Share(line(shape, number, churn), way, float(false.mean())))
    columns = "shape | problems | churn | outcomes, then the share with a false certificate"
    return summarise(shares, columns, LEVELS[0], runs)


def _tested(counts: Sequence[Counts], order: Counts) -> NDArray[np.float64]:
    """Returns p-values (runs, frozen): the i-th candidate's from the i-th counts, or all from the same."""
    places = range(order.shape[1])
    chosen = [np.take_along_axis(counts[i % len(counts)], order[:, [i], None], 1)[:, 0] for i in places]
    return p_of(np.stack(chosen, 1))
