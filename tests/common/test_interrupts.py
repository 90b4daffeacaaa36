"""Ctrl-C held back, or kept from children: it is delivered late, and never lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from fsd_common.interrupts import held_back, kept_from_children


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_takes_effect_at_the_end_of_the_block() -> None:
    done: list[str] = []

    def interrupted() -> None:
        with held_back():
            signal.raise_signal(signal.SIGINT)
            done.append("block")
        done.append("after")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == ["block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_outlives_an_error_of_the_block() -> None:
    def failing() -> None:
        with held_back():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("no process")

    with pytest.raises(KeyboardInterrupt) as caught:
        failing()
    assert isinstance(caught.value.__context__, ValueError)


def test_blocks_within_blocks_deliver_it_once() -> None:
    done: list[str] = []

    def nested() -> None:
        with held_back():
            with held_back():
                signal.raise_signal(signal.SIGINT)
            done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        nested()
    assert done == ["outer"]


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with held_back():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_children_are_spared_and_this_process_is_interrupted_afterwards() -> None:
    done: list[str] = []

    def starting() -> None:
        with kept_from_children():
            signal.raise_signal(signal.SIGINT)
            child = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('alive')"
            done.append(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout)

    with pytest.raises(KeyboardInterrupt):
        starting()
    assert done == ["alive\n"]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_other_threads_have_no_signals_to_hold_back() -> None:
    failed: list[BaseException] = []

    def block() -> None:
        try:
            with held_back():
                pass
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert failed == []
