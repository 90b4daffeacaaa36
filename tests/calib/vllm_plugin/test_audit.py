"""Audits: what is said of a served text beside the lossless one, and which requests are audited."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.vllm_plugin.audit import NAMES, Audited, AuditLog, grader_named, is_audited
from fsd_calib.vllm_plugin.settings import ServeSettings
from fsd_calib.vllm_plugin.telemetry.counters import Counters, read_counters
from support.messages import usage_error

TOKENS = st.lists(st.integers(0, 3), max_size=6)


def decode(tokens: Any) -> str:
    return " ".join(map(str, tokens))


@given(TOKENS, TOKENS)
def test_the_first_difference_is_where_texts_part(served: list[int], lossless: list[int]) -> None:
    found = Audited.of("r", [7], served, lossless, None, decode)
    assert (found.tokens, found.lossless_tokens, found.outcome) == (len(served), len(lossless), None)
    if found.first_difference is None:
        assert served == lossless
        return
    place = found.first_difference
    assert served[:place] == lossless[:place]
    assert served[place : place + 1] != lossless[place : place + 1]


@pytest.mark.parametrize(
    ("served", "lossless", "outcome"),
    [([1], [1, 0], "both"), ([0], [1], "lost"), ([1, 2], [0], "gained"), ([0], [2], "neither")],
)
def test_outcomes_are_the_graders(served: list[int], lossless: list[int], outcome: str) -> None:
    asked = []

    def right(prompt: str, answer: str) -> bool:
        asked.append(prompt)
        return "1" in answer

    assert Audited.of("r", [7, 8], served, lossless, right, decode).outcome == outcome
    assert asked == ["7 8"] * 2


def test_texts_are_counted_written_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = AuditLog(Counters(tmp_path / "counters", NAMES), tmp_path / "audits.jsonl")
    with caplog.at_level(logging.INFO, "vllm.fsd"):
        for i in range(200):
            log.add(
                Audited(f"r{i}", 10, 12, 4, False, True) if i % 4 == 0 else Audited(f"r{i}", 5, 5, None, True, True)
            )
    counted = read_counters(tmp_path / "counters", NAMES)
    assert counted == {
        "texts": 200, "changed": 50, "tokens": 1250, "lossless_tokens": 1350, "first_difference": 200, "both": 150,
        "lost": 50, "gained": 0, "neither": 0,
    }  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "audits.jsonl").read_text().splitlines()]
    assert lines[0] == {
        "request": "r0", "tokens": 10, "lossless_tokens": 12, "first_difference": 4, "right": False,
        "lossless_right": True,
    }  # fmt: skip
    assert len(lines) == 200
    assert [record.message for record in caplog.records] == [
        f"fsd: of {n} audited texts {n // 4} differ from those that lossless decoding writes; {n // 4} right answers "
        "were lost and 0 gained" for n in (100, 200)
    ]  # fmt: skip


def test_a_file_that_cannot_be_written_is_said_once_and_texts_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(Counters(tmp_path / "counters", NAMES), Path("/dev/full"))
    for i in range(3):
        log.add(Audited(f"r{i}", 5, 5, None))
    assert read_counters(tmp_path / "counters", NAMES)["texts"] == 3
    (said,) = caplog.records
    assert said.message.startswith("fsd: audits are no longer written to /dev/full: ")


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
