"""Ctrl-C within a command: what it keeps is said, whatever a library makes of the interruption."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from fsd_calib.cli.console import RunInterruptedError, interruptible


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_with_what_is_kept() -> None:
    with pytest.raises(RunInterruptedError, match="all is kept"), interruptible(lambda: "all is kept"):
        signal.raise_signal(signal.SIGINT)


def test_an_error_made_of_ctrl_c_is_the_interruption() -> None:
    def cut_off() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("cut off") from None

    with pytest.raises(RunInterruptedError, match="all is kept"), interruptible(lambda: "all is kept"):
        cut_off()


def test_an_error_without_ctrl_c_stays_what_it_is() -> None:
    with pytest.raises(ImportError, match="missing"), interruptible(lambda: "all is kept"):
        raise ImportError("missing")
