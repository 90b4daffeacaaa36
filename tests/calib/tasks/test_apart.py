"""Grading in a process of its own: texts that break a grader are wrong, counted and told, and end no run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from fsd_calib.tasks import load_task
from fsd_calib.tasks.base import Problem
from fsd_calib.tasks.grading import apart, graders
from fsd_calib.tasks.grading.apart import Apart, broken_texts
from fsd_calib.tasks.grading.graders import extracting, same_expression, same_text
from fsd_common.errors import UsageError
from lib.common.forked_programs import environment
from support.calibration.harness_tasks import write_task

DEEDS = Apart("support.crude_graders:deeds", seconds=0.5)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """No verdict is known, and nothing was told."""
    apart._verdict.cache_clear()
    apart._broken.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def with_reference(reference: str) -> Problem:
    return Problem(1, "", "", reference, None)


def test_a_process_is_used_again() -> None:
    assert DEEDS("who a") == DEEDS("who b") != str(os.getpid())


@pytest.mark.thinned(every=7)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("spin", "it took more than 0.5 s of CPU time"), ("power", "it took more than 0.5 s of CPU time"),
        ("fill 4000000000", "MemoryError"), ("crash", "its process ended with status -11"),
        ("exit 3", "its process ended with status 3"), ("exit 0", "its process ended with status 0"),
        ("raise no", "ValueError: no"),
    ],
)  # fmt: skip
def test_a_text_that_breaks_a_grader_is_wrong_and_told(text: str, why: str) -> None:
    with pytest.warns(UserWarning, match=f"a text broke its grader .{why}.*counts as wrong.*: '{text}'"):
        assert DEEDS(text) is None
    assert DEEDS("say well") == "well"


def test_a_text_that_waits_is_ended_by_the_clock() -> None:
    apart.renew()
    began = time.monotonic()
    assert replace(DEEDS, seconds=0.1)("sleep 600") is None
    assert time.monotonic() - began < 60


def test_verdicts_are_kept_and_broken_texts_counted_once() -> None:
    for _ in range(3):
        assert DEEDS("raise a") is DEEDS("raise b") is None
    assert broken_texts() == 2


def test_what_a_grader_prints_is_no_verdict() -> None:
    assert DEEDS('print {"value": 1}') == '{"value": 1}'


def test_half_characters_are_graded() -> None:
    assert DEEDS("say \ud800\x00\u2028\n") == "\ud800\x00\u2028\n"


def test_threads_get_their_own_verdicts() -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = [f"{'raise' if n % 7 == 0 else 'say'} {n}" for n in range(200)]
        expected = [None if n % 7 == 0 else str(n) for n in range(200)]
        assert list(pool.map(DEEDS, texts)) == expected


def test_a_grader_that_does_not_exist_is_refused() -> None:
    refusing = Apart("fsd_calib.tasks.yaml_task:own_function", ("/nowhere/task.yaml", "nowhere.same"))
    for _ in range(2):
        with pytest.raises(UsageError, match=r"nowhere\.same cannot be imported"):
            refusing("a", "b")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        ("support.crude_graders:nothing", "cannot be made .AttributeError"),
        ("os:abort", "its process ended with status -6"),
    ],
)
def test_a_process_that_cannot_make_its_grader_blames_no_text(make: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"grader {make}:? .*{why}"):
        Apart(make)("a text")
    assert broken_texts() == 0


def test_a_process_that_was_ended_meanwhile_is_replaced() -> None:
    os.kill(int(DEEDS("who a")), signal.SIGKILL)
    assert DEEDS("say more") == "more"
    assert broken_texts() == 0


def test_a_forked_process_has_a_grader_of_its_own() -> None:
    here = DEEDS("who here")
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, str(DEEDS("who there")).encode())
        apart._PROCESS.end()
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 99).decode() not in ("", here)
    assert DEEDS("who still") == here


ENDED = """
import os, sys, threading, time
from support.crude_graders import deeds
from fsd_calib.tasks.grading.apart import Apart
grader = Apart("support.crude_graders:deeds", seconds=60)
print(grader("who"), flush=True)
{last}
"""


@pytest.mark.parametrize("doing", ["grader('power')", "grader('sleep 600')", "time.sleep(600)"])
def test_the_process_ends_with_the_one_that_it_grades_for(doing: str) -> None:
    command = [sys.executable, "-c", ENDED.format(last=doing)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        grader = int(process.stdout.readline())
        time.sleep(0.3)
        process.kill()
    assert gone(grader)


def test_ctrl_c_ends_the_grading_and_not_its_process_s_way() -> None:
    command = [sys.executable, "-c", ENDED.format(last="grader('sleep 600')")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    ) as process:
        assert process.stdout is not None
        grader = int(process.stdout.readline())
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert said.count("KeyboardInterrupt") == said.count("Traceback") == 1
    assert gone(grader)


def gone(process: int) -> bool:
    """Whether a process has ended, or does within half a minute."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        stat = Path(f"/proc/{process}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.thinned(every=5)
