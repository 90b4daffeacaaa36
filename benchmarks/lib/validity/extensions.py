"""Certificates that go on with more problems after a first attempt, beside a further attempt and all problems at once.

How many more there are follows from what the first attempt showed, by the rule that would make the most false
certificates if all problems were simply pooled. Attempts go through the real ledger, holdout and test; of what is just
false, runs that pass nowhere are found by p-values of many runs at once, and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.certificate import Evidence
from fsd_calib.certification.looks import Looks, combined
from lib.validity.designs import Independent
from lib.validity.given_passing import Coverage, Truth
from lib.validity.groups import counted
from lib.validity.replayed import Step, opened, problems_of
from lib.validity.shares import Share, line, own_level, summarise
from lib.validity.sizes import Counts
from lib.validity.worlds import LOOKS, WANTED, p_of, passes

_MORE = (0.25, 1.0, 4.0)  # times the problems of the first attempt, of which one is chosen
_PRINTED = 300  # certificates of each, whose bounds are judged
WAYS = ("goes on", "a further attempt")


def extensions(
    false: Sequence[Independent], true: Sequence[Independent], runs: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Simulates first attempts, and what follows those that fail.

    Args:
        runs: Of each population whose certificates are true, with as many problems again; a false one has ten times as
            many, which are sifted.
    """
    shares, shown, rows = list[Share](), Coverage(), list[dict[str, Any]]()
    for of in false:
        whole = replace(of, problems=round(of.problems * (1 + max(_MORE))))
        passed = dict.fromkeys(WAYS, 0)
        for _ in range(10):  # a tenth at a time, for memory
            for way in WAYS:
                kinds = whole.draw(runs, rng)
                more = _chosen(kinds, of.problems)
                may = _may_pass(kinds, of.problems, more, way)
                passed[way] += sum(
                    _both(kinds[run], of.problems, int(more[run]), way)[-1].passed for run in np.flatnonzero(may)
                )
        shares += [Share(line(of.problems, of.churn, "just false"), way, passed[way] / (10 * runs)) for way in WAYS]
    for of in true:
        kinds, truth = replace(of, problems=2 * of.problems).draw(runs, rng), Truth.of(of.law)
        found = {way: [_both(each, of.problems, of.problems, way) for each in kinds] for way in WAYS}
        found["all at once"] = [_at_once(each) for each in kinds]
        for way, decided in found.items():
            certified = [each[-1] for each in decided if each[-1].passed]
            later = [each[-1].given_passing for each in decided if len(each) > 1 and each[-1].passed][:_PRINTED]
            shown.add(line(way, of.problems, of.churn, WANTED + of.more), [truth.wrong(one) for one in later if one])
            rows.append({
                "problems": of.problems, "churn": of.churn, "retention": WANTED + of.more, "way": way,
                "first": float(np.mean([each[0].passed for each in decided])), "certified": len(certified) / runs,
                "decoded": float(np.mean([each[-1].paired.problems for each in decided])) / (2 * of.problems),
            })  # fmt: skip
    level = own_level(1) + own_level(2)
    columns = "problems of the first attempt | churn | what | way, then the share of false certificates"
    found_of_false = summarise(shares, columns, level, 10 * runs)
    return found_of_false | {"wanted": WANTED, "printed": shown.summary(), "true": rows}


def _chosen(kinds: Counts, first: int) -> Counts:
    """Returns how many more problems each of the runs takes, (runs,): the most promising number by pooled outcomes."""
    seen, bar = -ndtri(p_of(counted(kinds[:, :first]))), -ndtri(own_level(2))
    more = np.array(_MORE)[:, None]
    chances = ndtr((seen - bar * (1 + more) ** 0.5) / more**0.5)
    return np.asarray(np.rint(first * np.array(_MORE)[chances.argmax(0)]), np.int64)


def _may_pass(kinds: Counts, first: int, more: Counts, way: str) -> Any:
    """Returns which runs pass at a look of either attempt, giving up aside."""
    at = Looks.evenly(first, LOOKS)
    may = passes(_between(kinds[:, :first], at), at, own_level(1))
    for number in np.unique(more):
        runs = more == number
        own = kinds[runs, : first + number]
        if way == "goes on":
            may[runs] |= _passes_later(own, first, at)
        else:
            again = Looks.evenly(first + int(number), LOOKS)
            may[runs] |= passes(_between(own, again), again, own_level(2))
    return may


def _passes_later(kinds: Counts, first: int, at: Looks) -> Any:
    new = Looks.evenly(kinds.shape[1] - first, LOOKS)
    looks = at.extended(new).sized([own_level(1), own_level(2)])
    p_first, size = p_of(counted(kinds[:, :first])), own_level(1) + own_level(2)
    later = p_of(_between(kinds[:, first:], new).cumsum(0))
    return np.any([
        combined(np.stack([p_first, p]), [1.0, number / new.whole]) <= looks.level(first + number, size)
        for p, number in zip(later, new.problems, strict=True)
    ], axis=0)  # fmt: skip


def _between(kinds: Counts, looks: Looks) -> Counts:
    return np.stack([counted(part) for part in np.split(kinds, looks.problems[:-1], axis=1)])


def _both(kinds: Counts, first: int, more: int, way: str) -> list[Evidence]:
    """Returns what decided the first attempt, and what the second, where the first failed."""
    problems = problems_of(range(first + more))
    with AttemptLedger(None) as ledger:
        decided = [*opened(ledger, Step(problems[:first]), kinds[:first], LOOKS).decide().tested]
        if not decided[0].passed:
            again = opened(ledger, Step(problems), kinds[: first + more], LOOKS, extends=way == "goes on")
            decided += again.decide().tested
    return decided


def _at_once(kinds: Counts) -> list[Evidence]:
    with AttemptLedger(None) as ledger:
        return [*opened(ledger, Step(problems_of(range(len(kinds)))), kinds, LOOKS).decide().tested]
