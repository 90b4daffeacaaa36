"""Calls a function in a fresh Python process and waits for what it returns."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from fsd_decoding.errors import UsageError

Given = TypeVar("Given")
Returned = TypeVar("Returned")

_SERVE = f"from {__name__} import serve; serve()"


def in_fresh_process(work: Callable[[Given], Returned], given: Given) -> Returned:
    """What `work(given)` returns in an interpreter that has done nothing else.

    Not by `multiprocessing`, which begins a process by running the caller's script again, and with it a whole
    calibration where that script is not guarded by `if __name__ == "__main__"`.

    Args:
        work: a module's function; its argument and what it returns are pickled.

    Raises:
        UsageError: `work` raised anything, or the process died.
    """
    with TemporaryDirectory() as folder:
        asked, answered = Path(folder, "asked"), Path(folder, "answered")
        asked.write_bytes(pickle.dumps((work, given)))
        command = [sys.executable, "-P", "-c", _SERVE, str(asked), str(answered)]
        ended = subprocess.run(
            command, env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace",
        )  # fmt: skip
        if ended.returncode:
            raise UsageError(_reason(ended.returncode, ended.stdout))
        returned: Returned = pickle.loads(answered.read_bytes())
        return returned


def serve() -> None:
    """The fresh process's own part."""
    asked, answered = map(Path, sys.argv[1:])
    work, given = pickle.loads(asked.read_bytes())
    try:
        returned = work(given)
    except UsageError as error:
        sys.exit(" ".join(str(error).split()))
    answered.write_bytes(pickle.dumps(returned))


def _environment() -> dict[str, str]:
    """Modules are found where this process finds them, and nowhere before that: hence `-P` too."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def _reason(code: int, said: str) -> str:
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name}, as where memory runs out"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with exit code {code}"
