"""What the project says of itself on a GPU, held against what `gpu.py` found. Knows nothing of how it was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from lib.common.claims import Claim

CHANCES = (0.8, 0.4)  # of a drafted token to be accepted; the first where only one is asked
_FLOOR, _ASSISTED, _BATCHING, _LAW, _RECORDING, _JUDGING, _TRAINING = 1.3, 4.0, 20.0, 0.05, 0.01, 0.02, 60.0
_ERROR = 1e-5
_ROUNDING = 2.0**-6  # of attention in bf16, whose weights and results are rounded to 8 bits

Found = Mapping[str, Any]


def claims(found: Found) -> Iterator[Claim]:
    made = found.get("rounds", {"rounds": [], "assisted": []})
    rounds = [*made["rounds"], *found.get("compiled", [])]
    yield from _rounds(_fastest(rounds), made["assisted"])
    yield from _law(rounds)
    if told := found.get("recording"):
        share = told["recorded_milliseconds"] / told["silent_milliseconds"] - 1
        yield _at_most("recording, share of a round", _RECORDING, share)
    yield from _kernels(found.get("kernels", []), _fastest(rounds))
    for one in found.get("attention", []):
        where = f"batch {one['rows']}, {one['queries']} queries"
        yield _at_most(f"error of attention in bf16, {where}", _ROUNDING, one["errors"]["ours"])
        times = one["milliseconds"]
        yield _at_least(f"attention with keys repeated / ours, {where}", 1, times["repeated"] / times["ours"])
    for who, waits in found.get("waiting", {}).items():
        if who != "a stop policy":  # which waits, but for what is over
            yield _at_most(f"waits of the host a round, {who} looking", 1, waits)
    if stopped := found.get("stopping"):
        yield _at_most("a stop policy's round, asked ahead / on time", 1, stopped["ahead"] / stopped["on time"])
    for one in found.get("equality", []):
        where = f"{one['called']}, {one['dtype']}, {one['rule']}, temperature {one['temperature']:g}"
        yield _at_least(f"texts that are the CPU's, {where}", 1, one["equal"])
    if found.get("training"):
        yield _at_most("training the bundled pair, s", _TRAINING, found["training"]["seconds"])


def _fastest(rounds: list[Found]) -> dict[tuple[int, int, int], Found]:
    """Of the ways to call rounds, the fastest: by context, L and rows."""
    slowest_first = sorted(rounds, key=lambda one: -float(one["milliseconds"]))
    asked = [one for one in slowest_first if one["chance"] == CHANCES[0]]
    return {(one["context"], one["draft_length"], one["rows"]): one for one in asked}


def _rounds(best: Mapping[tuple[int, int, int], Found], assisted: list[Found]) -> Iterator[Claim]:
    for (context, length, rows), one in sorted(best.items()):
        where, alone = f"L = {length}, context {context}", best[context, length, 1]
        ratio = one["milliseconds"] / one["floor_milliseconds"]
        yield _at_most(f"round / memory floor, {where}, batch {rows}", _FLOOR, ratio)
        if rows == 32:
            gain = one["tokens_a_second"] / alone["tokens_a_second"]
            yield _at_least(f"tokens/s, batch 32 / batch 1, {where}", _BATCHING, gain)
    for one in assisted:
        ours = best[one["context"], one["draft_length"], 1]["milliseconds"]
        where = f"L = {one['draft_length']}, context {one['context']}"
        yield _at_least(f"assisted generation's round / ours, {where}", _ASSISTED, one["milliseconds"] / ours)


def _law(rounds: list[Found]) -> Iterator[Claim]:
    """A round takes as long whatever it accepts, so tokens/s grow as tokens a round do."""
    for high, low in pairwise(rounds):
        if (high["chance"], low["chance"]) == CHANCES:
            foretold = high["tokens_a_round"] / low["tokens_a_round"]
            error = abs(high["tokens_a_second"] / low["tokens_a_second"] / foretold - 1)
            where = f"L = {high['draft_length']}, context {high['context']}, compile {high['compile']}"
            yield _at_most(f"error of tokens/s foretold, {where}", _LAW, error)


def _kernels(kernels: list[Found], best: Mapping[tuple[int, int, int], Found]) -> Iterator[Claim]:
    alone = [one["milliseconds"] for (_, _, rows), one in best.items() if rows == 1]
    for one in kernels:
        where = f"V = {one['vocabulary']}, {one['dtype']}"
        yield _at_most(f"error of divergences, {where}", _ERROR, max(one["errors"].values()))
        yield _at_least(f"choices that are the CPU's, {where}", 1, one["choices"])
        if alone and one["vocabulary"] == 128_256:
            yield _at_most(
                f"divergences and choices, share of a round, {where}", _JUDGING, one["milliseconds"] / min(alone)
            )


def _at_most(name: str, wanted: float, value: float) -> Claim:
    return Claim(name, f"<= {wanted:g}", value, value, value <= wanted)


def _at_least(name: str, wanted: float, value: float) -> Claim:
    return Claim(name, f">= {wanted:g}", value, value, value >= wanted)
