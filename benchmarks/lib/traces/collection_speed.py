"""Speed of collecting traces, on-policy and along the target, compared with decoding without collecting."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fsd_calib import SpeculativeDecoder, collect_traces, load_task
from fsd_calib.tasks.base import Task
from fsd_collectors.collection.along_target import Completion, trace_completions
from fsd_collectors.collection.measures import Measures
from fsd_data import pair_paths
from fsd_decoding.divergence import DIVERGENCES
from fsd_decoding.sampling import Sampling
from lib.common.timing import Run, rates, speed_up, take_turns

_SEED = 616_161
_RULE, _THRESHOLD, _DRAFT_LENGTH = "fsd-coupled", 0.1, 5


class CollectionWork:
    """Problems in pieces of `piece`, which are decoded with or without collecting traces."""

    def __init__(self, problems: int, piece: int, batch_size: int) -> None:
        self._decoder = SpeculativeDecoder.from_pretrained(*pair_paths(), rule=_RULE, threshold=_THRESHOLD)
        task = load_task("arithmetic", seed=_SEED, limit=problems, tokenizer=self._decoder.tokenizer)
        self._batch_size = batch_size
        self.pieces = [replace(task, problems=task.problems[i : i + piece]) for i in range(0, problems, piece)]

    def bare(self, task: Task) -> Run:
        began = time.perf_counter()
        tokens = sum(result.emitted for result in self._decode(task, _RULE))
        return Run(tokens, time.perf_counter() - began)

    def on_policy(self, task: Task) -> Run:
        return self._collect(task, rule=_RULE, threshold=_THRESHOLD, draft_length=_DRAFT_LENGTH)

    def along_target(self, task: Task) -> Run:
        return self._collect(task)

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
        texts = zip(task.problems, self._decode(task, "target"), strict=True)
        prompts = self._decoder.tokenizer([problem.prompt for problem in task.problems])["input_ids"]
        return [Completion.of(problem.id, prompt, text) for prompt, (problem, text) in zip(prompts, texts, strict=True)]

    def _decode(self, task: Task, rule: str) -> list[Any]:
        return self._decoder.generate(
            [problem.prompt for problem in task.problems], task.max_new_tokens, rule=rule, stop=task.stop,
            batch_size=self._batch_size, ids=[problem.id for problem in task.problems],
        )  # fmt: skip

    def _collect(self, task: Task, **policy: Any) -> Run:
        """Times collecting with loaded models, until the files are written."""
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            traces = collect_traces(
                task, target=self._decoder.target, draft=self._decoder.draft, tokenizer=self._decoder.tokenizer,
                out=Path(folder, "traces"), batch_size=self._batch_size, **policy,
            )  # fmt: skip
            seconds = time.perf_counter() - began
            return Run(sum(traces.to_pandas(["emitted"], table="completions")["emitted"]), seconds)


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
        "along the target / on-policy": speed_up(runs["along the target"], runs["on-policy"]),
        "reading alone / on-policy": speed_up(runs["reading alone"], runs["on-policy"]),
        "along the target / bare": speed_up(runs["along the target"], runs["bare"]),
        "reading alone / bare": speed_up(runs["reading alone"], runs["bare"]),
    }
