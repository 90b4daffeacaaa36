"""How many problems go to a worker at once."""

from __future__ import annotations

import math

_LONGEST = 4  # batches of `rows` problems at most: what a killed worker costs, and how often results come back


def batch_sizes(problems: int, rows: int, workers: int) -> list[int]:
    """Returns the sizes of the batches that problems are handed out in, the largest first.

    "Factoring" (Hummel, Schonberg and Flynn, 1992): each round gives every worker a batch of the same size, together
    half of what is left, so that the last batches are small and end at about the same time. A batch has at least
    `rows` problems, as fewer leave rows empty, and the last round is even. It has at most four times as many: rows
    are refilled, and a finished batch is what progress and a killed worker are counted in.

    Args:
        rows: problems that a worker decodes at once.
    """
    sizes: list[int] = []
    while left := problems - sum(sizes):
        share = math.ceil(left / workers)
        longest = min(share if share < 2 * rows else math.ceil(share / 2), _LONGEST * rows)
        now = min(left, longest * workers)
        sizes += [-(-(now - worker) // workers) for worker in range(workers) if worker < now]
    return sizes
