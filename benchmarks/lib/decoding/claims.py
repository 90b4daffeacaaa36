"""What the project claims of its decoding speed, compared with what `decode.py` measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from lib.common.claims import Claim

_SPEED_UPS = [
    ("sd", "assisted", 1.6),
    ("sd captured", "assisted", 1.6),
    ("sd compiled", "assisted", 2.2),
    ("target", "generate", 1.0),
]
_BATCHING, _RECORDING, _FORECAST = 6.0, 1.05, 0.10


def decoding_claims(results: Mapping[str, Any]) -> list[Claim]:
    return [*_contests(results), _batching(results), *_recording(results), _forecast(results)]


def _contests(results: Mapping[str, Any]) -> Iterator[Claim]:
    for ours, theirs, wanted in _SPEED_UPS:
        for contest in results["contests"]:
            name = f"{ours} / transformers' {theirs}, {contest['pair']}, batch 1"
            yield Claim.faster(name, wanted, contest["ratios"].get(f"{ours} / {theirs}"))


def _batching(results: Mapping[str, Any]) -> Claim:
    batching = results["batching"]
    return Claim.faster(f"sd, batch {batching['batch']} / batch 1, {batching['pair']}", _BATCHING, batching["ratio"])


def _recording(results: Mapping[str, Any]) -> Iterator[Claim]:
    for recording in results["recording"]:
        name = f"a round recorded / not, {recording['pair']}, batch {recording['batch']}"
        yield Claim.at_most_times(name, _RECORDING, recording["ratio"])


def _forecast(results: Mapping[str, Any]) -> Claim:
    """Here the bound is the largest error of the grid."""
    errors = [forecast["error"] for forecast in results["forecast"]["forecasts"]]
    name = f"error of predicted tokens/s, rounds counted, {len(errors)} settings (median; bound: the worst)"
    return Claim(name, f"<= {_FORECAST:g}", median(errors), max(errors), max(errors) <= _FORECAST)
