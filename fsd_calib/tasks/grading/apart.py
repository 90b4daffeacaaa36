"""Grading in a process of its own, for graders that a text can break: whose time or memory nobody knows beforehand.

    expressions = Apart("my_graders:comparison")  # comparison() returns a function of texts
    expressions("1/2", "0.5")                     # what that returns; None where these texts broke it

The process is started when it is first needed, and used for all such graders, one text after another. A text that
takes too long or ends the process costs a new one. It ends with this process, however that ends.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fsd_common.errors import UsageError

_MEMORY = 2 << 30  # bytes that a text may take, beside what the grader's own modules do
_PATIENCE = 12  # as many times the limit of CPU time may pass on the clock
_TO_START = 600.0  # seconds on the clock for a new process and what its graders import, on a busy machine
_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from fsd_calib.tasks.grading.apart_child import serve; serve()"
)


@dataclass(frozen=True)
class Apart:
    """A grader in the graders' process; it may be called from threads.

    Attributes:
        make: The function that makes it there, `module:name`.
        settings: What that is called with: hashable values that JSON has.
        seconds: CPU time that a call may take.
    """

    make: str
    settings: tuple[Any, ...] = ()
    seconds: float = 5.0

    def __call__(self, *texts: str) -> Any:
        """Returns what the grader says of these texts: a value that JSON has; None where they broke it.

        Verdicts are kept, of texts that broke it too: those are counted, and a warning tells of the first.

        Raises:
            UsageError: There is no such grader here.
        """
        return _verdict(self, texts)

    def broken_by(self, *texts: str) -> str:
        """Returns why texts break the grader, without counting them; empty: they do not. UsageError: there is none."""
        return _PROCESS.ask(self, texts)[1]


def renew() -> None:
    """Ends the graders' process and drops all verdicts: the files that graders are made of may have changed."""
    _PROCESS.renew()
    _verdict.cache_clear()


_broken: list[str] = []  # of each text that broke a grader in this process, why


def broken_texts() -> int:
    """Returns how many texts broke a grader in this process; they count as wrong."""
    return len(_broken)


@lru_cache(maxsize=1 << 16)  # grades are asked for again and again
def _verdict(grader: Apart, texts: tuple[str, ...]) -> Any:
    value, why = _PROCESS.ask(grader, texts)
    if why:
        _broken.append(why)
        if len(_broken) == 1:
            warnings.warn(
                f"a text broke its grader ({why}) and counts as wrong, as do others that do so: {texts[-1][-60:]!r}",
                stacklevel=4,
            )
    return value


class _Process:
    """The graders' process, or none yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._made: set[Apart] = set()  # graders that the child has made

    def ask(self, grader: Apart, texts: tuple[str, ...]) -> tuple[Any, str]:
        """Returns what a grader says, and where it says nothing why. UsageError: there is no such grader."""
        with self._lock:
            used = self._make(grader)
            reply = self._reply(grader, texts)
            if "ended" in reply and used:  # by what others left in it, or by somebody else: a new one has none of that
                self._make(grader)
                reply = self._reply(grader, texts)
        return reply.get("value"), "".join(reply.get(how, "") for how in ("raised", "late", "ended"))

    def _make(self, grader: Apart) -> bool:
        """Has the child make a grader; returns whether it had. UsageError: it cannot."""
        self._run()
        if grader in self._made:
            return True
        reply = self._reply(grader, None)
        if "value" not in reply:
            why = reply.get("refused") or f"grader {grader.make}: {reply.get('late') or reply.get('ended')}"
            raise UsageError(why)
        self._made.add(grader)
        return False

    def _reply(self, grader: Apart, texts: tuple[str, ...] | None) -> dict[str, Any]:
        """Returns the child's reply, or `{"late": "why"}` or `{"ended": "why"}` where there is none.

        Args:
            texts: None: it only makes the grader.
        """
        request = json.dumps([grader.make, grader.settings, texts, grader.seconds, _MEMORY]).encode() + b"\n"
        child, seconds = self._child, _TO_START if texts is None else _PATIENCE * grader.seconds
        assert child is not None
        deadline = time.monotonic() + seconds
        timer = threading.Timer(seconds, child.kill)
        timer.daemon = True
        timer.start()
        try:
            line = _exchanged(child, request)
        except BaseException:  # Ctrl-C: its reply would be taken for that to another request
            self.end()
            raise
        finally:
            timer.cancel()
        if line:
            return json.loads(line)  # type: ignore[no-any-return]
        status = self.end()
        if status == -getattr(signal, "SIGPROF", 0):
            return {"late": f"it took more than {grader.seconds:g} s of CPU time"}
        if time.monotonic() >= deadline:
            return {"late": f"it took more than {seconds:g} s"}
        return {"ended": f"its process ended with status {status}"}

    def renew(self) -> None:
        """Ends the child, once nobody waits for it."""
        with self._lock:
            self.end()

    def end(self) -> int:
        """Ends the child; returns its status."""
        child, self._child = self._child, None
        self._made.clear()
        if child is None:
            return 0
        assert child.stdin is not None
        assert child.stdout is not None
        child.kill()
        child.stdin.close()
        child.stdout.close()
        return child.wait()

    def _run(self) -> None:
        """Starts a child where none runs."""
        if self._child is None or self._child.poll() is not None:  # somebody ended it
            self.end()
            self._child = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for this process
            )

    def forget(self) -> None:
        """Leaves the child to the process that this one was forked from."""
        child = self._child
        self.__init__()  # type: ignore[misc]
        if child is not None and child.stdin is not None and child.stdout is not None:
            child.stdin.close()
            child.stdout.close()


def _exchanged(child: subprocess.Popen[bytes], request: bytes) -> bytes:
    """Returns the reply to a request; empty where the child ended."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        rest = memoryview(request)
        while rest:  # a pipe may take less than it is given
            rest = rest[child.stdin.write(rest) :]
        return child.stdout.readline()
    except BrokenPipeError:
        return b""


_PROCESS = _Process()
atexit.register(_PROCESS.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PROCESS.forget)
