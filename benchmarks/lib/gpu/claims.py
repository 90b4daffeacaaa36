"""What the project claims of itself on a GPU, compared with what `gpu.py` measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from lib.common.claims import Claim

CHANCES = (0.8, 0.4)  # acceptance rates that are imposed; where only one is measured, the first
_FLOOR, _ASSISTED, _BATCHING, _PROPORTIONALITY = 1.3, 4.0, 20.0, 0.05
_RECORDING, _JUDGING, _TRAINING = 0.01, 0.02, 60.0
_ERROR = 1e-5
_ROUNDING = 2.0**-6  # of attention in bf16, whose weights and results are rounded to 8 bits

Row = Mapping[str, Any]


def gpu_claims(results: Mapping[str, Any]) -> Iterator[Claim]:
    """Yields the claims on all parts that were measured."""
    timed = results.get("rounds", {"rounds": [], "assisted": []})
    rounds = [*timed["rounds"], *results.get("compiled", [])]
    yield from _rounds(_fastest(rounds), timed["assisted"])
    yield from _proportionality(rounds)
    if recording := results.get("recording"):
        share = recording["recorded_milliseconds"] / recording["silent_milliseconds"] - 1
        yield Claim.at_most("recording, share of a round", _RECORDING, share)
    yield from _kernels(results.get("kernels", []), _fastest(rounds))
    yield from _attention(results.get("attention", []))
    for reader, waits in results.get("waiting", {}).items():
        if reader != "a stop policy":  # it waits too, but only for a step that is done already
            yield Claim.at_most(f"waits of the host a round, {reader} looking", 1, waits)
    if stopping := results.get("stopping"):
        ratio = stopping["ahead"] / stopping["on time"]
        yield Claim.at_most("a stop policy's round, asked ahead / on time", 1, ratio)
    for row in results.get("equality", []):
        where = f"{row['called']}, {row['dtype']}, {row['rule']}, temperature {row['temperature']:g}"
        yield Claim.at_least(f"texts that are the CPU's, {where}", 1, row["equal"])
    if results.get("training"):
        yield Claim.at_most("training the bundled pair, s", _TRAINING, results["training"]["seconds"])


def _fastest(rounds: list[Row]) -> dict[tuple[int, int, int], Row]:
    """Returns the fastest way to run rounds, by context, L and rows."""
    slowest_first = sorted(rounds, key=lambda row: -float(row["milliseconds"]))
    comparable = [row for row in slowest_first if row["chance"] == CHANCES[0]]
    return {(row["context"], row["draft_length"], row["rows"]): row for row in comparable}


def _rounds(best: Mapping[tuple[int, int, int], Row], assisted: list[Row]) -> Iterator[Claim]:
    for (context, length, rows), row in sorted(best.items()):
        where, single = f"L = {length}, context {context}", best[context, length, 1]
        ratio = row["milliseconds"] / row["floor_milliseconds"]
        yield Claim.at_most(f"round / memory floor, {where}, batch {rows}", _FLOOR, ratio)
        if rows == 32:
            gain = row["tokens_a_second"] / single["tokens_a_second"]
            yield Claim.at_least(f"tokens/s, batch 32 / batch 1, {where}", _BATCHING, gain)
    for row in assisted:
        ours = best[row["context"], row["draft_length"], 1]["milliseconds"]
        where = f"L = {row['draft_length']}, context {row['context']}"
        yield Claim.at_least(f"assisted generation's round / ours, {where}", _ASSISTED, row["milliseconds"] / ours)


def _proportionality(rounds: list[Row]) -> Iterator[Claim]:
    """A round takes the same time whatever it accepts, so tokens/s are proportional to tokens per round."""
    for high, low in pairwise(rounds):
        if (high["chance"], low["chance"]) == CHANCES:
            predicted = high["tokens_a_round"] / low["tokens_a_round"]
            error = abs(high["tokens_a_second"] / low["tokens_a_second"] / predicted - 1)
            where = f"L = {high['draft_length']}, context {high['context']}, compile {high['compile']}"
            yield Claim.at_most(f"error of tokens/s foretold, {where}", _PROPORTIONALITY, error)


def _kernels(kernels: list[Row], best: Mapping[tuple[int, int, int], Row]) -> Iterator[Claim]:
    single = [row["milliseconds"] for (_, _, rows), row in best.items() if rows == 1]
    for row in kernels:
        where = f"V = {row['vocabulary']}, {row['dtype']}"
        yield Claim.at_most(f"error of divergences, {where}", _ERROR, max(row["errors"].values()))
        yield Claim.at_least(f"choices that are the CPU's, {where}", 1, row["choices"])
        if single and row["vocabulary"] == 128_256:
            share = row["milliseconds"] / min(single)
            yield Claim.at_most(f"divergences and choices, share of a round, {where}", _JUDGING, share)


def _attention(rows: list[Row]) -> Iterator[Claim]:
    for row in rows:
        where, times = f"batch {row['rows']}, {row['queries']} queries", row["milliseconds"]
        yield Claim.at_most(f"error of attention in bf16, {where}", _ROUNDING, row["errors"]["ours"])
        yield Claim.at_least(f"attention with keys repeated / ours, {where}", 1, times["repeated"] / times["ours"])
