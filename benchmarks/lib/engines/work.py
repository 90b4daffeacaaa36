"""What engines are asked to decode, and what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fsd_calib.tasks.base import Problem, Task
from lib.common.timing import Run


@dataclass(frozen=True)
class Work:
    """Prompts that an engine decodes greedily, `batch` of them at a time; each that ends makes room for the next."""

    prompts: tuple[str, ...]
    ids: tuple[int, ...]
    max_new_tokens: int
    stop: tuple[str, ...]
    batch: int

    @classmethod
    def of(cls, task: Task, problems: Sequence[Problem], batch: int) -> Work:
        prompts, ids = tuple(p.prompt for p in problems), tuple(p.id for p in problems)
        return cls(prompts, ids, task.max_new_tokens, tuple(task.stop), batch)

    def pieces(self, size: int) -> list[Work]:
        """Returns the same work as several, of `size` prompts each."""
        cuts = [slice(at, at + size) for at in range(0, len(self.prompts), size)]
        return [replace(self, prompts=self.prompts[cut], ids=self.ids[cut]) for cut in cuts]


@dataclass(frozen=True)
class Decoded:
    """Texts in the order of their prompts, with what they took. The sum of two is of both works, in order."""

    texts: tuple[str, ...]
    tokens: int  # new ones, those that end a text included
    steps: int  # of the engine; 0: it does not count them
    cpu: float  # seconds of the engine's process, all threads
    wall: float  # seconds

    def __add__(self, other: Decoded) -> Decoded:
        return Decoded(
            self.texts + other.texts, self.tokens + other.tokens, self.steps + other.steps, self.cpu + other.cpu,
            self.wall + other.wall,
        )  # fmt: skip

    @property
    def on_cpu(self) -> Run:
        """Tokens and CPU seconds."""
        return Run(self.tokens, self.cpu)

    @property
    def by_clock(self) -> Run:
        """Tokens and seconds of the wall clock."""
        return Run(self.tokens, self.wall)

    @property
    def of_steps(self) -> Run:
        """Steps and CPU seconds."""
        return Run(self.steps, self.cpu)


class Engine(Protocol):
    """Decodes work in one of its ways."""

    def decode(self, work: Work, way: str) -> Decoded: ...
