"""The tasks of the study, and where rounds of its pair are timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fsd_calib import CostModel, SpeculativeDecoder, load_task
from fsd_calib.engines.own import measure_costs
from fsd_calib.tasks.base import Task

FILES = {
    "gsm8k": "gsm8k/test.jsonl", "humaneval": "humaneval/HumanEval.jsonl.gz",
    "mmlu": "mmlu/test", "csqa": "commonsenseqa/dev_rand_split.jsonl",
}  # fmt: skip
"""Where each task's problems are, in a folder of all of them."""
BLOCK = 32
"""Problems of a block."""
_PROBLEMS = 512  # of a task at most
_COSTED, _COSTED_TOKENS = 4, 48  # problems and tokens on which rounds are timed


def problems_of(name: str, data: Path | None, decoder: SpeculativeDecoder) -> Task:
    """Returns a task whose problems are in the order of a hash, so that its first blocks are like the others.

    Args:
        data: the folder of all data sets; None: they are the hub's.
    """
    file = None if data is None else data / FILES[name]
    task = load_task(name, seed=0, limit=_PROBLEMS, data=file, tokenizer=decoder.tokenizer)
    return replace(task, problems=tuple(sorted(task.problems, key=lambda problem: problem.id)))


def costs_of(decoder: SpeculativeDecoder, task: Task) -> CostModel:
    """Returns what a round of one row takes, timed on some problems of a task."""
    asked = task.problems[:_COSTED]
    prompts, ids = [problem.prompt for problem in asked], [problem.id for problem in asked]
    return measure_costs(decoder, prompts, ids, _COSTED_TOKENS, batch_size=1).model
