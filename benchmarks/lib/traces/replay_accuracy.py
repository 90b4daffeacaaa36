"""Accuracy of replay: tokens per round from traces along the target, compared with decoding the same problems.

Replay assumes that after a substitution a text goes on as the target's own. The more is substituted, the less that
holds, so retention is reported too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fsd_calib import SpeculativeDecoder, collect_traces, load_task
from fsd_calib.tasks.base import Task
from fsd_collectors.replay import replay
from fsd_collectors.store.reading import Traces
from fsd_data import pair_paths
from fsd_decoding.acceptance import rule_named

_SEED = 515_151
_DIVERGENCE = "js"


@dataclass(frozen=True)
class Grid:
    """The settings that are compared, and the problems that they are compared on."""

    problems: int
    temperatures: tuple[float, ...]
    lossless: tuple[str, ...]  # rules without a threshold
    fuzzy: tuple[str, ...]
    draft_lengths: tuple[int, ...]
    thresholds: tuple[float, ...]

    def settings(self) -> Iterator[Setting]:
        yield from (Setting(*values) for values in product(self.lossless, self.draft_lengths))
        yield from (Setting(*values) for values in product(self.fuzzy, self.draft_lengths, self.thresholds))


@dataclass(frozen=True)
class Setting:
    rule: str
    draft_length: int
    threshold: float = 0.0  # ignored by rules without one


@dataclass(frozen=True)
class Compared:
    """One setting's tokens per round, predicted and decoded, and the retention of decoding."""

    temperature: float
    setting: Setting
    predicted: float
    decoded: float
    substitutions: float  # per completion, predicted
    retention: float

    @property
    def error(self) -> float:
        return self.predicted / self.decoded - 1

    def row(self) -> dict[str, Any]:
        measured = {name: value for name, value in asdict(self).items() if name != "setting"}
        return asdict(self.setting) | measured | {"error": self.error}


def predictions(grid: Grid) -> list[Compared]:
    decoder = SpeculativeDecoder.from_pretrained(*pair_paths())
    task = load_task("arithmetic", seed=_SEED, limit=grid.problems, tokenizer=decoder.tokenizer)
    return [compared for temperature in grid.temperatures for compared in _compare_at(temperature, grid, decoder, task)]


def _compare_at(temperature: float, grid: Grid, decoder: SpeculativeDecoder, task: Task) -> Iterator[Compared]:
    with tempfile.TemporaryDirectory() as folder:
        traces = collect_traces(
            task, target=decoder.target, draft=decoder.draft, tokenizer=decoder.tokenizer, out=Path(folder, "traces"),
            divergences=(_DIVERGENCE,), temperature=temperature,
        )  # fmt: skip
        right = int(traces.to_pandas(["correct"], table="completions")["correct"].sum())
        for setting in grid.settings():
            yield _compare(temperature, setting, traces, decoder, task, right)


def _compare(
    temperature: float, setting: Setting, traces: Traces, decoder: SpeculativeDecoder, task: Task, right: int
) -> Compared:
    predicted = replay(traces, divergence=_DIVERGENCE, **asdict(setting))
    arguments = asdict(setting) if rule_named(setting.rule).fuzzy else asdict(setting) | {"threshold": None}
    results = decoder.generate(
        [problem.prompt for problem in task.problems], task.max_new_tokens, temperature, stop=task.stop,
        ids=[problem.id for problem in task.problems], **arguments,
    )  # fmt: skip
    solved = sum(task.grade(problem, result.text) for problem, result in zip(task.problems, results, strict=True))
    decoded = sum(result.emitted for result in results) / sum(result.rounds for result in results)
    substitutions = predicted.substitutions_per_completion
    return Compared(temperature, setting, predicted.tokens_per_round, decoded, substitutions, solved / right)
