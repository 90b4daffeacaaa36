"""Ctrl-C noticed, kept from child processes, or held back while a step runs that must not be left half-way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Interrupt = Callable[[], None]


@contextmanager
def held_back() -> Iterator[None]:
    """Inside, Ctrl-C waits; it takes effect at the end of the block, whether or not that ends by an exception."""
    came: list[Interrupt] = []
    try:
        with _handled_by(came.append):
            yield
    finally:
        if came:
            came[0]()


@contextmanager
def kept_from_children() -> Iterator[None]:
    """Inside, processes start with Ctrl-C blocked, which reaches all processes of a terminal, however young.

    This thread has it blocked meanwhile, which a process inherits; one that comes takes effect at the end of the block.
    """
    if os.name == "nt":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def noticed() -> Iterator[Callable[[], bool]]:
    """Inside, Ctrl-C does what it did before; yields a function that says whether it came."""
    came: list[Interrupt] = []

    def note(interrupt: Interrupt) -> None:
        came.append(interrupt)
        interrupt()

    with _handled_by(note):
        yield lambda: bool(came)


@contextmanager
def _handled_by(take: Callable[[Interrupt], object]) -> Iterator[None]:
    """Inside, Ctrl-C calls `take` with what it would have done.

    Signals reach the main thread alone, and where Ctrl-C is ignored or ends the process nothing is changed.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        take(lambda: before(number, frame))

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
