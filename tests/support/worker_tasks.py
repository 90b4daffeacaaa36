"""Work for worker processes: it imports nothing heavy, so that they start at once."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from fsd_common.errors import NumericalError, UsageError


def pid_after(seconds: float) -> int:
    print("to nobody")
    print("to nobody either", file=sys.stderr)
    time.sleep(seconds)
    return os.getpid()


def show_progress(steps: int) -> int:
    """Shows a bar, as loading a model does."""
    from tqdm import tqdm

    return sum(1 for _ in tqdm(range(steps)))


def refuse(number: int) -> None:
    error = NumericalError(f"prompt {number} is refused")
    error.finished = {number: "done"}
    raise error


def break_down(number: int) -> float:
    return number / 0


class OfTwoArgumentsError(Exception):
    """An exception that `pickle` cannot make again."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"number {number}: {reason}")


def break_down_oddly(number: int) -> None:
    raise OfTwoArgumentsError(number, "odd")


def die(number: int) -> int:
    """Ends the process where the number is negative."""
    if number < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return number


def die_after(path: str, number: int) -> int:
    """Ends the process where the number is negative, as soon as there is such a file."""
    if number < 0:
        while not Path(path).exists():
            time.sleep(0.01)
    return die(number)


def die_unless(path: str) -> str:
    """Ends the process where there is no such file, and makes it first."""
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path


def write_and_wait(path: str) -> None:
    """Writes the process's id, and waits for a minute."""
    Path(path).write_text(str(os.getpid()))
    time.sleep(60)


def refuse_usage(number: int) -> None:
    raise UsageError(f"number is {number}; it must be another")


def divide_by(number: int) -> float:
    return 1 / number
