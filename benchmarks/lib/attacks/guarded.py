"""Calls of readers and graders in a process with limits, which what they are given may hang, fill or end."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import resource
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Self, cast

from fsd_calib.cli.console import explanation
from fsd_common.errors import UsageError
from lib.attacks.cases import HANGS, Verdict
from lib.common.forked_programs import fork

_ADDRESSES = 16 << 30  # bytes; more than any reader of these small files needs
_LINE = 3000  # characters of a message that somebody may read


@dataclass(frozen=True)
class Reading:
    """What came of a call: what it returned, or the error that refused it, or one that should not be.

    Attributes:
        hung: Whether there was no answer.
    """

    content: Any = None
    warned: tuple[str, ...] = ()
    refusal: str | None = None
    crash: str | None = None
    hung: bool = False
    seconds: float = 0.0


def guarded(function: Callable[..., Any], *arguments: Any) -> Reading:
    """Calls a function, whose errors count as a command would tell them."""
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        try:
            content = function(*arguments)
        except UsageError as error:
            return Reading(refusal=str(error))
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, MemoryError) and (known := explanation(error)):
                return Reading(refusal=known)
            return Reading(crash=f"{type(error).__name__}: {error!s:.200}")
    kinds = (UserWarning,)  # others are of libraries, and say nothing about the files
    return Reading(content, tuple(str(w.message) for w in caught if w.category in kinds))


class GuardedProcess:
    """A process that calls functions, started anew whenever it dies of one."""

    def __init__(self) -> None:
        self._start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Reading:
        """Returns what came of a module's function."""
        began = time.monotonic()
        self._pipe.send((function, arguments))
        try:
            if self._pipe.poll(HANGS):
                return cast(Reading, self._pipe.recv())
            broken = Reading(hung=True, seconds=time.monotonic() - began)
        except (EOFError, ConnectionError):
            broken = Reading(crash="the process died", seconds=time.monotonic() - began)
        self.close()
        self._start()
        return broken

    def _start(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = fork(_serve, theirs, daemon=False)  # so that graders may start their own process
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    with contextlib.suppress(EOFError):  # this end is closed
        while True:
            function, arguments = pipe.recv()
            began = time.monotonic()
            pipe.send(replace(guarded(function, *arguments), seconds=time.monotonic() - began))


def control_character(text: str) -> str | None:
    """Returns the first control character of a text, if there is one."""
    return next((char for char in text if ord(char) < 32 or 127 <= ord(char) < 160), None)


def fault_of(reading: Reading) -> Verdict | None:
    """Returns a verdict with evidence where a call hung, crashed, or said what no line may hold; None: it did not."""
    if reading.hung:
        return "hang", f"no answer within {reading.seconds:.0f} s"
    if reading.crash is not None:
        return "traceback", reading.crash
    for said in (*reading.warned, *([reading.refusal] if reading.refusal is not None else [])):
        if (found := control_character(said)) is not None:
            return "unclear", f"{found!r} is in the message {said!r:.300}"
        if len(said) > _LINE:
            return "unclear", f"the message has {len(said)} characters: {said!r:.300}"
    return None
