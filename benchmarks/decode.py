"""How fast is decoding, against transformers and against what is claimed: `python benchmarks/decode.py`.

Knows what is measured and how much of it. Prints tables, and writes everything to `--out` as JSON. Greedy and in
fp32 throughout; everyone decodes the same prompts, as token ids, up to the same length, and counts an EOS.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from lib.common.claims import claims, table
from lib.common.machine import facts
from lib.decoding.contest import batching, contest
from lib.decoding.forecast import forecasts
from lib.decoding.pairs import Pair, bundled, random_pair
from lib.decoding.rounds import recording

_DRAFT_LENGTH, _BATCH = 5, 32
_SEEN = ("generate", "assisted", "target", "sd", "sd captured", "sd compiled")  # in the order of the table; then FSD


@dataclass(frozen=True)
class Plan:
    """How much is measured: prompts, tokens and repeats. `texts` None: as long as the task lets them be."""

    texts: int | None
    random_texts: int
    prompts: int
    random_prompts: int
    repeats: int
    stream: int  # prompts decoded in batches
    stream_repeats: int
    recorded: int  # prompts of a recorded batch
    lengths: tuple[int, ...]  # L, batch sizes and prompts of the forecast: to learn from, and in all
    batches: tuple[int, ...]
    known: int
    forecast: int
    forecast_repeats: int


_FULL = Plan(None, 128, 6, 2, 8, 128, 6, 32, (2, 4, 6, 8), (1, 8), 12, 24, 8)
_QUICK = Plan(24, 12, 2, 1, 2, 4, 1, 4, (2, 4), (1, 2), 3, 6, 1)


def pairs(plan: Plan) -> list[Pair]:
    """The bundled pair and two random ones, whose `echo` was chosen so that `sd` accepts about .7."""
    return [
        bundled(max(plan.stream, plan.forecast), plan.texts),
        random_pair(12, 256, 0.02, plan.random_prompts, plan.random_texts),
        random_pair(24, 192, 0.015, plan.random_prompts, plan.random_texts),
    ]


def measure(plan: Plan, compiled: bool) -> dict[str, Any]:
    own, *deep = pairs(plan)
    few = [own.first(plan.prompts), *deep]  # compiling the last and deepest would take longer than all the rest
    return {
        "contests": [
            _told(contest(pair, _DRAFT_LENGTH, plan.repeats, compiled and pair is not few[-1])) for pair in few
        ],
        "batching": batching(own.first(plan.stream), _DRAFT_LENGTH, _BATCH, plan.stream_repeats),
        "recording": [
            *(recording(pair, _DRAFT_LENGTH, 1, plan.repeats) for pair in few),
            recording(own.first(plan.recorded), _DRAFT_LENGTH, _BATCH, plan.repeats),
        ],
        "forecast": forecasts(own.first(plan.forecast), plan.known, plan.lengths, plan.batches, plan.forecast_repeats),
    }


def _told(contest: dict[str, Any]) -> dict[str, Any]:
    """Prints one pair's speeds as soon as they are there: a full run takes a while."""
    print(speeds(contest), end="\n\n", flush=True)
    return contest


def speeds(contest: Mapping[str, Any]) -> str:
    """One pair's tokens per second: median and quartiles over repeats."""
    found, rounds = contest["tokens_per_second"], contest["rounds"]
    names = [name for name in _SEEN if name in found] + [name for name in found if name not in _SEEN]
    target, draft = (f"{size / 1e6:.1f} M" for size in contest["parameters"])
    lines = [f"{contest['pair']}: {target} parameters and {draft}, batch 1, L = {_DRAFT_LENGTH}"]
    lines.append(f"  share of same texts: {contest['same_texts']}")
    for name in names:
        counted = rounds.get(name)
        said = f", {counted['tokens_a_round']:.2f} a round, {counted['accepted']:.0%} accepted" if counted else ""
        speed = found[name]
        lines.append(f"  {name:16s} {speed.median:7.1f} tokens/s ({speed.low:.1f} to {speed.high:.1f}){said}")
    return "\n".join(lines)


def plain(value: object) -> Any:
    """For `json`, which knows no dataclasses."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{value!r} has no place in the results")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test: its numbers say nothing of speed")
    parser.add_argument("--no-compile", action="store_true", help="leave out what is compiled first")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "decode.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    began, machine = time.perf_counter(), facts()
    found = measure(_QUICK if options.quick else _FULL, compiled=not (options.quick or options.no_compile))
    made = claims(found)
    whole = {"machine": machine, "quick": options.quick, "draft_length": _DRAFT_LENGTH, "claims": made, **found}
    whole["seconds"] = time.perf_counter() - began
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(whole, indent=1, default=plain) + "\n")
    print("a smoke run: too few repeats to say anything" if options.quick else table(made))
    print(f"\n{whole['seconds']:.0f} s; {options.out}")


if __name__ == "__main__":
    main()
