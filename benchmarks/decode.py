"""Decoding speed compared with transformers and with what the project claims: `python benchmarks/decode.py`.

Everything is greedy and in fp32. All contenders decode the same prompts, given as token ids, up to the same length, and
count EOS as a token. Prints tables, and writes all results to `--out` as JSON.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers.utils import logging

from lib.common.claims import Claim, claims_table
from lib.common.machine import machine_facts
from lib.common.results import write_and_print
from lib.decoding.contest import batching, contest
from lib.decoding.forecast import forecasts
from lib.decoding.pairs import Pair, bundled, random_pair
from lib.decoding.rounds import recording

_DRAFT_LENGTH, _BATCH = 5, 32
_ORDER = ("generate", "assisted", "target", "sd", "sd captured", "sd compiled")  # of the table; FSD follows

_SPEED_UPS = [
    ("sd", "assisted", 1.6),
    ("sd captured", "assisted", 1.6),
    ("sd compiled", "assisted", 2.2),
    ("target", "generate", 1.0),
]
_BATCHING, _RECORDING, _FORECAST = 6.0, 1.05, 0.10


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    texts: int | None  # new tokens at most; None: as the task has it
    random_texts: int  # the same, of random pairs
    prompts: int
    random_prompts: int
    repeats: int
    stream: int  # prompts decoded in batches
    stream_repeats: int
    recorded: int  # prompts of a recorded batch
    lengths: tuple[int, ...]  # L of the forecast
    batches: tuple[int, ...]  # batch sizes of the forecast
    known: int  # prompts that costs are measured on
    forecast: int  # prompts of the forecast in all
    forecast_repeats: int


_FULL = Plan(None, 128, 6, 2, 8, 128, 6, 32, (2, 4, 6, 8), (1, 8), 12, 24, 8)
_QUICK = Plan(24, 12, 2, 1, 2, 4, 1, 4, (2, 4), (1, 2), 3, 6, 1)


def pairs(plan: Plan) -> list[Pair]:
    """Returns the bundled pair and two random ones, whose `echo` was chosen so that `sd` accepts about 70 %."""
    return [
        bundled(max(plan.stream, plan.forecast), plan.texts),
        random_pair(12, 256, 0.02, plan.random_prompts, plan.random_texts),
        random_pair(24, 192, 0.015, plan.random_prompts, plan.random_texts),
    ]


def measure(plan: Plan, compiled: bool) -> dict[str, Any]:
    bundled_pair, *deep = pairs(plan)
    few = [bundled_pair.first(plan.prompts), *deep]
    return {
        # Compiling the last and deepest pair would take longer than all the rest.
        "contests": [_contest(pair, plan.repeats, compiled and pair is not few[-1]) for pair in few],
        "batching": batching(bundled_pair.first(plan.stream), _DRAFT_LENGTH, _BATCH, plan.stream_repeats),
        "recording": [
            *(recording(pair, _DRAFT_LENGTH, 1, plan.repeats) for pair in few),
            recording(bundled_pair.first(plan.recorded), _DRAFT_LENGTH, _BATCH, plan.repeats),
        ],
        "forecast": forecasts(
            bundled_pair.first(plan.forecast), plan.known, plan.lengths, plan.batches, plan.forecast_repeats
        ),
    }


def _contest(pair: Pair, repeats: int, compiled: bool) -> dict[str, Any]:
    """Times one pair, and prints its speeds as soon as they are known, since a full run takes a while."""
    timed = contest(pair, _DRAFT_LENGTH, repeats, compiled)
    print(speeds(timed), end="\n\n", flush=True)
    return timed


def speeds(contest: Mapping[str, Any]) -> str:
    """Returns lines with one pair's tokens per second: median and quartiles over repeats."""
    rates, rounds = contest["tokens_per_second"], contest["rounds"]
    names = [name for name in _ORDER if name in rates] + [name for name in rates if name not in _ORDER]
    target, draft = (f"{size / 1e6:.1f} M" for size in contest["parameters"])
    lines = [f"{contest['pair']}: {target} parameters and {draft}, batch 1, L = {_DRAFT_LENGTH}"]
    lines.append(f"  share of same texts: {contest['same_texts']}")
    for name in names:
        counts, rate = rounds.get(name), rates[name]
        detail = f", {counts['tokens_a_round']:.2f} a round, {counts['accepted']:.0%} accepted" if counts else ""
        lines.append(f"  {name:16s} {rate.median:7.1f} tokens/s ({rate.low:.1f} to {rate.high:.1f}){detail}")
    return "\n".join(lines)


def claims_of(results: Mapping[str, Any]) -> list[Claim]:
    return [*_of_contests(results), _of_batching(results), *_of_recording(results), _of_forecast(results)]


def _of_contests(results: Mapping[str, Any]) -> Iterator[Claim]:
    for ours, theirs, wanted in _SPEED_UPS:
        for timed in results["contests"]:
            name = f"{ours} / transformers' {theirs}, {timed['pair']}, batch 1"
            yield Claim.faster(name, wanted, timed["ratios"].get(f"{ours} / {theirs}"))


def _of_batching(results: Mapping[str, Any]) -> Claim:
    batched = results["batching"]
    return Claim.faster(f"sd, batch {batched['batch']} / batch 1, {batched['pair']}", _BATCHING, batched["ratio"])


def _of_recording(results: Mapping[str, Any]) -> Iterator[Claim]:
    for recorded in results["recording"]:
        name = f"a round recorded / not, {recorded['pair']}, batch {recorded['batch']}"
        yield Claim.at_most_times(name, _RECORDING, recorded["ratio"])


def _of_forecast(results: Mapping[str, Any]) -> Claim:
    """Here the bound is the largest error of the grid."""
    errors = [forecast["error"] for forecast in results["forecast"]["forecasts"]]
    name = f"error of predicted tokens/s, rounds counted, {len(errors)} settings (median; bound: the worst)"
    return Claim(name, f"<= {_FORECAST:g}", median(errors), max(errors), max(errors) <= _FORECAST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run, whose numbers mean nothing")
    parser.add_argument("--no-compile", action="store_true", help="leave out compiled models")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "decode.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    began, machine = time.perf_counter(), machine_facts()
    measured = measure(_QUICK if options.quick else _FULL, compiled=not (options.quick or options.no_compile))
    claims = claims_of(measured)
    results = {"machine": machine, "quick": options.quick, "draft_length": _DRAFT_LENGTH, "claims": claims, **measured}
    results["seconds"] = time.perf_counter() - began
    text = "a smoke run: too few repeats for any claim" if options.quick else claims_table(claims)
    write_and_print(results, options.out, text)


if __name__ == "__main__":
    main()
