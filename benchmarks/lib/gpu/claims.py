"""What the project claims of itself on a GPU, compared with what `gpu.py` measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lib.common.claims import Claim

_FLOOR, _BATCHING, _JUDGING, _TRAINING = 1.3, 20.0, 0.02, 60.0
_ERROR = 1e-5
SMALLER = "eager, in smaller batches"  # how the texts are decoded that show what rounding changes
_ROUNDING = 2.0**-6  # of attention in bf16, whose weights and results are rounded to 8 bits

Row = Mapping[str, Any]


def gpu_claims(measured: Mapping[str, Row]) -> Iterator[Claim]:
    """Yields the claims on all that was measured, by part."""
    rows: dict[str, list[Row]] = {name: record["rows"] for name, record in measured.items()}
    for row in rows.get("attention", []):
        if row["backend"] == "any" and "error" in row:  # else it was refused
            where = f"batch {row['rows']}, {row['queries']} queries, {row['slots']} slots"
            yield Claim.at_most(f"error of attention in bf16, {where}", _ROUNDING, row["error"])
    captured = [row for row in rows.get("rounds", []) if row["called"] == "captured"]
    yield from _kernels(rows.get("kernels", []), [row["milliseconds"] for row in captured if row["rows"] == 1])
    yield from _equality(rows.get("equality", []))
    yield from _rounds(captured)
    for row in rows.get("failure", []):
        yield Claim.at_least(f"{row['step']} works", 1, row["works"])
    for row in rows.get("memory", []):
        name = f"peak of memory / plan, {row['called']}, batch {row['rows']}"
        if row["peak_bytes"] is None:
            yield Claim(name, "<= 1", None, None, None)
        else:
            yield Claim.at_most(name, 1, row["peak_bytes"] / row["planned_bytes"])
    for row in rows.get("waiting", []):
        yield Claim.at_most(f"waits of the host a round, {row['reader']} looking", 1, row["waits"])
    for row in rows.get("training", []):
        yield Claim.at_most("training the bundled pair, s", _TRAINING, row["seconds"])


def _kernels(kernels: list[Row], rounds: list[float]) -> Iterator[Claim]:
    """rounds: milliseconds of rounds of one text."""
    for row in kernels:
        where = f"V = {row['vocabulary']}, {row['dtype']}"
        yield Claim.at_most(f"error of scores, {where}", _ERROR, max(row["errors"].values()))
        yield Claim.at_least(f"choices that are the CPU's, {where}", 1, row["choices"])
        if rounds:
            share = row["milliseconds"]["fused"] / min(rounds)
            yield Claim.at_most(f"scores and choices, share of a round, {where}", _JUDGING, share)


def _equality(rows: list[Row]) -> Iterator[Claim]:
    """Claims on what does not round differently. In bf16 other batches do: captured rounds change no more than they."""
    floors = {(row["dtype"], row["rule"], row["temperature"]): row["equal"] for row in rows if row["called"] == SMALLER}
    for row in rows:
        if row["called"].startswith("captured") or row["called"] == "on a CPU":
            setting = row["dtype"], row["rule"], row["temperature"]
            wanted = 1 if row["dtype"] == "float32" else floors[setting]
            where = f"{row['called']}, {row['dtype']}, {row['rule']}, temperature {row['temperature']:g}"
            yield Claim.at_least(f"texts that are those of eager rounds, {where}", wanted, row["equal"])


def _rounds(captured: list[Row]) -> Iterator[Claim]:
    single = {row["context"]: row["tokens_a_second"] for row in captured if row["rows"] == 1}
    for row in captured:
        where = f"context {row['context']}"
        ratio = row["milliseconds"] / row["floor_milliseconds"]
        yield Claim.at_most(f"round / memory floor, {where}, batch {row['rows']}", _FLOOR, ratio)
        if row["rows"] == 32 and row["context"] in single:
            gain = row["tokens_a_second"] / single[row["context"]]
            yield Claim.at_least(f"tokens/s, batch 32 / batch 1, {where}", _BATCHING, gain)
