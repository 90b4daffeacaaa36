"""What the project says of its speed, held against a measurement.

Knows the claims and their targets. Knows nothing of how anything was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from lib.common.timing import Ratio

_SPEED_UPS = [
    ("sd", "assisted", 1.6),
    ("sd captured", "assisted", 1.6),
    ("sd compiled", "assisted", 2.2),
    ("target", "generate", 1.0),
]
_BATCHING, _RECORDING, _FORECAST = 6.0, 1.05, 0.10


@dataclass(frozen=True)
class Claim:
    """`bound` is the one-sided 95 % bound on the side that speaks against the claim, and decides it."""

    name: str
    wanted: str
    measured: float | None  # None: was not measured
    bound: float | None
    reached: bool | None

    @classmethod
    def faster(cls, name: str, wanted: float, ratio: Ratio | None) -> Claim:
        if ratio is None:
            return cls(name, f">= {wanted:g}x", None, None, None)
        return cls(name, f">= {wanted:g}x", ratio.median, ratio.at_least, ratio.at_least >= wanted)

    def row(self) -> str:
        numbers = ("" if n is None else f"{n:.3f}" for n in (self.measured, self.bound))
        verdict = {True: "yes", False: "NO", None: "not measured"}[self.reached]
        return " | ".join(["", self.name, self.wanted, *numbers, verdict, ""]).strip()


def claims(found: Mapping[str, Any]) -> list[Claim]:
    return [*_contests(found), _batching(found), *_recording(found), _forecast(found)]


def table(made: list[Claim]) -> str:
    head = ["| claim | wanted | measured | 95 % bound | reached |", "| --- | --- | --- | --- | --- |"]
    return "\n".join(head + [claim.row() for claim in made])


def _contests(found: Mapping[str, Any]) -> Iterator[Claim]:
    for a, b, wanted in _SPEED_UPS:
        for contest in found["contests"]:
            name = f"{a} / transformers' {b}, {contest['pair']}, batch 1"
            yield Claim.faster(name, wanted, contest["ratios"].get(f"{a} / {b}"))


def _batching(found: Mapping[str, Any]) -> Claim:
    batching = found["batching"]
    return Claim.faster(f"sd, batch {batching['batch']} / batch 1, {batching['pair']}", _BATCHING, batching["ratio"])


def _recording(found: Mapping[str, Any]) -> Iterator[Claim]:
    for one in found["recording"]:
        ratio, name = one["ratio"], f"a round recorded / not, {one['pair']}, batch {one['batch']}"
        yield Claim(name, f"<= {_RECORDING:g}x", ratio.median, ratio.at_most, ratio.at_most <= _RECORDING)


def _forecast(found: Mapping[str, Any]) -> Claim:
    """Here the bound is the worst error of the grid."""
    errors = [one["error"] for one in found["forecast"]["forecasts"]]
    name = f"error of predicted tokens/s, rounds counted, {len(errors)} settings (median; bound: the worst)"
    return Claim(name, f"<= {_FORECAST:g}", median(errors), max(errors), max(errors) <= _FORECAST)
