"""A calibration of tiny random models that takes seconds. Run as a program it says when it begins and when it is done.

Knows a task that half of random texts solve. What is found means nothing.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from fsd_calib import ThresholdProfile, calibrate
from fsd_calib.tasks import Problem, Task
from support.tiny import llama, word_tokenizer
from support.tiny_pair import related
from support.tiny_task import tiny_task


def even_words(reference: str, text: str) -> bool:
    return len(text.split()) % 2 == 0


def task(count: int) -> Task:
    tiny = tiny_task(count)
    problems = tuple(Problem(p.id, p.question, p.question, "", None) for p in tiny.problems)
    return Task("tiny", problems, 12, (), "tests", even_words)


def far_apart() -> tuple[Any, Any]:
    """A draft far faster than its target, and far from it: what is lossy is faster for sure. Half of all texts are
    right, whatever they are."""
    return llama(seed=1, layers=4), llama(seed=2, layers=1)


def run(
    out: Path, cache: Path, problems: int = 240, pair: tuple[Any, Any] | None = None, **goal: Any
) -> ThresholdProfile:
    """Its ledger lies in the cache's folder too, unless `state` names another."""
    torch.set_num_threads(1)
    target, draft = pair or related(seed=1, spread=0.05)
    settings: dict[str, Any] = {
        "min_acc": 0.7, "draft_length": (2, 4), "divergence": ("js", "tv"), "state": cache, **goal,
    }  # fmt: skip
    return calibrate(
        task(problems), target=target, draft=draft, tokenizer=word_tokenizer(), out=out, cache=cache, **settings
    )


def run_surely(out: Path, cache: Path, **goal: Any) -> ThresholdProfile:
    """Something is certified, however busy the machine is."""
    asked: dict[str, Any] = {"min_acc": 0.5, "serve_batch": 8, "draft_length": 4, "divergence": "js", "trials": 4}
    return run(out, cache, pair=far_apart(), **asked | goal)


if __name__ == "__main__":
    print("here", flush=True)
    warnings.simplefilter("error")  # nothing that a kill leaves behind may count as damage
    # No clock can doubt that what is lossy is faster than sd.
    run(Path(sys.argv[1]), Path(sys.argv[2]), problems=160, pair=far_apart(), min_acc=0.5)
    print("done", flush=True)
