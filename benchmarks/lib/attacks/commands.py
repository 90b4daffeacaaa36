"""The project's commands as processes, and what their output may not hold."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = child.communicate()
        err += f"\nkilled after {TIMEOUT:.0f} s"
    return Ended(name, child.returncode, out, err, time.monotonic() - began)


def run_and_kill(name: str, arguments: Sequence[str | Path], after: float, begun: bool) -> Ended:
    """Runs a command and kills it by SIGKILL after some seconds, unless it has ended by itself.

    begun: whether the seconds count from its first line on stderr, when imports are done and models loaded.
    """
    began, child = time.monotonic(), _start(name, arguments)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert child.stderr is not None
    reader = threading.Thread(target=_drain, args=(child.stderr, lines), daemon=True)
    reader.start()
    first = lines.get(timeout=TIMEOUT) if begun else ""
    try:
        child.wait(after)
    except subprocess.TimeoutExpired:
        child.kill()
    out, _ = child.stdout.read() if child.stdout else "", child.wait()
    reader.join()
    err = first + "".join(lines.get() for _ in range(lines.qsize()))
    return Ended(name, child.returncode, out, err, time.monotonic() - began)


def _drain(stream: object, lines: queue.SimpleQueue[str]) -> None:
    for line in stream:  # type: ignore[attr-defined]
        lines.put(line)
    lines.put("")


def _start(name: str, arguments: Sequence[str | Path], limit: int | None = None) -> subprocess.Popen[str]:
    source = f"from fsd_calib.cli.{name} import main; main()"
    if limit is not None:
        source = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); {source}"
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-c", source, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | paths,
        errors="replace",
    )  # fmt: skip
