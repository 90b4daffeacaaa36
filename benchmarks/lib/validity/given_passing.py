"""How often what is printed beside a certificate is wrong, among certificates that were issued.

Those that pass are found by p-values of many runs at once; the real test and its bounds follow for these alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from fsd_calib.certification.certificate import certify_sequence
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.given_passing import GivenPassing
from fsd_calib.certification.looks import Looks
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.power import Cells, cells
from fsd_common.errors import UsageError
from lib.validity.shares import CONFIDENCE, allowed, line, own_level
from lib.validity.sizes import Counts
from lib.validity.worlds import LOOKS, WANTED, World, by_looks, passes

_ACCURACY = 0.8
_ABOVE = (0.0, 0.005, 0.01)  # true retention, more than what is wanted
_DRAWS = 20_000  # at once
_LADDERS = {  # places of thresholds that are tested in turn, in a world of that name
    "linear": (3, 5, 7, 9),  # .99, .985, .98 and .975 are kept
    "edge": (5, 9, 13, 17),  # all, and three times just what is wanted
    "flat": (5, 9, 13, 17),  # just what is wanted by all
    "leak": (7, 11, 15, 19),  # .991, .987, .982 and .978
}
_NAMES = ("retention", "harm", "difference", "any")


class Truth(NamedTuple):
    """What holds of a setting in its population."""

    retention: float
    harm: float
    difference: float

    @classmethod
    def of(cls, law: Cells) -> Truth:
        right = law.both_right + law.lost
        return cls((law.both_right + law.gained) / right, law.lost / right, law.gained - law.lost)

    def wrong(self, shown: GivenPassing) -> list[bool]:
        """Returns which of the lower bound, the bound of harm and the interval are wrong, and whether any is."""
        assert shown.difference is not None  # retention is claimed
        low, high = shown.difference
        each = [shown.kept > self.retention + 1e-12, shown.harm < self.harm, not low <= self.difference <= high]
        return [*each, any(each)]


@dataclass
class Coverage:
    """Rows of how often bounds are wrong."""

    rows: list[str] = field(default_factory=list)
    above: list[str] = field(default_factory=list)
    largest: dict[str, float] = field(default_factory=dict)

    def add(self, what: str, wrong: Sequence[Sequence[bool]]) -> None:
        """Adds the certificates of a population. wrong: of each, by `_NAMES`."""
        if not wrong:
            return
        shares = dict(zip(_NAMES, np.mean(wrong, 0).tolist(), strict=True))
        row = line(what, len(wrong), *shares.values())
        self.rows.append(row)
        if shares["any"] > allowed(1 - CONFIDENCE, len(wrong)):
            self.above.append(row)
        self.largest = {name: max(self.largest.get(name, 0.0), share) for name, share in shares.items()}

    def summary(self) -> dict[str, Any]:
        columns = "what | problems | churn | truth | certificates, then the share of them with a wrong bound of "
        return {
            "columns": columns + ", ".join(_NAMES), "largest": self.largest, "above": self.above, "rows": self.rows,
        }  # fmt: skip


def given_passing(
    problems: Sequence[int], churns: Sequence[float], certificates: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Simulates certificates of one setting and of sequences, which look as often as the command does.

    Args:
        certificates: At most so many of each population.
    """
    found = Coverage()
    for number, churn, more in product(problems, churns, _ABOVE):
        try:
            law = cells(_ACCURACY, churn, WANTED + more)
        except UsageError:
            continue
        wrong = _wrong([Truth.of(law)], number, lambda n: rng.multinomial(n, law, size=(_DRAWS, 1)), certificates)  # noqa: B023
        found.add(line("one setting", number, churn, WANTED + more), wrong)
    for (shape, ladder), number in product(_LADDERS.items(), problems):
        world = World(shape, number, churns[-1])
        truths = [Truth.of(Cells(*law)) for law in world.laws[list(ladder)]]

        def draw(n: int) -> Counts:
            return replace(world, problems=n).draw(_DRAWS // 4, rng)[:, ladder]  # noqa: B023

        wrong = _wrong(truths, number, draw, certificates)
        found.add(line("sequence", number, churns[-1], shape), wrong)
    return found.summary()


def _wrong(truths: Sequence[Truth], problems: int, draw: Callable[[int], Counts], most: int) -> list[list[bool]]:
    """Returns what is wrong of each certificate, by `_NAMES`.

    Args:
        truths: Of the settings, in the order in which they are tested.
        draw: Counts of so many problems, (runs, settings, 4).
        most: Certificates.
    """
    looks, delta, wrong = Looks.evenly(problems, LOOKS), own_level(1), list[list[bool]]()
    claim = Claim(WANTED, looks=looks, confidence=CONFIDENCE)
    for _ in range(3):
        between = by_looks(looks, draw)
        passing = np.flatnonzero(passes(between[:, :, 0], looks, delta))
        for run in passing[: most - len(wrong)]:
            settings = between[:, run].transpose(1, 0, 2).tolist()  # (settings, looks, 4)
            verdict = certify_sequence((prefixes(counts) for counts in settings), claim, delta)
            if verdict.passed is not None:  # else it was given up too early
                shown = verdict.tested[verdict.passed].given_passing
                assert shown is not None
                wrong.append(truths[verdict.passed].wrong(shown))
    return wrong


def prefixes(between: Sequence[Sequence[int]]) -> list[Paired]:
    """Returns the outcomes at each look, by counts between them."""
    kinds = [np.repeat(np.arange(4), counts) for counts in between]
    return [_paired(np.concatenate(kinds[: look + 1])) for look in range(len(kinds))]


def _paired(kinds: Counts) -> Paired:
    return Paired(np.isin(kinds, (0, 1))[:, None], np.isin(kinds, (0, 2))[:, None])
