"""The project's commands as processes, and what their output may not hold.

`run` and its like fork them from a process that has imported what they import, so that a kill hits their work.
`fresh` starts them as a shell does.
"""

from __future__ import annotations

import os
import queue
import re
import resource
import subprocess
import sys
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
from lib.attacks.cases import Verdict
from lib.attacks.guarded import control_character
from lib.common.forked_programs import ForkedProgram, environment

TIMEOUT = 1800.0  # seconds; on a busy machine a calibration takes ten minutes


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
        name = self.name.replace("_", "-")
        return self.code == 2 and re.match(rf"fsd-{name}(-predictor)?: error: ", self.last_line) is not None

    def complaint(self) -> Verdict | None:
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
    began = time.monotonic()
    return ended(name, started(name, arguments, limit, folder), began)


def run_and_kill(name: str, arguments: Sequence[str | Path], after: float, begun: bool) -> Ended:
    """Runs a command and kills it by SIGKILL after some seconds, unless it has ended by itself.

    begun: whether the seconds count from its first line on stderr, when imports are done and models loaded.
    """
    began, child = time.monotonic(), started(name, arguments)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def drain() -> None:
        for line in child.stderr:
            lines.put(line)
        lines.put("")

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    first = lines.get(timeout=TIMEOUT) if begun else ""
    with suppress(TimeoutError):
        child.wait(after)
    out, code = child.stdout.read(), child.wait()
    reader.join()
    err = first + "".join(lines.get() for _ in range(lines.qsize()))
    return Ended(name, code, out, err, time.monotonic() - began)


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


_START = "import sys; from fsd_calib.cli import entry; sys.argv[0] = 'fsd'; getattr(entry, sys.argv.pop(1))()"


def fresh(name: str, arguments: Sequence[str | Path], folder: Path, *shell: str) -> subprocess.Popen[str]:
    """Starts a command in an interpreter of its own, as a shell does. shell: redirections."""
    command = [sys.executable, "-c", _START, name, *map(str, arguments)]
    variables = environment() | {CACHE_VARIABLE: str(folder / "cache"), STATE_VARIABLE: str(folder / "state")}
    return subprocess.Popen(
        ["bash", "-c", " ".join(['exec "$@"', *shell]), "bash", *command], env=variables, cwd=folder, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        errors="replace",
    )  # fmt: skip


def ended(name: str, process: ForkedProgram | subprocess.Popen[str], began: float) -> Ended:
    """Waits for the end of a command, which is killed where it does not come. began: by `time.monotonic`."""
    out = err = ""
    hung = False
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    except (TimeoutError, subprocess.TimeoutExpired):
        hung = True
        process.kill()
    return Ended(name, process.wait(), out, err, time.monotonic() - began, hung)
