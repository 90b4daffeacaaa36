"""The project's commands as processes, and what their output may not hold.

They are forked from a process that has imported what they import, so that a kill hits their work.
"""

from __future__ import annotations

import queue
import resource
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

from lib.common.forked_programs import ForkedProgram

TIMEOUT = 600.0  # seconds; a command that takes longer hangs
_EXECUTABLES = {
    "calibrate": "fsd-calibrate", "collect": "fsd-collect", "train": "fsd-train-predictor", "generate": "fsd-generate",
    "profile": "fsd-profile", "traces": "fsd-traces",
}  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """A command that ended. `code`: negative for a signal."""

    name: str
    code: int
    out: str
    err: str
    seconds: float

    @property
    def last_line(self) -> str:
        return (self.err.strip().splitlines() or [""])[-1]

    @property
    def refused(self) -> bool:
        """Whether it ended with bad input's exit code and one line that says why."""
        return self.code == 2 and self.last_line.startswith(f"{_EXECUTABLES[self.name]}: error: ")

    def complaint(self) -> tuple[str, str] | None:
        """Returns a verdict with evidence if the output holds what no output may; None: it is in order."""
        for text in (self.err, self.out):
            if "Traceback (most recent call last)" in text:
                return "traceback", text.strip().splitlines()[-1][:300]
            if (found := control_character(text.replace("\n", ""))) is not None:
                return "unclear", f"the output holds the control character {found!r}"
        return ("traceback", f"ended by signal {-self.code}") if self.code < 0 else None


def control_character(text: str) -> str | None:
    """Returns the first control character of a text, if there is one."""
    return next((char for char in text if ord(char) < 32 or 127 <= ord(char) < 160), None)


def run(name: str, arguments: Sequence[str | Path], limit: int | None = None) -> Ended:
    """Runs a command until it ends. limit: the longest file, in bytes, that the system lets it write."""
    began, child = time.monotonic(), _start(name, arguments, limit)
    try:
        out, err = child.communicate(timeout=TIMEOUT)
    except TimeoutError:
        out, err = "", f"killed after {TIMEOUT:.0f} s"
    return Ended(name, child.wait(), out, err, time.monotonic() - began)


def run_and_kill(name: str, arguments: Sequence[str | Path], after: float, begun: bool) -> Ended:
    """Runs a command and kills it by SIGKILL after some seconds, unless it has ended by itself.

    begun: whether the seconds count from its first line on stderr, when imports are done and models loaded.
    """
    began, child = time.monotonic(), _start(name, arguments)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = threading.Thread(target=_drain, args=(child.stderr, lines), daemon=True)
    reader.start()
    first = lines.get(timeout=TIMEOUT) if begun else ""
    with suppress(TimeoutError):
        child.wait(after)
    out, code = child.stdout.read(), child.wait()
    reader.join()
    err = first + "".join(lines.get() for _ in range(lines.qsize()))
    return Ended(name, code, out, err, time.monotonic() - began)


def _drain(stream: object, lines: queue.SimpleQueue[str]) -> None:
    for line in stream:  # type: ignore[attr-defined]
        lines.put(line)
    lines.put("")


def _start(name: str, arguments: Sequence[str | Path], limit: int | None = None) -> ForkedProgram:
    variables = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return ForkedProgram(partial(_command, name, limit), *map(str, arguments), variables=variables, daemon=False)


def _command(name: str, limit: int | None) -> None:
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    torch.set_num_threads(1)  # was imported before OMP_NUM_THREADS was set
    import_module(f"fsd_calib.cli.{name}").main()
