"""The project's commands as processes, and what their output may not hold.

They are forked from a process that has imported what they import, so that a kill hits their work.
"""

from __future__ import annotations

import os
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

from fsd_common.user_folders import CACHE_VARIABLE, STATE_VARIABLE
from lib.attacks.guarded import control_character
from lib.common.forked_programs import ForkedProgram

TIMEOUT = 1800.0  # seconds; on a busy machine a calibration takes ten minutes
_EXECUTABLES = {
    "calibrate": "fsd-calibrate", "collect": "fsd-collect", "train": "fsd-train-predictor", "generate": "fsd-generate",
    "profile": "fsd-profile", "traces": "fsd-traces", "inspect": "fsd-inspect", "report": "fsd-report",
    "tasks": "fsd-tasks", "train_eagle": "fsd-train-eagle",
}  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """A command that ended. `code`: negative for a signal. `hung`: it was killed since it took too long."""

    name: str
    code: int
    out: str
    err: str
    seconds: float
    hung: bool = False

    @property
    def last_line(self) -> str:
        return (self.err.strip().splitlines() or [""])[-1]

    @property
    def refused(self) -> bool:
        """Whether it ended with bad input's exit code and one line that says why."""
        return self.code == 2 and self.last_line.startswith(f"{_EXECUTABLES[self.name]}: error: ")

    def complaint(self) -> tuple[str, str] | None:
        """Returns a verdict with evidence if the output holds what no output may; None: it is in order."""
        if self.hung:
            return "hang", f"it did not end within {self.seconds:.0f} s"
        for text in (self.err, self.out):
            if "Traceback (most recent call last)" in text:
                return "traceback", text.strip().splitlines()[-1][:300]
            if (found := control_character(text.replace("\n", ""))) is not None:
                return "unclear", f"the output holds the control character {found!r}"
        return ("traceback", f"ended by signal {-self.code}") if self.code < 0 else None


def run(
    name: str,
    arguments: Sequence[str | Path],
    limit: int | None = None,
    folder: Path | None = None,
) -> Ended:
    """Runs a command until it ends.

    Args:
        limit: The longest file, in bytes, that the system lets it write.
        folder: Where it runs, and has its cache and its ledger; None: here, with the user's.
    """
    began, child = time.monotonic(), started(name, arguments, limit, folder)
    try:
        out, err = child.communicate(timeout=TIMEOUT)
    except TimeoutError:
        return Ended(name, child.wait(), "", "", time.monotonic() - began, hung=True)
    return Ended(name, child.wait(), out, err, time.monotonic() - began)


def run_and_kill(name: str, arguments: Sequence[str | Path], after: float, begun: bool) -> Ended:
    """Runs a command and kills it by SIGKILL after some seconds, unless it has ended by itself.

    begun: whether the seconds count from its first line on stderr, when imports are done and models loaded.
    """
    began, child = time.monotonic(), started(name, arguments)
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


def started(
    name: str, arguments: Sequence[str | Path], limit: int | None = None, folder: Path | None = None
) -> ForkedProgram:
    """Starts a command; see `run`."""
    variables = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if folder is not None:
        variables |= {CACHE_VARIABLE: str(folder / "cache"), STATE_VARIABLE: str(folder / "state")}
    program = partial(_command, name, limit, folder)
    return ForkedProgram(program, *map(str, arguments), variables=variables, daemon=False)


def _command(name: str, limit: int | None, folder: Path | None) -> None:
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if folder is not None:
        os.chdir(folder)
    torch.set_num_threads(1)  # was imported before OMP_NUM_THREADS was set
    import_module(f"fsd_calib.cli.{name}").main()
