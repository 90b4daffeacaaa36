"""The cost of traces, and how accurately their replay predicts decoding: `python benchmarks/collect.py`.

Prints tables, and writes all results to `--out` as JSON.

Replay predicts tokens per round from traces along the target, and is compared with decoding the same problems. It
assumes that after a substitution a text goes on as the target's own. The more is substituted, the less that holds, so
retention is reported too.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from fsd_calib import SpeculativeDecoder, collect_traces, load_task
from fsd_calib.tasks.base import Task
from fsd_collectors.collection.along_target import Completion, trace_completions
from fsd_collectors.collection.measures import Measures
from fsd_collectors.replay import replay
from fsd_collectors.store.reading import Traces
from fsd_data import pair_paths
from fsd_decoding.divergence import DIVERGENCES
from fsd_decoding.rules import rule_named
from fsd_decoding.sampling import Sampling
from lib.common.claims import Claim
from lib.common.results import conclude, machine_facts, options_of
from lib.common.timing import Run, rates, speed_up, take_turns
from lib.large_traces import large_traces, replay_speed

_RULE, _THRESHOLD, _DRAFT_LENGTH = "fsd-coupled", 0.1, 5  # that traces are collected under on-policy
_SEED, _REPLAYED_SEED = 616_161, 515_151
_SCORE = "js"  # of what is replayed
_RETENTION = 0.95  # the claim on replay's accuracy holds from this retention on


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    streams: tuple[tuple[int, int, int, int], ...]  # problems, problems per piece, batch size and repeats
    swept: int  # rows
    sweeps: int  # grids, of three
    portions: int  # of the large trace, with about 260,000 rows each
    real: int  # problems that the large trace is made of
    replayed: int  # problems that replay is compared with decoding on
    lossless: tuple[str, ...]  # rules without a threshold
    fuzzy: tuple[str, ...]
    draft_lengths: tuple[int, ...]
    thresholds: tuple[float, ...]


_FULL = Plan(
    ((48, 24, 1, 8), (256, 256, 32, 8)), 10_000_000, 3, 400, 300,
    200, ("sd", "coupled"), ("fsd-coupled", "fsd-sd", "fsd"), (2, 5, 8), (0.05, 0.1, 0.2),
)  # fmt: skip
_QUICK = Plan(((4, 2, 2, 1),), 200_000, 1, 1, 8, 8, ("sd",), ("fsd-coupled",), (3,), (0.1,))


# --- collecting -------------------------------------------------------------------------------------------


class CollectionWork:
    """Problems in pieces of `piece`, which are decoded with or without collecting traces."""

    def __init__(self, problems: int, piece: int, batch_size: int) -> None:
        self._decoder = SpeculativeDecoder.from_pretrained(*pair_paths(), rule=_RULE, threshold=_THRESHOLD)
        task = load_task("arithmetic", seed=_SEED, limit=problems, tokenizer=self._decoder.tokenizer)
        self._batch_size = batch_size
        self.pieces = [replace(task, problems=task.problems[i : i + piece]) for i in range(0, problems, piece)]

    def bare(self, task: Task) -> Run:
        began = time.perf_counter()
        tokens = sum(result.emitted for result in _decoded(self._decoder, task, self._batch_size, rule=_RULE))
        return Run(tokens, time.perf_counter() - began)

    def on_policy(self, task: Task) -> Run:
        return self.along_target(task, rule=_RULE, threshold=_THRESHOLD, draft_length=_DRAFT_LENGTH)

    def along_target(self, task: Task, **policy: Any) -> Run:
        """Times collecting with loaded models, until the files are written."""
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            traces = _collected(self._decoder, task, Path(folder), batch_size=self._batch_size, **policy)
            seconds = time.perf_counter() - began
            return Run(sum(traces.to_pandas(["emitted"], table="completions")["emitted"]), seconds)

    def reading(self) -> Callable[[Task], Run]:
        """Returns a function that collects along the target where the target's completions exist already."""
        completions = {task.problems[0].id: self._completions(task) for task in self.pieces}
        measures = Measures(tuple(DIVERGENCES), "raw", Sampling())

        def read(task: Task) -> Run:
            began = time.perf_counter()
            texts = completions[task.problems[0].id]
            traced = trace_completions(self._decoder, texts, measures, max(32, self._batch_size))
            return Run(len(traced.owner), time.perf_counter() - began)

        return read

    def _completions(self, task: Task) -> list[Completion]:
        texts = zip(task.problems, _decoded(self._decoder, task, self._batch_size, rule="target"), strict=True)
        prompts = self._decoder.tokenizer([problem.prompt for problem in task.problems])["input_ids"]
        return [Completion.of(problem.id, prompt, text) for prompt, (problem, text) in zip(prompts, texts, strict=True)]


def _decoded(decoder: SpeculativeDecoder, task: Task, batch_size: int = 32, **settings: Any) -> list[Any]:
    return decoder.generate(
        [problem.prompt for problem in task.problems], task.max_new_tokens, stop=task.stop, batch_size=batch_size,
        ids=[problem.id for problem in task.problems], **settings,
    )  # fmt: skip


def _collected(decoder: SpeculativeDecoder, task: Task, folder: Path, **settings: Any) -> Traces:
    return collect_traces(
        task, target=decoder.target, draft=decoder.draft, tokenizer=decoder.tokenizer, out=folder / "traces", **settings
    )


