"""Full disks, closed pipes and too little memory: one line and an exit code, and nothing that was finished is lost."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from fsd_calib.cli.console import explanation
from fsd_calib.engines.base import KeyedPrompt
from fsd_calib.measuring.result_cache import CachedText, ResultCache
from lib.common.forked_programs import environment, run
from support.calibration.cached_results import KEY, result
from support.calibration.profiles import profile
from support.messages import usage_error
from support.paths import ROOT
from support.small_disks import small_disk

PROGRAM = ROOT / "tests" / "support" / "calibration" / "on_small_disk.py"
WORKER = ROOT / "tests" / "support" / "calibration" / "search_worker.py"
SHOW = [sys.executable, "-c", "from fsd_calib.cli.profile import main; main()", "show"]


def completed(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment(), text=True, timeout=500, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload, no-any-return]


# Files


def fill(path: Path, kept: dict[int, tuple[KeyedPrompt, CachedText]]) -> None:
    with ResultCache(path) as cache:
        for number in range(10_000):
            query = KeyedPrompt(number, f"prompt {number}")
            kept[number] = query, cache.add(KEY, query, 0.2, result("long " * 200))


@pytest.mark.parametrize("kilobytes", [8, 16, 24, 48, 64, 72, 96, 128, 200, 400])
def test_a_cache_on_a_full_disk_keeps_what_it_took(kilobytes: int, tmp_path: Path) -> None:
    path = tmp_path / "disk" / "cache" / "decodings.sqlite"
    kept: dict[int, tuple[KeyedPrompt, CachedText]] = {}
    with small_disk(tmp_path / "disk", kilobytes) as enlarge, warnings.catch_warnings():
        warnings.simplefilter("error")  # a cache that was begun and not finished is no damaged one
        said = usage_error(lambda: fill(path, kept))
        assert str(path) in said
        assert re.search("No space left on device.*free space.*the same command resumes", said)
        enlarge()
        with ResultCache(path) as cache:
            for query, row in kept.values():
                assert cache.find(KEY, [query], 0.2) == {0: row}
            cache.add(KEY, KeyedPrompt(-1, "new"), 0.2, result())
        assert [
            file.name for file in path.parent.iterdir() if "damaged" in file.name or file.name.endswith(".tmp")
        ] == []
    assert kilobytes < 100 or kept


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kilobytes"), [("journal", 4), ("journal", 8), ("sqlite", 64)])
def test_a_study_on_a_full_disk_keeps_its_trials(kind: str, kilobytes: int, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    storage = str(disk / "study.log") if kind == "journal" else f"sqlite:///{disk}/study.db"
    with small_disk(disk, kilobytes) as enlarge:
        first = run(WORKER, storage, "0")
        assert first.returncode == 1
        *_, last = first.stderr.splitlines()
        assert re.match(rf".*UsageError: .*{disk}.*(full|No space|disk I/O).*(free|check)", last)
        enlarge()
        again = run(WORKER, storage, "0")
        assert again.returncode == 0, again.stderr
        assert "damaged" not in again.stderr


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Traces to plot."""
    folder = tmp_path_factory.mktemp("collected")
    assert run(PROGRAM, "collect", str(folder)).returncode == 0
    return str(folder / "traces")


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [16, 64, 256])
@pytest.mark.parametrize("command", ["calibrate", "collect", "plot"])
def test_a_command_on_a_full_disk_says_so_and_resumes(
    command: str, kilobytes: int, collected: str, tmp_path: Path
) -> None:
    traces = [collected] if command == "plot" else []
    with small_disk(tmp_path / "disk", kilobytes) as enlarge:
        first = run(PROGRAM, command, str(tmp_path / "disk"), *traces)
        if first.returncode not in (0, 3):
            assert first.returncode == 2
            *_, last = first.stderr.splitlines()
            assert last.startswith("tiny: error: ")
            assert str(tmp_path / "disk") in last
            assert "No space left on device" in last
            assert "free space" in last
        assert "Traceback" not in first.stderr
        assert first.returncode == 2 or kilobytes > 64
        enlarge()
        again = run(PROGRAM, command, str(tmp_path / "disk"), *traces)
        assert again.returncode in (0, 3), again.stderr
        assert "damaged" not in again.stderr


# Standard streams


@pytest.fixture
def shown(tmp_path: Path) -> list[str]:
    profile().save(tmp_path / "profile.json")
    return [*SHOW, str(tmp_path / "profile.json")]


@pytest.mark.parametrize("arguments", [[], ["--help"]], ids=["report", "help"])
def test_a_full_stdout_is_one_line(arguments: list[str], shown: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        ran = completed([*shown, *arguments], stdout=full)
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    place = "a file or stdout" if arguments else "'stdout'"  # the help is typer's
    assert line == (
        f"fsd-profile: error: {place} cannot be written: No space left on device; free space, and run the same "
        "command again"
    )


def test_a_full_stderr_changes_no_exit_code(shown: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run([*SHOW, "missing.json"], env=environment(), stderr=full, timeout=60)
    assert ran.returncode == 2


def test_a_reader_that_has_gone_ends_a_command_silently(shown: list[str]) -> None:
    child = subprocess.Popen(shown, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.close()
    assert child.stderr is not None
    said = child.stderr.read()
    assert child.wait(60) == 141
    assert said == ""


# Memory


ALLOCATE = """
import resource, sys, typer
from fsd_calib.cli.console import leave
import numpy as np
app = typer.Typer(pretty_exceptions_enable=False)
@app.command()
def command() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    np.zeros(1 << 40)
leave(app, "tiny")
"""


def test_a_memory_limit_is_one_line() -> None:
    ran = completed([sys.executable, "-c", ALLOCATE])
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert line.startswith("tiny: error: out of memory (Unable to allocate 8.00 TiB")
    assert "--batch-size" in line


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "out of memory; free memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), "out of memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory"),
        (ImportError("libx.so: failed to map segment from shared object"), "out of memory"),
        (OSError(12, "Cannot allocate memory"), "out of memory"),
        (PermissionError(13, "Permission denied", "/x/y"), "'/x/y' cannot be used: Permission denied"),
        (OSError(28, "No space left on device", b"/x"), "'/x' cannot be written: No space left on device; free space"),
        (RuntimeError("Error while serializing: IoError(No space left on device (os error 28))"), "free space"),
    ],
)
def test_known_failures_are_explained(error: Exception, said: str) -> None:
    assert said in (explanation(error) or "")


def test_the_failure_behind_another_is_explained() -> None:
    hiding = AssertionError("Should not reach.")
    hiding.__context__ = OSError(28, "No space left on device", "/x/study.log")
    assert "'/x/study.log' cannot be written" in (explanation(hiding) or "")


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("memory"), AssertionError(), RuntimeError("shape")])
def test_a_fault_of_the_program_is_not_explained(error: Exception) -> None:
    assert explanation(error) is None