@pytest.mark.parametrize(
    "text", [r"\boxed{9^{9^{9^9}}}", r"\boxed{100000000!}", r"\boxed{\binom{1000000000}{500000000}}",
             r"\boxed{(x+1)^{5000}}", rf"\boxed{{{'1' * 5000}}}"],
)  # fmt: skip
def test_an_expression_that_never_ends_is_wrong(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread too, where math-verify itself has no way to stop."""
    pytest.importorskip("math_verify", reason="math-verify is not installed (extra 'math')")
    monkeypatch.setattr(graders, "_COMPARISON", replace(graders._COMPARISON, seconds=1.0))
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(same_expression, with_reference(r"\boxed{0.5}"), text).result()
    with monkeypatch.context() as remembered:
        remembered.setattr(apart._PROCESS, "ask", lambda *request: pytest.fail("it is compared again"))
        assert not same_expression(with_reference(r"\boxed{0.5}"), text)
    assert same_expression(with_reference(r"\boxed{0.5}"), r"\boxed{\frac12}")


def test_no_part_of_a_deep_expression_is_taken_for_it() -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed (extra 'math')")
    nested = "\\frac{1}{" * 300 + "2" + "}" * 300  # which is 2
    assert not same_expression(with_reference(r"\boxed{\frac{1}{2}}"), rf"\boxed{{{nested}}}")
    assert same_expression(with_reference(r"\boxed{2}"), r"\boxed{\frac{1}{\frac{1}{2}}}")


@pytest.mark.slow
def test_an_expression_that_backtracks_is_wrong() -> None:
    grader = extracting(r"(a|aa)+$", same_text)
    with pytest.warns(UserWarning, match="took more than 5 s of CPU time"):
        assert not grader(with_reference("a"), "a" * 60 + "b")
    assert grader(with_reference("a"), "ba")


@pytest.mark.slow
def test_a_filter_of_lm_eval_that_backtracks_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lm_eval")
    monkeypatch.setattr("fsd_calib.tasks.harness._SECONDS", 1.0)
    filters = [{"name": "end", "filter": [{"function": "regex", "regex_pattern": "#### (?:a|aa)*(\\d+)$"},
                                          {"function": "take_first"}]}]  # fmt: skip
    task = load_task(f"lm-eval:{write_task(tmp_path, changes={'filter_list': filters})}")
    problem = task.problems[0]
    with pytest.warns(UserWarning, match="took more than 1 s of CPU time"):
        assert not task.grade(problem, f"#### {'a' * 60}b")
    assert not task.grade(problem, "no")


@pytest.mark.slow
def test_a_function_that_changed_grades_anew(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "Q", "answer": "A"}\n')
    description = tmp_path / "task.yaml"
    description.write_text("data: rows.jsonl\ngrader: python\nfunction: changing_grader.same\n")
    for right in (True, False):
        (tmp_path / "changing_grader.py").write_text(
            f"def same(reference, text):\n    return {right}  # {'x' * right}\n"
        )
        task = load_task(str(description))
        assert task.grade(task.problems[0], "A") == right


def test_graders_that_end_on_any_text_need_no_process() -> None:
    apart.renew()
    task = load_task("arithmetic", limit=20)
    assert all(task.grade(problem, problem.reference) for problem in task.problems)
    assert apart._PROCESS._child is None
