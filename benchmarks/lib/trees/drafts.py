"""The drafts that are compared, and the T at which each keeps the accuracy that is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fsd_calib import SpeculativeDecoder, TreeShape
from fsd_calib.tasks.base import Task
from fsd_decoding.engine.result import Result

LOSSLESS, FUZZY, DIVERGENCE = "coupled", "fsd-coupled", "doubt"
RETENTION = 0.98
MODEL, HEAD = "model", "head"

Bases = Mapping[str, SpeculativeDecoder]
"""A decoder of the same target for each of `MODEL` and `HEAD`."""


@dataclass(frozen=True)
class Draft:
    """A chain, or a tree of this shape, of up to `length` tokens after one another, by the draft model or the head."""

    length: int
    shape: TreeShape | None = None
    by: str = MODEL

    @property
    def read(self) -> int:
        """Drafted tokens that the target reads in a round."""
        return self.length if self.shape is None else self.shape.nodes

    def __str__(self) -> str:
        form = f"chain {self.length}" if self.shape is None else f"tree {self.length} deep, {self.shape}"
        return form if self.by == MODEL else f"{self.by}: {form}"

    def decoder(self, bases: Bases, threshold: float | None) -> SpeculativeDecoder:
        """Returns a decoder with this draft; without a threshold it is lossless."""
        base = bases[self.by]
        if threshold is None:
            return base.with_config(rule=LOSSLESS, draft_length=self.length, tree=self.shape)
        return base.with_config(
            rule=FUZZY, divergence=DIVERGENCE, threshold=threshold, draft_length=self.length, tree=self.shape
        )


def decode(decoder: SpeculativeDecoder, task: Task, batch_size: int) -> list[Result]:
    """Decodes a task's problems."""
    return decoder.generate(
        [problem.prompt for problem in task.problems], task.max_new_tokens, batch_size=batch_size, stop=task.stop,
        ids=[problem.id for problem in task.problems],
    )  # fmt: skip


def accuracy(task: Task, results: Sequence[Result]) -> float:
    right = [task.grade(problem, result.text) for problem, result in zip(task.problems, results, strict=True)]
    return sum(right) / len(right)


def largest_threshold(bases: Bases, draft: Draft, task: Task, grid: Sequence[float], least: float) -> float | None:
    """Returns the largest T of an ascending grid at which accuracy is at least `least`; None: not even the smallest."""
    for threshold in reversed(grid):
        if accuracy(task, decode(draft.decoder(bases, threshold), task, 64)) >= least:
            return threshold
    return None
