"""Sequences that the real search froze: false certificates, and wrong bounds beside them.

A pool of texts is the population. Each sequence is frozen by a tuning part from it, and certified on many parts that
are drawn from the whole pool, so that what it keeps in truth is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fsd_calib.certification.power import cells
from fsd_calib.tasks.base import Problem
from lib import surfaces
from lib.pool import CountingPool, Frozen, Pool, PooledForecast, Whole, certify_on_pool, draw, freeze_on_pool
from lib.validity.given_passing import Coverage, Truth
from lib.validity.shares import Share, line, own_level, summarise

_TUNING, _CERTIFICATION = 400, 900
_COPIES = 1_000_000  # the first id of problems drawn with replacement
POOLS: Mapping[str, float] = {  # and what is wanted
    "two equal arms": 0.98,
    "churn .1": 0.98,
    "accuracy .3": 0.97,
    "bundled pair": 0.99,
}


def frozen(pools: Sequence[str], freezings: int, parts: int, rng: np.random.Generator) -> dict[str, Any]:
    """Freezes so many sequences in each of the pools, and certifies each on so many parts."""
    shares, shown, lengths = list[Share](), Coverage(), dict[str, list[int]]()
    for name in pools:
        wanted = POOLS[name]
        pool, forecast, space = _pool(name)
        everything = np.arange(min(len(arm.known) for arm in pool.arms.values()))
        false, wrong = list[bool](), list[list[bool]]()
        for _ in range(freezings):
            tuning = draw(pool, len(everything), _TUNING, rng)
            sequence = freeze_on_pool(CountingPool(pool, reuse=True), forecast, space, tuning, _CERTIFICATION, wanted)
            lengths.setdefault(name, []).append(len(sequence.settings))
            truths = [pool.whole(setting, everything) for setting in sequence.settings]
            for _ in range(parts):
                originals = [pool.problems[number] for number in rng.choice(everything, _CERTIFICATION).tolist()]
                is_false, is_wrong = _certify(pool, sequence, truths, wanted, originals)
                false.append(is_false)
                wrong += [is_wrong] if is_wrong else []
        shares.append(Share(line(name, wanted), "frozen", float(np.mean(false))))
        shown.add(line(name, wanted), wrong)
    columns = "pool | wanted | way, then the share of parts with a false certificate"
    found = summarise(shares, columns, own_level(1), freezings * parts)
    return found | {"lengths": lengths, "printed": shown.summary()}


def _pool(name: str) -> tuple[Pool, PooledForecast, Any]:
    if name == "bundled pair":
        pool = Pool.read()
        return pool, PooledForecast.read(pool), pool.space(pool.about["rule"])
    pool = surfaces.draw_pool(surfaces.SURFACES[name])
    return pool, surfaces.forecast(pool), pool.space(surfaces.RULE)


def _certify(
    pool: Pool, sequence: Frozen, truths: Sequence[Whole], wanted: float, originals: Sequence[Problem]
) -> tuple[bool, list[bool] | None]:
    """Returns whether a certificate is false, and which of its bounds are wrong; None: there is none."""
    part = [_copy(problem, _COPIES + place) for place, problem in enumerate(originals)]
    copies = {copy.id: problem for copy, problem in zip(part, originals, strict=True)}
    verdict = certify_on_pool(CountingPool(pool, reuse=True, copies=copies), sequence, part, wanted)
    if verdict is None or verdict.passed is None:
        return False, None
    truth, shown = truths[verdict.passed], verdict.tested[verdict.passed].given_passing
    assert shown is not None
    law = cells(truth.accuracy, truth.churn, truth.retention)
    false = any(t.retention < wanted for t in truths[: verdict.passed + 1])
    return false, Truth.of(law).wrong(shown)


def _copy(problem: Problem, number: int) -> Problem:
    """Returns a problem of its own, which has the other's texts."""
    return replace(problem, id=number, question=f"{problem.question} ({number})")