def collection_speed(problems: int, piece: int, batch_size: int, repeats: int) -> dict[str, Any]:
    """Returns tokens of text per second of each way to collect, and their ratios; all take turns at the problems."""
    work = CollectionWork(problems, piece, batch_size)
    contenders = {
        "bare": work.bare,
        "on-policy": work.on_policy,
        "along the target": work.along_target,
        "reading alone": work.reading(),
    }
    take_turns(contenders, work.pieces[:1], 1)  # warms up
    runs = take_turns(contenders, work.pieces, repeats)
    return {
        "batch": batch_size,
        "problems": problems,
        "tokens_per_second": {name: rates(timed) for name, timed in runs.items()},
        "recorded / bare time": speed_up(runs["bare"], runs["on-policy"]),
        **{f"{way} / {other}": speed_up(runs[way], runs[other])
           for other in ("on-policy", "bare") for way in ("along the target", "reading alone")},
    }  # fmt: skip


# --- replay -----------------------------------------------------------------------------------------------


def predictions(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yields tokens per round, predicted and decoded, and retention of each setting, greedy and at temperature 0.6."""
    decoder = SpeculativeDecoder.from_pretrained(*pair_paths())
    task = load_task("arithmetic", seed=_REPLAYED_SEED, limit=plan.replayed, tokenizer=decoder.tokenizer)
    settings = [*product(plan.lossless, plan.draft_lengths, (0.0,)),  # rules without a threshold ignore it
                *product(plan.fuzzy, plan.draft_lengths, plan.thresholds)]  # fmt: skip
    for temperature in (0.0, 0.6):
        with tempfile.TemporaryDirectory() as folder:
            traces = _collected(decoder, task, Path(folder), scores=(_SCORE,), temperature=temperature)
            right = int(traces.to_pandas(["correct"], table="completions")["correct"].sum())
            for setting in settings:
                row: dict[str, Any] = dict(zip(("rule", "draft_length", "threshold"), setting, strict=True))
                row["temperature"] = temperature
                yield row | _compared(traces, decoder, task, right, **row)


def _compared(
    traces: Traces, decoder: SpeculativeDecoder, task: Task, right: int, *, temperature: float, rule: str,
    draft_length: int, threshold: float,
) -> dict[str, float]:  # fmt: skip
    predicted = replay(traces, score=_SCORE, rule=rule, draft_length=draft_length, threshold=threshold)
    results = _decoded(
        decoder, task, temperature=temperature, rule=rule, draft_length=draft_length,
        threshold=threshold if rule_named(rule).fuzzy else None,
    )  # fmt: skip
    solved = sum(task.grade(problem, result.text) for problem, result in zip(task.problems, results, strict=True))
    decoded = sum(result.emitted for result in results) / sum(result.rounds for result in results)
    return {
        "predicted": predicted.tokens_per_round, "decoded": decoded, "retention": solved / right,
        "substitutions": predicted.substitutions_per_completion,  # predicted
        "error": predicted.tokens_per_round / decoded - 1,
    }  # fmt: skip


# --- results ----------------------------------------------------------------------------------------------


def claims(results: Mapping[str, Any]) -> Iterator[Claim]:
    for stream in results["collecting"]:
        where, ratio = f"bundled pair, batch {stream['batch']}", stream["recorded / bare time"]
        yield Claim.at_most_times(f"decoding collected on-policy / bare, seconds, {where}", 1.05, ratio)
        for way in ("reading alone", "along the target"):
            yield Claim.faster(f"{way} / on-policy, tokens/s, {where}", 5.0, stream[f"{way} / on-policy"])
    small, huge = results["replay"][0], results["large"]
    yield Claim.at_most(f"replay of {small['rows']:,} rows, {small['cells']} cells, seconds", 30.0, small["seconds"])
    yield Claim.at_most("its memory, GB", 4.0, small["peak_gb"])
    yield Claim.at_least("rows written a second", 300_000, huge["rows_written_per_second"])
    for work in ("describe", "sweep"):
        yield Claim.at_most(f"{work} of {huge['rows']:,} rows on disk, memory, GB", 4.0, huge[work]["peak_gb"])
    errors = [abs(one["error"]) for one in results["predictions"] if one["retention"] >= _RETENTION]
    yield Claim.at_most(
        f"worst error of replay's tokens a round, {len(errors)} settings kept {_RETENTION}", 0.05, max(errors)
    )


def predictions_table(predictions: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| temperature | rule | L | T | replay | decoded | error | retention |", "| --- " * 8 + "|"]
    for one in predictions:
        setting = (one["temperature"], one["rule"], one["draft_length"], one["threshold"])
        numbers = (
            f"{one['predicted']:.2f}",
            f"{one['decoded']:.2f}",
            f"{one['error']:+.1%}",
            f"{one['retention']:.3f}",
        )
        lines.append("| " + " | ".join(map(str, (*setting, *numbers))) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = options_of(__doc__, "collect.json")
    parser.add_argument("--scratch", type=Path, help="folder for the large trace of 7 GB; default: the system's")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    machine, plan = machine_facts(), _QUICK if options.quick else _FULL
    measured: dict[str, Any] = {
        "collecting": [collection_speed(*stream) for stream in plan.streams],
        "replay": replay_speed(plan.swept, plan.sweeps),
        "large": large_traces(options.scratch, plan.portions, plan.real),
        "predictions": list(predictions(plan)),
    }
    return conclude(options, machine, measured, claims(measured), predictions_table(measured["predictions"]))


if __name__ == "__main__":
    sys.exit(main())
