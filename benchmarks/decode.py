"""Speed of our engine, and what changes it: `python benchmarks/decode.py`; a quarter of an hour on two cores.

Rounds that are called as graphs or compiled, batches, recorded scores, and tokens per second foretold from costs,
on the bundled pair and on random ones. Everything is greedy and in fp32. All contenders decode the same prompts, given
as token ids, up to the same length, take turns, and count EOS as a token. `engines.py` measures how fast it is beside
vLLM and transformers.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from transformers.utils import logging

from fsd_calib import SpeculativeDecoder
from fsd_decoding.divergence import DIVERGENCES
from fsd_decoding.engine.result import Result
from fsd_decoding.observers.round_log import Recorder
from fsd_decoding.observers.round_record import together
from lib.common.claims import Claim
from lib.common.results import conclude, machine_facts, options_of
from lib.common.timing import Run, rates, speed_up, take_turns
from lib.forecast import RoundClock, forecasts
from lib.pairs import Pair, bundled, random_pair

_DRAFT_LENGTH, _BATCH = 5, 32
_CAPTURED, _COMPILED = 1.0, 1.0  # wanted, over `sd` with rounds that are called directly
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


def measure(plan: Plan, compiled: bool) -> dict[str, Any]:
    """Measures the bundled pair and two random ones, whose `echo` was chosen so that `sd` accepts about 70 %."""
    pair = bundled(max(plan.stream, plan.forecast), plan.texts)
    deep = [random_pair(12, 256, 0.02, plan.random_prompts, plan.random_texts),
            random_pair(24, 192, 0.015, plan.random_prompts, plan.random_texts)]  # fmt: skip
    few = [pair.first(plan.prompts), *deep]
    return {
        # Compiling the last and deepest pair would take longer than all the rest.
        "contests": [contest(each, plan.repeats, compiled and each is not few[-1]) for each in few],
        "batching": batching(pair.first(plan.stream), plan.stream_repeats),
        "recording": [
            *(recording(each, 1, plan.repeats) for each in few),
            recording(pair.first(plan.recorded), _BATCH, plan.repeats),
        ],
        "forecast": forecasts(pair.first(plan.forecast), plan.known, plan.lengths, plan.batches, plan.forecast_repeats),
    }


def _decoder(pair: Pair, **settings: Any) -> SpeculativeDecoder:
    return SpeculativeDecoder(pair.target, pair.draft, pair.tokenizer, draft_length=_DRAFT_LENGTH, **settings)


def contest(pair: Pair, repeats: int, compiled: bool) -> dict[str, Any]:
    """Returns tokens per second of all contenders on one pair, one prompt at a time, and the ratios among them."""
    eager = _decoder(pair)
    contenders: dict[str, Callable[..., Result]] = {
        name: partial(_decode, eager, pair, rule=name) for name in ("target", "sd")
    }
    for threshold in pair.thresholds:
        contenders[f"fsd T={threshold}"] = partial(_decode, eager, pair, rule="fsd-coupled", threshold=threshold)
    for name, mode in [("captured", "capture"), ("compiled", True)][: 1 + compiled]:
        own = Pair(pair.name, *copy.deepcopy((pair.target, pair.draft)), pair.tokenizer, [], 0)  # it may change them
        contenders[f"sd {name}"] = partial(_decode, _decoder(own, compile=mode), pair, rule="sd")
    texts = {name: [decode(prompt) for prompt in pair.prompts] for name, decode in contenders.items()}  # warms up
    runs = take_turns({name: partial(_timed, decode) for name, decode in contenders.items()}, pair.prompts, repeats)
    graphs = [name for name in ("sd captured", "sd compiled") if name in runs]
    found = {
        "pair": pair.name, "prompts": len(pair.prompts), "max_new_tokens": pair.max_new_tokens, "repeats": repeats,
        "tokens_per_second": {name: rates(timed) for name, timed in runs.items()},
        "ratios": {f"{fast} / {slow}": speed_up(runs[fast], runs[slow])
                   for fast, slow in [("sd", "target"), *((name, "sd") for name in graphs)]},
        "same_texts": {name: sum(a.tokens == b.tokens for a, b in zip(texts["sd"], texts[name], strict=True))
                       for name in ("target", *graphs)},  # single steps and verifications round differently
        "rounds": {name: _counts(results) for name, results in texts.items()},
    }  # fmt: skip
    print(speeds(found), end="\n\n", flush=True)
    return found


def _decode(decoder: SpeculativeDecoder, pair: Pair, prompt: list[int], **settings: Any) -> Result:
    return decoder.generate([prompt], pair.max_new_tokens, **settings)[0]


def _timed(decode: Callable[[list[int]], Result], prompt: list[int]) -> Run:
    began = time.perf_counter()
    emitted = decode(prompt).emitted
    return Run(emitted, time.perf_counter() - began)


def _counts(results: Sequence[Result]) -> dict[str, float]:
    drafted = sum(result.drafted for result in results)
    return {
        "tokens_a_round": sum(result.emitted for result in results) / sum(result.rounds for result in results),
        "accepted": sum(result.accepted for result in results) / drafted if drafted else 0.0,
    }


def speeds(contest: Mapping[str, Any]) -> str:
    """Returns lines with one pair's tokens per second: median and quartiles over repeats."""
    lines = [f"{contest['pair']}, batch 1, L = {_DRAFT_LENGTH}; texts of sd: {contest['same_texts']}"]
    for name, rate in contest["tokens_per_second"].items():
        counts = contest["rounds"][name]
        lines.append(
            f"  {name:16s} {rate.median:7.1f} tokens/s ({rate.low:.1f} to {rate.high:.1f}), "
            f"{counts['tokens_a_round']:.2f} a round, {counts['accepted']:.0%} accepted"
        )
    return "\n".join(lines)


