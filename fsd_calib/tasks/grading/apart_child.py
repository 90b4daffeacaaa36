"""What runs in the graders' own process; see `apart.py`.

A request is a line of JSON: the function that makes a grader, its settings, the texts to grade (or null: it is only
made), and the seconds of CPU time and bytes of memory that these may take. A reply is one too: `{"value": …}`,
`{"raised": "why"}` where the texts broke the grader, or `{"refused": "why"}` where there is no such grader. Texts that
take too long end the process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from fsd_common.errors import UsageError

with suppress(ImportError):  # Windows has neither; time is limited from outside there
    import fcntl
    import resource


def serve() -> None:
    """Answers requests on stdin until it ends; what graders print goes to stderr."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for line in requests:
        reply = json.dumps(_reply(requests.fileno(), *json.loads(line)))
        replies.write(reply + "\n")
        replies.flush()


def _reply(
    stdin: int, make: str, settings: Sequence[Any], texts: Sequence[str] | None, seconds: float, memory: int
) -> dict[str, Any]:
    try:
        grade = _made(make, *settings)
    except UsageError as error:
        return {"refused": str(error)}
    except (Exception, SystemExit) as error:
        return {"refused": f"grader {make} cannot be made ({type(error).__name__}: {error})"}
    if texts is None:
        return {"value": None}
    try:
        with _limited(seconds, memory), _ending_with(stdin):
            return {"value": grade(*texts)}
    except (Exception, SystemExit) as error:
        return {"raised": f"{type(error).__name__}: {str(error)[:200]}"}


@cache
def _made(make: str, *settings: Any) -> Callable[..., Any]:
    module, _, name = make.partition(":")
    return getattr(import_module(module), name)(*settings)  # type: ignore[no-any-return]


@contextmanager
def _limited(seconds: float, memory: int) -> Iterator[None]:
    """Ends the process after so much CPU time, also within code in C, and fails allocations beyond so much memory."""
    if not hasattr(signal, "setitimer"):
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    if (used := _address_space()) is not None:
        most = used + memory
        resource.setrlimit(resource.RLIMIT_AS, (most if before[1] < 0 else min(most, before[1]), before[1]))
    signal.setitimer(signal.ITIMER_PROF, seconds)  # whose signal ends the process
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)


def _address_space() -> int | None:
    """Bytes; None: this system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except OSError:
        return None


@contextmanager
def _ending_with(stdin: int) -> Iterator[None]:
    """Ends the process when the one that writes its stdin does, since nobody reads that meanwhile.

    No request comes before the reply, so a signal about stdin (SIGIO, which ends a process) says that it is closed.
    """
    if sys.platform != "linux":
        yield
        return
    flags = fcntl.fcntl(stdin, fcntl.F_GETFL)
    fcntl.fcntl(stdin, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(stdin, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        if select.select([stdin], [], [], 0)[0]:  # it was closed before the signal was asked for
            os._exit(1)
        yield
    finally:
        fcntl.fcntl(stdin, fcntl.F_SETFL, flags)
