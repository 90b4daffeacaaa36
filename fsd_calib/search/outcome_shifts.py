"""A measurement as it would be with more or fewer losses, to ask whether a decision is clear. Knows outcomes only."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fsd_calib.measuring.measurement import Measurement


def flips(fuzzy: Measurement, target: Measurement) -> float:
    """Problems that flipped, as their variance counts them: the sum over problems of the squared mean difference
    over seeds. Losses plus gains where there is one seed."""
    difference = fuzzy.correct.mean(1) - target.correct.mean(1)  # (problems,)
    return float(np.square(difference).sum())


def worse(fuzzy: Measurement, target: Measurement, problems: int) -> Measurement:
    """So many more problems lost, of those that both solve under some seed."""
    return _graded(fuzzy, np.flatnonzero((fuzzy.correct & target.correct).any(1))[:problems], correct=False)


def better(fuzzy: Measurement, target: Measurement, problems: int) -> Measurement:
    """So many more problems solved; those that were lost come first."""
    lost = (target.correct & ~fuzzy.correct).any(1)
    failed = ~fuzzy.correct.any(1) & ~lost
    return _graded(fuzzy, np.append(np.flatnonzero(lost), np.flatnonzero(failed))[:problems], correct=True)


def _graded(fuzzy: Measurement, which: np.ndarray[tuple[int], np.dtype[np.intp]], correct: bool) -> Measurement:
    decodings = list(fuzzy.decodings)
    for i in which.tolist():
        decodings[i] = tuple(replace(seed, correct=correct) for seed in decodings[i])
    return Measurement(fuzzy.configuration, fuzzy.part, decodings)


def swing(flipped: float, seen: int, whole: int, deviations: float) -> tuple[int, int]:
    """How many more and how many fewer flips the whole part may show, in problems of the part that was seen.

    Rao's score interval of a Poisson mean, which never takes a few flips for certainty (0 seen: up to the square of
    `deviations`), narrowed by the share of problems still to come: at `seen` = `whole` nothing is left to chance.
    """
    to_come = 1 - seen / whole
    half = deviations**2 / 2 * to_come
    reach = math.sqrt(deviations**2 * flipped * to_come + half**2)
    return math.ceil(reach + half), math.ceil(max(reach - half, 0))
