"""Programs in processes forked from one that has imported what they import, for tests that start and kill many.

Imports take some ten seconds on two busy cores. A fork takes milliseconds, and a kill hits the work itself. What the
processes do is what `python PROGRAM ARGUMENTS` does, but for functions registered with `atexit`.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import pytest

from support.paths import environment

_PRELOADED = ["support.calibration.on_small_disk", "support.models.tiny_calibration", "support.traces.rows"]
_context = multiprocessing.get_context("forkserver")


def fork(target: Callable[..., None], *arguments: Any) -> Any:
    """Starts and returns a `multiprocessing.Process` that runs `target(*arguments)`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])  # the first fork starts the process that imports
        _context.set_forkserver_preload(_PRELOADED)
        forkserver.ensure_running()
    process = _context.Process(target=_forked, args=(target, *arguments), daemon=True)
    process.start()
    return process


def _forked(target: Callable[..., None], *arguments: Any) -> None:
    missing = [name for name in _PRELOADED if name not in sys.modules]
    assert not missing, f"{missing} were not imported before the fork"  # multiprocessing passes over what fails
    target(*arguments)


class ForkedProgram:
    """A process that runs a Python program, with what tests use of `subprocess.Popen`.

    Args:
        program: the program's file. What it imports should be among the modules above.
        arguments: those of its command line.
    """

    def __init__(self, program: Path | str, *arguments: str) -> None:
        (out, their_out), (err, their_err) = _context.Pipe(duplex=False), _context.Pipe(duplex=False)
        self._process = fork(_run, str(program), arguments, environment(), their_out, their_err)
        their_out.close()
        their_err.close()
        self.stdout, self.stderr = _text_of(out), _text_of(err)

    def poll(self) -> int | None:
        """Returns the exit code, negative for a signal, or None while the process runs."""
        return self._process.exitcode  # type: ignore[no-any-return]

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            self.kill()
            raise TimeoutError(f"the program ran for more than {timeout} s")
        return code

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Returns what the program has written to stdout and stderr when it has ended."""
        with ThreadPoolExecutor(2) as readers:  # a full pipe would stop the program
            output, errors = [readers.submit(stream.read) for stream in (self.stdout, self.stderr)]
            self.wait(timeout)
            return output.result(), errors.result()


def run(program: Path | str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end."""
    process = ForkedProgram(program, *arguments)
    output, errors = process.communicate(timeout=500)
    return subprocess.CompletedProcess([str(program), *arguments], process.wait(), output, errors)


def _text_of(pipe: Connection) -> IO[str]:
    return open(os.dup(pipe.fileno()), encoding="utf-8")


def _run(program: str, arguments: tuple[str, ...], variables: dict[str, str], out: Connection, err: Connection) -> None:
    for pipe, stream in (out, 1), (err, 2):
        os.dup2(pipe.fileno(), stream)
        pipe.close()
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)  # those inherited may take it for a file
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")