def batching(pair: Pair, repeats: int) -> dict[str, Any]:
    """Returns tokens per second of `sd` on a stream of prompts, in batches and one at a time."""
    decoder = _decoder(pair, rule="sd")

    def stream(rows: int, prompts: list[list[int]]) -> Run:
        began = time.perf_counter()
        results = decoder.generate(prompts, pair.max_new_tokens, batch_size=rows)
        return Run(sum(r.emitted for r in results), time.perf_counter() - began)

    contenders = {"batched": partial(stream, _BATCH), "alone": partial(stream, 1)}
    take_turns(contenders, [pair.prompts[:_BATCH]], 1)  # warms up
    runs = take_turns(contenders, [pair.prompts], repeats)
    return {
        "pair": pair.name, "batch": _BATCH, "prompts": len(pair.prompts), "repeats": repeats,
        "tokens_per_second": {name: rates(timed) for name, timed in runs.items()},
        "ratio": speed_up(runs["batched"], runs["alone"]),
    }  # fmt: skip


def recording(pair: Pair, batch_size: int, repeats: int) -> dict[str, Any]:
    """Returns seconds per round of `sd` with all divergences recorded and without, prefill excluded."""
    decoder = _decoder(pair, rule="sd")

    def timed(prompts: list[list[int]], recorder: Recorder | None = None) -> Run:
        clock = RoundClock()
        observer = together(clock, recorder) if recorder else clock
        decoder.generate(prompts, pair.max_new_tokens, batch_size=batch_size, observer=observer)
        began = time.perf_counter()
        if recorder is not None:  # it computes its columns only here, which is part of its cost
            assert len(recorder.columns()["js"]) > 0
        return Run(len(clock.seconds), sum(clock.seconds) + time.perf_counter() - began)

    contenders = {"silent": timed, "recording": lambda prompts: timed(prompts, Recorder(list(DIVERGENCES)))}
    work = [pair.prompts[i : i + batch_size] for i in range(0, len(pair.prompts), batch_size)]
    take_turns(contenders, work[:1], 2)  # warms up
    runs = take_turns(contenders, work, repeats)
    return {
        "pair": pair.name, "batch": batch_size, "divergences": list(DIVERGENCES),
        "seconds_a_round": {name: 1 / rates(counted).median for name, counted in runs.items()},
        "ratio": speed_up(runs["silent"], runs["recording"]),
    }  # fmt: skip


def claims(results: Mapping[str, Any]) -> Iterator[Claim]:
    for name, wanted in (("sd captured", _CAPTURED), ("sd compiled", _COMPILED)):
        for timed in results["contests"]:
            yield Claim.faster(f"{name} / sd, {timed['pair']}, batch 1", wanted, timed["ratios"].get(f"{name} / sd"))
    batched = results["batching"]
    yield Claim.faster(f"sd, batch {batched['batch']} / batch 1, {batched['pair']}", _BATCHING, batched["ratio"])
    for recorded in results["recording"]:
        name = f"a round recorded / not, {recorded['pair']}, batch {recorded['batch']}"
        yield Claim.at_most_times(name, _RECORDING, recorded["ratio"])
    # Here the bound is the largest error of the grid.
    errors = [forecast["error"] for forecast in results["forecast"]["forecasts"]]
    name = f"error of predicted tokens/s, rounds counted, {len(errors)} settings (median; bound: the worst)"
    yield Claim(name, f"<= {_FORECAST:g}", median(errors), max(errors), max(errors) <= _FORECAST)


def main() -> int:
    parser = options_of(__doc__, "decode.json")
    parser.add_argument("--no-compile", action="store_true", help="leave out compiled models")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    machine = machine_facts()
    measured = measure(_QUICK if options.quick else _FULL, compiled=not (options.quick or options.no_compile))
    return conclude(options, machine, {"draft_length": _DRAFT_LENGTH, **measured}, claims(measured))


if __name__ == "__main__":
    sys.exit(main())
