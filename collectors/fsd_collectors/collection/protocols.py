"""Protocols of what collection needs: a task, its problems and texts, and a display of progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from fsd_collectors.split import Part


class Problem(Protocol):
    """A problem of a task; a multiple-choice one also has `choices` (see `split.Splittable`).

    `id` depends only on what the problem asks and keys its noise. `part` is None where the source has no parts of its
    own.
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
    """Problems and the grading of answers, such as `fsd_calib.tasks.Task`; `stop` holds strings that end an answer."""

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


class Finished(Protocol):
    """What traces need of a finished text, such as `fsd_decoding.engine.result.Result`."""

    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def emitted(self) -> int: ...
    @property
    def rounds(self) -> int: ...
    @property
    def drafted(self) -> int: ...
    @property
    def accepted(self) -> int: ...


Advance = Callable[[int], None]


class Progress(Protocol):
    """Shows progress: `with progress.step("collecting", total=1000) as advance: advance(32)`."""

    def step(self, title: str, total: int) -> AbstractContextManager[Advance]: ...
