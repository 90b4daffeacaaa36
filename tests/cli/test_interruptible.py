"""Ctrl-C within a command: what it keeps is said, whatever a library makes of the interruption."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import typer

from fsd_calib.cli import entry
from fsd_calib.cli.console import INTERRUPTED, RunInterruptedError, interruptible, run
from fsd_common.errors import UsageError
from support.messages import error_line

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
INTERRUPTED_AT = """
import os, signal, sys

command, module = sys.argv[1:]
del sys.argv[1:]

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

from fsd_calib.cli import entry
sys.meta_path.insert(0, Interrupting())
getattr(entry, command)()
"""


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


@pytest.mark.parametrize("error", [ImportError("cut off"), UsageError("cut off"), OSError(5, "cut off")])
def test_an_error_of_a_command_made_of_ctrl_c_is_the_interruption(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    app = typer.Typer()

    @app.command()
    def command() -> None:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise error

    assert run(app, "fsd-x", []) == INTERRUPTED
    assert error_line(capsys) == "fsd-x: interrupted"


def test_every_command_has_an_entry() -> None:
    scripts = tomllib.loads(PROJECT.read_text())["project"]["scripts"]
    assert len(scripts) >= 10
    for name, place in scripts.items():
        called = getattr(entry, place.removeprefix("fsd_calib.cli.entry:"))
        module, said = called.args
        assert (said, import_module(f"fsd_calib.cli.{module}").NAME) == (name, name)


@pytest.mark.parametrize(
    ("command", "module"),
    [("calibrate", "fsd_calib.cli.calibrate"), ("calibrate", "typer"), ("calibrate", "pydantic"),
     ("profile", "fsd_calib.cli.console"), ("train_predictor", "fsd_calib.cli.train_predictor")],
)  # fmt: skip
def test_ctrl_c_during_imports_is_one_line(command: str, module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT, command, module], capture_output=True, text=True, check=False
    )
    name = getattr(entry, command).args[1]
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", f"{name}: interrupted\n")
