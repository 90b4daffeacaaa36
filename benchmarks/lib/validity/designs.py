"""Designs of a certificate beside each other, on the same outcomes: how often it passes, and how much it decodes.

Attempts go through the real ledger, holdout and test. Where every certificate is false and problems are independent,
runs that pass at no look are found by p-values of many runs at once, and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.certificate import Evidence
from fsd_calib.certification.looks import Looks
from fsd_calib.certification.power import cells
from lib.validity.given_passing import Coverage, Truth
from lib.validity.groups import ACCURACY, Grouped, counted
from lib.validity.replayed import Step, opened, problems_of
from lib.validity.shares import Share, line, own_level, summarise
from lib.validity.sizes import Counts
from lib.validity.worlds import WANTED, passes

DESIGNS = (1, 2, 5, 10, 20)  # looks
_PRINTED = 300  # certificates of each, whose bounds are judged


@dataclass(frozen=True)
class Independent:
    """A population of problems with these paired outcomes. more: what is kept beyond what is wanted."""

    problems: int
    churn: float
    more: float = 0.0

    def draw(self, runs: int, rng: np.random.Generator) -> Counts:
        """Draws kinds of outcomes, (runs, problems)."""
        return rng.choice(4, size=(runs, self.problems), p=self.law).astype(np.int64)

    @property
    def law(self) -> Any:
        return cells(ACCURACY, self.churn, WANTED + self.more)


def designs(
    false: Sequence[Independent], true: Sequence[Independent], grouped: Sequence[Grouped], runs: int,
    rng: np.random.Generator,
) -> dict[str, Any]:  # fmt: skip
    """Simulates certificates of what is just false, alone and in groups, and of what is true.

    Args:
        runs: Of each population whose certificates are true; a false one has five times as many, which are sifted.
    """
    shares, shown, rows = list[Share](), Coverage(), list[dict[str, Any]]()
    for of in false:
        kinds, what = of.draw(5 * runs, rng), line(of.problems, of.churn, "just false")
        for looks in DESIGNS:
            at = Looks.evenly(of.problems, looks)
            between = np.stack([counted(part) for part in np.split(kinds, at.problems[:-1], axis=1)])
            passing = kinds[passes(between, at, own_level(1))]
            passed = [each for each in _decided(of.problems, 1, passing, looks) if each.passed]
            shares.append(Share(what, _looks(looks), len(passed) / len(kinds)))
    for these in grouped:
        kinds, what = these.draw(runs, rng), line(these.problems, these.churn, f"just false, groups of {these.each}")
        for looks in DESIGNS:
            passed = [each for each in _decided(these.problems, these.each, kinds, looks) if each.passed]
            shares.append(Share(what, _looks(looks), len(passed) / runs))
    for of in true:
        kinds, truth = of.draw(runs, rng), Truth.of(of.law)
        for looks in DESIGNS:
            decided = _decided(of.problems, 1, kinds, looks)
            passed = [each for each in decided if each.passed]
            given = [each.given_passing for each in passed[:_PRINTED] if each.given_passing is not None]
            shown.add(
                line(_looks(looks), of.problems, of.churn, WANTED + of.more), [truth.wrong(each) for each in given]
            )
            rows.append({
                "problems": of.problems, "churn": of.churn, "retention": WANTED + of.more, "looks": looks,
                "power": len(passed) / runs,
                "decoded": float(np.mean([each.paired.problems for each in decided])) / of.problems,
                "bound": float(np.median([each.kept for each in given])) if given else None,
            })  # fmt: skip
    columns = "problems | churn | what | looks, then the share of false certificates"
    found = summarise(shares, columns, own_level(1), runs)
    return found | {"wanted": WANTED, "accuracy": ACCURACY, "printed": shown.summary(), "true": rows}


def _looks(looks: int) -> str:
    return f"{looks} look{'s' * (looks > 1)}"


def _decided(problems: int, each: int, kinds: Counts, looks: int) -> list[Evidence]:
    """Returns what decided each of the runs, (runs, problems), each of which has a ledger of its own."""
    step, found = Step(problems_of(range(problems), each=each)), list[Evidence]()
    for run in kinds:
        with AttemptLedger(None) as ledger:
            found += opened(ledger, step, run, looks).decide().tested
    return found
