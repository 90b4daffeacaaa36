"""Running a program in the sandbox: the only way in which this package runs code that a model wrote."""

from __future__ import annotations

from fsd_calib.tasks.sandbox.limits import Limits, Outcome
from fsd_calib.tasks.sandbox.preflight import checked_bwrap
from fsd_calib.tasks.sandbox.process import run_in


def run_python(program: str, limits: Limits | None = None, beside: str | None = None) -> Outcome:
    """Runs a program as the interpreter of this process, without its packages, would; it may be called from threads.

    Args:
        program: Source text. It passes if it runs to its end: an exception, `sys.exit` and `os._exit` are failures. It
            cannot start processes, and has the standard library only.
        beside: Another program, with which it is connected; see `run_in`.

    Raises:
        UsageError: There is no sandbox here; see `checked_bwrap`. A program is never run without one.
    """
    return run_in(checked_bwrap(), program, limits or Limits(), beside)
