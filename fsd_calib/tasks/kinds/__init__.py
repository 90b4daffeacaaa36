"""The kinds of tasks that come with the package, one module each, and their worked examples."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fsd_calib.tasks.asking import Asking, Exemplar


def worked(task: str) -> Callable[[Asking], Sequence[Exemplar]]:
    """Returns what gives the worked examples of a task, which are in `worked_examples.toml`; see `WorkedExamples`."""
    return lambda asking: [(each["question"], each["answer"]) for each in _examples()[task]]


@cache
def _examples() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("worked_examples.toml").read_text(encoding="utf-8"))
