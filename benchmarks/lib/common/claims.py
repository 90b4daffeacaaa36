"""Claims about speed, memory or accuracy, each compared with its measurement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lib.common.timing import Ratio


@dataclass(frozen=True)
class Claim:
    """A claim and its measurement.

    `bound` is the one-sided 95 % confidence bound on the side that speaks against the claim, and decides it. Where
    there is none it is the measured value itself.
    """

    name: str
    wanted: str
    measured: float | None  # None: was not measured
    bound: float | None
    reached: bool | None

    @classmethod
    def at_most(cls, name: str, wanted: float, measured: float) -> Claim:
        return cls(name, f"<= {wanted:g}", measured, measured, measured <= wanted)

    @classmethod
    def at_least(cls, name: str, wanted: float, measured: float) -> Claim:
        return cls(name, f">= {wanted:g}", measured, measured, measured >= wanted)

    @classmethod
    def faster(cls, name: str, wanted: float, ratio: Ratio | None) -> Claim:
        """A claim that one is at least `wanted` times as fast as another. ratio: None if it was not measured."""
        if ratio is None:
            return cls(name, f">= {wanted:g}x", None, None, None)
        return cls(name, f">= {wanted:g}x", ratio.median, ratio.at_least, ratio.at_least >= wanted)

    @classmethod
    def at_most_times(cls, name: str, wanted: float, ratio: Ratio) -> Claim:
        """A claim that something takes at most `wanted` times as long as without."""
        return cls(name, f"<= {wanted:g}x", ratio.median, ratio.at_most, ratio.at_most <= wanted)

    def row(self) -> str:
        numbers = ("" if n is None else f"{n:.3f}" for n in (self.measured, self.bound))
        verdict = {True: "yes", False: "NO", None: "not measured"}[self.reached]
        return " | ".join(["", self.name, self.wanted, *numbers, verdict, ""]).strip()


def claims_table(claims: Iterable[Claim]) -> str:
    """Returns a table in Markdown."""
    head = ["| claim | wanted | measured | 95 % bound | reached |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*head, *(claim.row() for claim in claims)])


def reached(claims: Iterable[Claim]) -> bool:
    """Whether all that was measured is as claimed."""
    return all(claim.reached is not False for claim in claims)
