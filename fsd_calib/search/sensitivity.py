"""Measurements shifted by additional losses or gains, to check whether a decision is already clear."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fsd_calib.measuring.measurement import Measurement


def flips(fuzzy: Measurement, target: Measurement) -> float:
    """Returns the sum over problems of the squared mean difference over seeds: the variance of the change, summed.

    With one seed it is the number of losses plus gains.
    """
    difference = fuzzy.correct.mean(1) - target.correct.mean(1)  # (problems,)
    return float(np.square(difference).sum())


def worse(fuzzy: Measurement, target: Measurement, problems: int) -> Measurement:
    """Returns the measurement with more problems lost, among those that both solve under some seed."""
    return _with_grades(fuzzy, np.flatnonzero((fuzzy.correct & target.correct).any(1))[:problems], correct=False)


def better(fuzzy: Measurement, target: Measurement, problems: int) -> Measurement:
    """Returns the measurement with more problems solved, lost ones first."""
    lost = (target.correct & ~fuzzy.correct).any(1)
    failed = ~fuzzy.correct.any(1) & ~lost
    return _with_grades(fuzzy, np.append(np.flatnonzero(lost), np.flatnonzero(failed))[:problems], correct=True)


def _with_grades(fuzzy: Measurement, which: np.ndarray[tuple[int], np.dtype[np.intp]], correct: bool) -> Measurement:
    decodings = list(fuzzy.decodings)
    for i in which.tolist():
        decodings[i] = tuple(replace(seed, correct=correct) for seed in decodings[i])
    return Measurement(fuzzy.configuration, fuzzy.part, decodings)


def plausible_flips(flipped: float, decoded: int, whole: int, deviations: float) -> tuple[int, int]:
    """Returns how many more and how many fewer flips the whole part may plausibly show, scaled to the decoded problems.

    Rao's score interval of a Poisson mean, which never takes a few flips for certainty (0 flips: up to the square of
    `deviations`), narrowed by the share of problems not yet decoded: at `decoded` = `whole` it has no width.
    """
    to_come = 1 - decoded / whole
    half = deviations**2 / 2 * to_come
    reach = math.sqrt(deviations**2 * flipped * to_come + half**2)
    return math.ceil(reach + half), math.ceil(max(reach - half, 0))
