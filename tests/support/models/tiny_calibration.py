"""A calibration of tiny random models that takes seconds, on a task that half of all random texts solve.

Run as a program, it prints a line when it begins and another when it is done.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from fsd_calib import ThresholdProfile, calibrate
from fsd_calib.tasks import Problem, Task
from support.calibration.quick_costs import measure_few_rounds
from support.models.tiny_models import llama, word_tokenizer
from support.models.tiny_pair import related
from support.models.tiny_task import tiny_task

measure_few_rounds()  # in programs too


def even_words(problem: Problem, text: str) -> bool:
    return len(text.split()) % 2 == 0


def task(count: int) -> Task:
    tiny = tiny_task(count)
    problems = tuple(Problem(p.id, p.question, p.question, "", None) for p in tiny.problems)
    return Task("tiny", problems, 12, (), "tests", even_words)


def far_apart() -> tuple[Any, Any]:
    """Returns a target and a draft that is much faster and quite unlike it, so that fuzzy rules are certainly faster.

    Their retention stays high all the same: half of all texts are right, whatever they say.
    """
    return llama(seed=1, layers=4), llama(seed=2, layers=1)


def run(
    out: Path, cache: Path, problems: int = 240, pair: tuple[Any, Any] | None = None, **goal: Any
) -> ThresholdProfile:
    """Calibrates tiny models; the ledger is in the cache's folder too, unless `state` names another."""
    torch.set_num_threads(1)
    target, draft = pair or related(seed=1, spread=0.05)
    settings: dict[str, Any] = {
        "min_acc": 0.7, "draft_length": (2, 4), "score": ("js", "tv"), "state": cache, "replace": True,
        "min_gain": 1.0, **goal,
    }  # fmt: skip
    return calibrate(
        task(problems), target=target, draft=draft, tokenizer=word_tokenizer(), out=out, cache=cache, **settings
    )


def run_surely(out: Path, cache: Path, **goal: Any) -> ThresholdProfile:
    """Calibrates so that something is certified, however busy the machine is."""
    easy: dict[str, Any] = {"min_acc": 0.5, "serve_batch": 8, "draft_length": 4, "score": "js", "trials": 4}
    return run(out, cache, pair=far_apart(), **easy | goal)


if __name__ == "__main__":
    print("here", flush=True)
    warnings.simplefilter("error")  # files left by a killed run must not be reported as damaged
    # This pair makes fuzzy rules so much faster than sd that timing noise cannot change the outcome.
    run(Path(sys.argv[1]), Path(sys.argv[2]), problems=160, pair=far_apart(), min_acc=0.5)
    print("done", flush=True)
