"""What collecting asks of others: a task, its problems, and whoever watches. Knows no implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from fsd_collectors.split import Part


class Problem(Protocol):
    """One question, with `choices` where there are any (see `split.Splittable`).

    `id`: of what it asks alone, the key of its noise. `part` None: its source names no parts.
    """

    @property
    def id(self) -> int: ...
    @property
    def question(self) -> str: ...
    @property
    def prompt(self) -> str: ...
    @property
    def part(self) -> Part | None: ...


class Task(Protocol):
    """Questions and who judges the answers; `fsd_calib.tasks.Task` is one. `stop`: strings that end an answer."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def problems(self) -> Sequence[Problem]: ...
    @property
    def max_new_tokens(self) -> int: ...
    @property
    def stop(self) -> tuple[str, ...]: ...

    def grade(self, problem: Any, text: str) -> bool: ...


Advance = Callable[[int], None]


class Progress(Protocol):
    """`with progress.step("collecting", total=1000) as advance: advance(32)`."""

    def step(self, title: str, total: int) -> AbstractContextManager[Advance]: ...
