"""A program in the sandbox: what passes, what it sees, and programs at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fsd_calib.tasks.sandbox.run import run_python
from support.sandboxes import SMALL, skip_without_sandbox


@pytest.fixture(autouse=True)
def _sandbox() -> None:
    skip_without_sandbox()


def test_a_program_passes_that_runs_to_its_end() -> None:
    outcome = run_python("import json, math, collections, dataclasses\nprint(math.comb(5, 2), 'é')")
    assert outcome.passed
    assert outcome.output == "10 é\n"
    assert 0 < outcome.seconds < 30


@pytest.mark.parametrize(
    "program", ["1 / 0", "raise SystemExit", "raise KeyboardInterrupt", "x =", "\0", "input()", "\ud800"]
)
def test_a_program_fails_that_raises(program: str) -> None:
    outcome = run_python(program)
    assert outcome.ending == "failed"
    assert "Error" in outcome.output or "Exit" in outcome.output or "Interrupt" in outcome.output


def test_a_long_program_passes() -> None:
    assert run_python("x = 1\n" * 100_000 + "assert x").passed


def test_main_blocks_do_not_run_and_dataclasses_work() -> None:
    program = "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int'\nA(1)\n"
    assert run_python(f"{program}if __name__ == '__main__':\n    raise ValueError\n").passed


def test_packages_of_this_environment_are_not_there() -> None:
    assert "ModuleNotFoundError" in run_python("import numpy").output


def test_the_order_of_sets_is_the_same_in_each_run() -> None:
    program = "print({str(n) for n in range(50)})"
    assert run_python(program).output == run_python(program).output


def test_programs_at_the_same_time_have_their_own_outcomes() -> None:
    programs = [f"print({n})\nassert {n} % 3" for n in range(12)]
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda program: run_python(program, SMALL), programs))
    assert [outcome.passed for outcome in outcomes] == [bool(n % 3) for n in range(12)]
    assert [outcome.output.splitlines()[0] for outcome in outcomes] == [str(n) for n in range(12)]


def test_limits_hold_inside() -> None:
    names = ["CPU", "AS", "FSIZE", "NPROC", "NOFILE", "CORE"]
    program = f"import resource\nprint([resource.getrlimit(getattr(resource, 'RLIMIT_' + n)) for n in {names}])"
    expected = [SMALL.cpu, SMALL.memory, SMALL.disk, SMALL.threads, SMALL.files, 0]
    assert run_python(program, SMALL).output == f"{[(limit, limit) for limit in expected]}\n"
