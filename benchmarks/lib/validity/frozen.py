"""Sequences that the real search froze: false certificates, and wrong bounds beside them.

A pool of texts is the population. Each sequence is frozen by a tuning part from it, and certified on many parts that
are drawn from the whole pool, so that what it keeps in truth is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fsd_calib.certification.certificate import SequenceVerdict
from fsd_calib.certification.power import cells
from fsd_calib.tasks.base import Problem
from lib import surfaces
from lib.pool import LOOKS, CountingPool, Frozen, Pool, PooledForecast, Whole, certify_on_pool, draw, freeze_on_pool
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
    shares, shown, lengths, saved = list[Share](), Coverage(), dict[str, list[int]](), dict[str, Any]()
    for name in pools:
        wanted = POOLS[name]
        pool, forecast, space = _pool(name)
        everything = np.arange(min(len(arm.known) for arm in pool.arms.values()))
        false, wrong, decided = list[bool](), list[list[bool]](), list[list[tuple[bool, int]]]()
        for _ in range(freezings):
            tuning = draw(pool, len(everything), _TUNING, rng)
            sequence = freeze_on_pool(CountingPool(pool, reuse=True), forecast, space, tuning, _CERTIFICATION, wanted)
            lengths.setdefault(name, []).append(len(sequence.settings))
            truths = [pool.whole(setting, everything) for setting in sequence.settings]
            for _ in range(parts):
                originals = [pool.problems[number] for number in rng.choice(everything, _CERTIFICATION).tolist()]
                once, looked = (_certify(pool, sequence, wanted, originals, looks) for looks in (1, LOOKS))
                decided.append([_decided(once), _decided(looked)])
                is_false, is_wrong = _judged(looked, truths, wanted)
                false.append(is_false)
                wrong += [is_wrong] if is_wrong else []
        shares.append(Share(line(name, wanted), "frozen", float(np.mean(false))))
        shown.add(line(name, wanted), wrong)
        certified, decodings = np.array(decided, float).mean(0).T.tolist()
        saved[name] = {"looks": [1, LOOKS], "certified": certified, "decodings": decodings}
    columns = "pool | wanted | way, then the share of parts with a false certificate"
    found = summarise(shares, columns, own_level(1), freezings * parts)
    return found | {"lengths": lengths, "printed": shown.summary(), "saved": saved}


def _pool(name: str) -> tuple[Pool, PooledForecast, Any]:
    if name == "bundled pair":
        pool = Pool.read()
        return pool, PooledForecast.read(pool), pool.space(pool.about["rule"])
    pool = surfaces.draw_pool(surfaces.SURFACES[name])
    return pool, surfaces.forecast(pool), pool.space(surfaces.RULE)


def _certify(
    pool: Pool, sequence: Frozen, wanted: float, originals: Sequence[Problem], looks: int
) -> SequenceVerdict | None:
    part = [_copy(problem, _COPIES + place) for place, problem in enumerate(originals)]
    copies = {copy.id: problem for copy, problem in zip(part, originals, strict=True)}
    return certify_on_pool(CountingPool(pool, reuse=True, copies=copies), sequence, part, wanted, looks)


def _decided(verdict: SequenceVerdict | None) -> tuple[bool, int]:
    """Returns whether anything is certified, and what was decoded: by the target as far as by any setting."""
    decoded = [] if verdict is None else [evidence.paired.problems for evidence in verdict.tested]
    return verdict is not None and verdict.passed is not None, sum(decoded) + max(decoded, default=0)


def _judged(verdict: SequenceVerdict | None, truths: Sequence[Whole], wanted: float) -> tuple[bool, list[bool] | None]:
    """Returns whether a certificate is false, and which of its bounds are wrong; None: there is none."""
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
