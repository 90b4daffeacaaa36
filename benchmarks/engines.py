"""Our engine beside vLLM and transformers, per CPU second: `python benchmarks/engines.py`; takes half an hour.

It runs in the environment that has vLLM (`sh install.sh vllm`). Everything is greedy, in fp32, eager and on one core.
Each engine is a process of its own, and they decode the same prompts in turns: with the target alone, and with `sd` at
the L that is each engine's best, at batch 1 and 32, on the bundled pair and on a random one as deep as a small real
model. transformers, whose assisted generation decodes one text at a time, takes part at batch 1. Our engine takes part
twice: as it is, and with transformers' modules in place of its lean forward pass. The exit code is 1 if a claim is not
reached.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lib.common.claims import Claim, claims_table, reached
from lib.common.results import write_and_print
from lib.engines import pairs
from lib.engines.contest import NOT_LEAN, OURS, SD, TARGET, TRANSFORMERS, VLLM, Amount, Contestant, contest, ratio
from lib.engines.own import OwnSettings
from lib.engines.processes import Served, Settings, openmp, pin, serve
from lib.engines.transformers import TransformersSettings
from lib.engines.vllm import SETTINGS, VllmSettings
from lib.engines.work import Work

_OVER_VLLM = {1: 2.0, 32: 1.1}  # wanted, by batch size
_OVER_ASSISTED = 2.0


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    bundled: tuple[Amount, ...]
    random: tuple[Amount, ...]
    texts: int | None  # new tokens at most on the bundled pair; None: as the task has it
    random_texts: int  # the same on the random pair
    lengths: tuple[int, ...]  # L that `sd` may have


_FULL = Plan(
    (Amount(1, 25, 10, 5, 10, 3), Amount(32, 128, 64, 64, 10, 3)),
    (Amount(1, 4, 2, 1, 10, 2), Amount(32, 32, 32, 32, 10, 1)),
    None, 64, (3, 5, 8, 12),
)  # fmt: skip
_QUICK = Plan(
    (Amount(1, 4, 2, 2, 2, 1), Amount(32, 32, 32, 32, 2, 1)), (Amount(1, 1, 1, 1, 2, 1), Amount(32, 4, 4, 4, 2, 1)),
    None, 16, (3, 5),
)  # fmt: skip


def measure(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    bundled = pairs.bundled(_prompts(plan.bundled), plan.texts)
    random = pairs.random(folder, _prompts(plan.random), plan.random_texts)
    return [_measure(pair, plan.lengths, amounts) for pair, amounts in ((bundled, plan.bundled), (random, plan.random))]


def _prompts(amounts: Sequence[Amount]) -> int:
    return max(amount.prompts + amount.choosing for amount in amounts)


def _measure(pair: pairs.SavedPair, lengths: Sequence[int], amounts: Sequence[Amount]) -> dict[str, Any]:
    found: dict[int, Any] = {}
    with serve(_engines(pair, lengths)) as served:
        for amount in amounts:
            prompts = pair.prompts[: amount.prompts + amount.choosing]
            work = Work(prompts, tuple(range(len(prompts))), pair.max_new_tokens, (), amount.batch)
            found[amount.batch] = contest(_contestants(served, lengths, amount.batch), work, amount)
            print(table(pair.name, found[amount.batch]), end="\n\n", flush=True)
    return {"pair": pair.name, "about": pair.about, "max_new_tokens": pair.max_new_tokens, "batches": found}


def _engines(pair: pairs.SavedPair, lengths: Sequence[int]) -> dict[str, Settings]:
    """The engines by name; vLLM needs one for each L."""
    return {
        OURS: OwnSettings(pair.models),
        NOT_LEAN: OwnSettings(pair.models, lean=False),
        TRANSFORMERS: TransformersSettings(pair.models),
        VLLM: VllmSettings(pair.models),
        **{f"{VLLM} {length}": VllmSettings(pair.models, length) for length in lengths},
    }


def _contestants(served: Mapping[str, Served], lengths: Sequence[int], batch: int) -> dict[str, Contestant]:
    exact = {length: partial(served[f"{VLLM} {length}"].decode, way="") for length in lengths}
    found = {
        OURS: Contestant.of(served[OURS], lengths),
        NOT_LEAN: Contestant.of(served[NOT_LEAN], lengths),
        VLLM: Contestant(partial(served[VLLM].decode, way=""), exact),
    }
    # It assists one text at a time.
    return found if batch > 1 else found | {TRANSFORMERS: Contestant.of(served[TRANSFORMERS], lengths)}


def engine_claims(contests: Mapping[int, Mapping[str, Any]]) -> Iterator[Claim]:
    """Claims of the bundled pair.

    Args:
        contests: what was measured, by batch size.
    """
    wanted = [(way, VLLM, batch, times) for way in (TARGET, SD) for batch, times in _OVER_VLLM.items()]
    for way, peer, batch, times in [*wanted, (SD, TRANSFORMERS, 1, _OVER_ASSISTED)]:
        name = ratio(way, peer)
        yield Claim.faster(f"{name}, tokens per CPU second, batch {batch}", times, contests[batch]["speed_ups"][name])


def table(pair: str, found: Mapping[str, Any]) -> str:
    """Returns lines with the speeds at one batch size: medians and quartiles over repeats."""
    best = ", ".join(f"{lengths.best} ({name})" for name, lengths in found["sd_lengths"].items())
    lines = [f"{pair}, batch {found['batch']}, {found['prompts']} prompts; L of sd: {best}"]
    for name, about in found["contestants"].items():
        cpu, wall = about["tokens_per_cpu_second"], about["tokens_per_second"]
        lines.append(
            f"  {name:22s} {cpu.median:7.1f} tokens per CPU second ({cpu.low:.1f} to {cpu.high:.1f}), "
            f"{wall.median:.1f} by the clock"
        )
    for name, times in found["speed_ups"].items():
        same = found["same_texts"][name]
        lines.append(f"  {name}: {times.median:.3f} ({times.at_least:.3f} to {times.at_most:.3f}), {same} same texts")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run, whose numbers mean nothing")
    parser.add_argument("--core", type=int, help="default: the last one")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "engines.json")
    options = parser.parse_args()
    began, core = time.perf_counter(), pin(options.core)
    from lib.common.machine import machine_facts  # it loads torch, which each engine loads for itself

    machine = machine_facts() | {"core": core, "threads": 1, "intel_openmp": openmp() is not None}
    with tempfile.TemporaryDirectory(prefix="engines-") as folder:
        measured = measure(_QUICK if options.quick else _FULL, Path(folder))
    claims = list(engine_claims(measured[0]["batches"]))
    results = {"machine": machine, "quick": options.quick, "vllm_settings": SETTINGS, "claims": claims,
               "pairs": measured, "seconds": time.perf_counter() - began}  # fmt: skip
    text = "a smoke run: too few repeats for any claim" if options.quick else claims_table(claims)
    write_and_print(results, options.out, text)
    return 0 if options.quick or reached(claims) else 1


if __name__ == "__main__":
    sys.exit(main())
