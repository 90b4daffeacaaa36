"""The commands that pyproject.toml names. Ctrl-C ends one in a line even while Python still imports what it needs."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import FrameType
from typing import NoReturn

_INTERRUPTED = 130


def _run(module: str, name: str) -> None:
    """Runs the command of a module of this package."""
    before = signal.getsignal(signal.SIGINT)
    try:
        if before is signal.default_int_handler:  # a shell may start what it puts into the background without Ctrl-C
            signal.signal(signal.SIGINT, partial(_leave, name))
        main = import_module(f"fsd_calib.cli.{module}").main
        signal.signal(signal.SIGINT, before)
        main()
    except KeyboardInterrupt:
        _leave(name)


def _leave(name: str, number: int = 0, frame: FrameType | None = None) -> NoReturn:
    """Ends the process at once: an exception might be caught, or made another, within the import of a library."""
    if sys.stderr is not None:
        with suppress(OSError):  # nobody reads it any more
            os.write(sys.stderr.fileno(), f"{name}: interrupted\n".encode())
    os._exit(_INTERRUPTED)


fsd = partial(_run, "fsd", "fsd")
calibrate = partial(_run, "calibrate", "fsd-calibrate")
check = partial(_run, "check", "fsd-check")
collect = partial(_run, "collect", "fsd-collect")
generate = partial(_run, "generate", "fsd-generate")
inspect = partial(_run, "inspect", "fsd-inspect")
profile = partial(_run, "profile", "fsd-profile")
report = partial(_run, "report", "fsd-report")
tasks = partial(_run, "tasks", "fsd-tasks")
traces = partial(_run, "traces", "fsd-traces")
train_eagle = partial(_run, "train_eagle", "fsd-train-eagle")
tune = partial(_run, "tune", "fsd-tune")
train_predictor = partial(_run, "train_predictor", "fsd-train-predictor")
