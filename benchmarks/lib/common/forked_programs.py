"""Programs in processes forked from one that has imported what they import, for work that starts and kills many.

Imports take some ten seconds on two busy cores. A fork takes milliseconds, and a kill hits the work itself. What the
processes do is what `python PROGRAM ARGUMENTS` does, but for functions registered with `atexit`.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

_PRELOADED = [
    "fsd_calib.calibration.api", "fsd_calib.report.console", "fsd_predictors.training.api",
    "transformers.models.llama.modeling_llama",
]  # fmt: skip
_context = multiprocessing.get_context("forkserver")


def preload(*modules: str) -> None:
    """Lets further modules be imported before forks. Call it before the first one."""
    _PRELOADED.extend(modules)


def environment() -> dict[str, str]:
    """The environment of a child process that can import what this one can."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def fork(target: Callable[..., None], *arguments: Any, daemon: bool = True) -> Any:
    """Starts and returns a `multiprocessing.Process` that runs `target(*arguments)`."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]  # the first fork starts the process that imports
    try:
        _context.set_forkserver_preload(_PRELOADED)
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)
    process = _context.Process(target=_forked, args=(target, *arguments), daemon=daemon)
    process.start()
    return process


def _forked(target: Callable[..., None], *arguments: Any) -> None:
    missing = [name for name in _PRELOADED if name not in sys.modules]
    assert not missing, f"{missing} were not imported before the fork"  # multiprocessing passes over what fails
    target(*arguments)


class ForkedProgram:
    """A process that runs a Python program, with what is used of `subprocess.Popen`.

    Args:
        program: The program's file, or a function without arguments that can be pickled.
        arguments: Those of its command line.
        variables: Environment variables besides this process's own.
        daemon: Whether it is killed when this process ends. Python lets no such process start others.
    """

    def __init__(
        self,
        program: Path | str | Callable[[], None],
        *arguments: str,
        variables: Mapping[str, str] | None = None,
        daemon: bool = True,
    ) -> None:
        (out, their_out), (err, their_err) = _context.Pipe(duplex=False), _context.Pipe(duplex=False)
        settings = environment() | dict(variables or {})
        program = program if callable(program) else str(program)
        self._process = fork(_run, program, arguments, settings, their_out, their_err, daemon=daemon)
        their_out.close()
        their_err.close()
        self.stdout, self.stderr = _text_of(out), _text_of(err)

    @property
    def pid(self) -> int:
        return self._process.pid  # type: ignore[no-any-return]

    def poll(self) -> int | None:
        """Returns the exit code, negative for a signal, or None while the process runs."""
        return self._process.exitcode  # type: ignore[no-any-return]

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code. Raises TimeoutError where the process ran for so many seconds, and kills it."""
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            self.kill()
            self._process.join()
            raise TimeoutError(f"the program ran for more than {timeout} s")
        return code

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Returns what the program has written to stdout and stderr when it has ended; see `wait`."""
        with ThreadPoolExecutor(2) as readers:  # a full pipe would stop the program
            output, errors = [readers.submit(stream.read) for stream in (self.stdout, self.stderr)]
            self.wait(timeout)
            return output.result(), errors.result()


def run(program: Path | str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end."""
    process = ForkedProgram(program, *arguments, daemon=False)
    output, errors = process.communicate(timeout=500)
    return subprocess.CompletedProcess([str(program), *arguments], process.wait(), output, errors)


def _text_of(pipe: Connection) -> IO[str]:
    return open(os.dup(pipe.fileno()), encoding="utf-8", errors="replace")


def _run(
    program: str | Callable[[], None],
    arguments: tuple[str, ...],
    variables: dict[str, str],
    out: Connection,
    err: Connection,
) -> None:
    for pipe, stream in (out, 1), (err, 2):
        os.dup2(pipe.fileno(), stream)
        pipe.close()
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)  # those inherited may take it for a file
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = [str(program), *arguments]
    if callable(program):
        program()
    else:
        sys.path.insert(0, str(Path(program).parent))  # as Python does
        runpy.run_path(program, run_name="__main__")
