"""Audits: what is said of a served text beside the lossless one, and which requests are audited."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.vllm_plugin.audit import NAMES, AuditLog, Grader, Pair, grader_named, is_audited
from fsd_calib.vllm_plugin.running_requests import RunningRequest
from fsd_calib.vllm_plugin.settings import ServeSettings
from fsd_calib.vllm_plugin.telemetry.counters import Counters, read_counters
from support.messages import usage_error
from support.models.tiny_models import word_tokenizer

TOKENS = st.lists(st.integers(3, 6), max_size=6)
TOKENIZER = word_tokenizer()
EOS = 1


def pair(served: list[int], lossless: list[int], greedy: bool = True, stops: tuple[str, ...] = ()) -> Pair:
    return Pair("r", [7, 8], served, lossless, RunningRequest(0.1, greedy, (), frozenset({EOS}), stops))


def log(folder: Path, grader: Grader | None = None, file: Path | None = None) -> AuditLog:
    return AuditLog(Counters(folder / "counters", NAMES), file, grader)


def counted(folder: Path) -> dict[str, float]:
    return {name: number for name, number in read_counters(folder / "counters", NAMES).items() if number}


@given(TOKENS, TOKENS)
def test_the_first_difference_is_where_texts_part(served: list[int], lossless: list[int]) -> None:
    place = pair(served, lossless).first_difference
    assert pair(served, lossless, greedy=False).first_difference is None  # chance parts them
    if place is None:
        assert served == lossless
        return
    assert served[:place] == lossless[:place]
    assert served[place : place + 1] != lossless[place : place + 1]


@pytest.mark.parametrize(
    ("served", "lossless", "outcome"),
    [([5], [5, 6], "both"), ([4], [5], "lost"), ([5, 6], [4], "gained"), ([4], [6], "neither")],
)
def test_outcomes_are_the_graders(served: list[int], lossless: list[int], outcome: str, tmp_path: Path) -> None:
    asked, wanted = [], TOKENIZER.decode([5])

    def right(prompt: str, answer: str) -> bool:
        asked.append(prompt)
        return wanted in answer.split()

    log(tmp_path, right).add(pair(served, lossless), TOKENIZER)
    assert counted(tmp_path)[outcome] == 1
    assert asked == [TOKENIZER.decode([7, 8])] * 2


def test_a_grader_is_given_what_clients_get(tmp_path: Path) -> None:
    """Neither the token that ends a text, nor the stop string and what is behind it."""
    answers = []

    def note(prompt: str, answer: str) -> bool:
        answers.append(answer.strip())
        return True

    stop, before = (str(TOKENIZER.decode(tokens)) for tokens in ([6], [4, 5]))
    log(tmp_path, note).add(pair([4, 5, EOS], [4, 5, 6], stops=(stop,)), TOKENIZER)
    assert answers == [before, before]


def test_texts_are_counted_written_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = log(tmp_path, lambda prompt, answer: TOKENIZER.decode([3]) not in answer.split(), tmp_path / "audits.jsonl")
    with caplog.at_level(logging.INFO, "vllm.fsd"):
        for i in range(200):
            if i % 4 == 0:
                found.add(pair([4, 4, 3], [4, 4, 5, 5]), TOKENIZER)
            else:
                found.add(pair([5], [5] if i % 4 < 3 else [6], greedy=i % 4 < 3), TOKENIZER)
        found.drop()
    assert counted(tmp_path) == {
        "same": 100, "changed": 50, "sampled": 50, "dropped": 1, "tokens": 300, "lossless_tokens": 350,
        "first_difference": 100, "both": 150, "lost": 50,
    }  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "audits.jsonl").read_text().splitlines()]
    assert lines[0] == {
        "request": "r", "tokens": 3, "lossless_tokens": 4, "sampled": False, "first_difference": 2, "outcome": "lost",
    }  # fmt: skip
    assert len(lines) == 200
    assert [record.message for record in caplog.records] == [
        f"fsd: of {n} audited texts {3 * n // 4} are greedy, and {n // 4} of these differ from what lossless decoding "
        f"writes; {n // 4} right answers were lost and 0 gained" for n in (100, 200)
    ]  # fmt: skip


def test_a_file_that_cannot_be_written_is_said_once_and_texts_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = log(tmp_path, file=Path("/dev/full"))
    for _ in range(3):
        found.add(pair([5], [5]), TOKENIZER)
    assert counted(tmp_path)["same"] == 3
    (said,) = caplog.records
    assert said.message.startswith("fsd: audits are no longer written to /dev/full: ")


def test_a_grader_that_fails_is_given_up_and_texts_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(prompt: str, answer: str) -> bool:
        raise ZeroDivisionError("by zero")

    found = log(tmp_path, fails)
    for _ in range(3):
        found.add(pair([5], [5]), TOKENIZER)
    assert counted(tmp_path) == {"same": 3, "tokens": 3, "lossless_tokens": 3}
    (said,) = caplog.records
    assert said.message == "fsd: texts are no longer graded, as the grader failed: ZeroDivisionError: by zero"


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_about_the_share_of_requests_is_audited(share: float) -> None:
    """Outside 5 standard deviations in fewer than one of a million choices of ids; these are fixed."""
    count = 20_000
    found = sum(is_audited(f"request-{i}", share) for i in range(count))
    assert abs(found - share * count) <= 5 * (count * share * (1 - share)) ** 0.5


def test_a_grader_is_imported_by_its_name() -> None:
    assert grader_named("operator:contains")("2 + 2 = 4", "4")
    message = usage_error(lambda: grader_named("no_such_module:right"))
    assert message.startswith("grader is 'no_such_module:right', which cannot be imported: No module named")
    assert "which cannot be called" in usage_error(lambda: grader_named("math:pi"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"audit": 2}, "audit is 2; it must be a share of requests, from 0 to 1, such as 0.01"),
        ({"audit": True}, "audit is True; it must be a share"),
        ({"audit_file": "a.jsonl"}, "audit_file is given, and audit is 0, so nothing is audited; give audit"),
        ({"audit": 0.1, "grader": 3}, "grader is 3; it must be module:function"),
    ],
)
def test_settings_that_are_wrong_are_refused(given: dict[str, Any], message: str) -> None:
    assert usage_error(lambda: ServeSettings.of({"profile": "p.json", **given})).startswith(message)
