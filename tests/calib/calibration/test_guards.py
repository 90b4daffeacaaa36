"""Guards: what the chosen setting keeps on other tasks is estimated, and marked as seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fsd_calib.calibration.guards import GUARDED, check_guards, read_guard
from fsd_calib.calibration.session import open_session
from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.engines.own import OwnEngine
from fsd_calib.options.run_config import RunConfig
from fsd_calib.report.verdict import verdict
from fsd_calib.tasks.registry import load_task
from fsd_calib.tasks.split import tuning_of
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.models.fingerprint import family_id
from support.messages import usage_error
from support.models import tiny_calibration
from support.models.tiny_models import word_tokenizer

LIMIT = 5  # new tokens of the guard, fewer than those of the task that is certified


@pytest.fixture
def guard(tmp_path: Path) -> str:
    """A task in a file, whose answers are often in a text of random words."""
    rows = [{"question": f"w{i % 20 + 2} w{i // 20 + 2}", "answer": f"w{i % 7 + 2}"} for i in range(400)]
    (tmp_path / "guard.jsonl").write_text("\n".join(map(json.dumps, rows)))
    described = {
        "data": "guard.jsonl", "columns": {"question": "question", "answer": "answer"}, "prompt": "{{ question }}",
        "max_new_tokens": LIMIT, "grader": "contains",
    }  # fmt: skip
    (tmp_path / "guard.yaml").write_text(json.dumps(described))
    return str(tmp_path / "guard.yaml")


def test_a_guard_is_estimated_beside_what_is_certified(tmp_path: Path, guard: str) -> None:
    made = tiny_calibration.run_surely(tmp_path / "out", tmp_path, guard=guard, timing="none")
    assert made.certificate.certified
    (found,) = made.guards
    task = load_task(guard, tokenizer=word_tokenizer())
    tuning = tuning_of(task)
    assert (found.task, found.problems) == (guard, len(tuning))
    assert 0 < found.counts.right < found.problems
    assert found.retention is not None
    assert found.interval is not None
    assert found.interval[0] < found.retention < found.interval[1]
    assert "Nothing is certified of it" in verdict(made)

    # What it says is what decoding that task with its own limit and these settings says.
    target, draft = tiny_calibration.far_apart()
    decoder = SpeculativeDecoder(target, draft, word_tokenizer(), seed=0)
    with open_session(OwnEngine(decoder, task), task, RunConfig(cache=tmp_path / "own", state=None)) as own:
        alone, chosen = (own.tuning.measure(each) for each in (own.setting("target"), made.chosen))
    assert int(alone.correct.sum()) == found.counts.right
    assert int(chosen.correct.sum()) == found.counts.solved
    with AttemptLedger(tmp_path / "ledger.sqlite") as ledger:
        family = family_id(target)
        assert not any(ledger.usable(family, tuning, "another run"))
        closed = [problem for problem in task.problems if problem not in tuning]
        assert all(ledger.usable(family, closed, "another run"))


def test_other_tasks_share_what_is_counted_and_keep_their_own_limits(tmp_path: Path, guard: str) -> None:
    other, task = load_task(guard, tokenizer=word_tokenizer()), tiny_calibration.task(60)
    engine = OwnEngine(SpeculativeDecoder(*tiny_calibration.far_apart(), word_tokenizer(), seed=0), task)
    with open_session(engine, task, RunConfig(cache=tmp_path, state=None)) as session:
        decode, alone = session.decode.for_task(other), session.setting("target")
        assert all(seeds[0].tokens <= LIMIT for seeds in decode(alone, other.problems[:8]))
        assert max(seeds[0].tokens for seeds in session.decode(alone, task.problems[:8])) > LIMIT
        assert session.decode.work.decoded == decode.work.decoded == 16


def test_a_guard_has_as_many_problems_as_are_worth_it(guard: str) -> None:
    task = load_task("arithmetic", limit=3 * GUARDED, tokenizer=None)
    read = read_guard("arithmetic", lambda name: task, word_tokenizer(), None, print)
    assert read.problems == tuple(tuning_of(task)[:GUARDED])


def test_guards_that_say_nothing_are_refused(tmp_path: Path, guard: str) -> None:
    def refusal(**given: Any) -> str:
        return usage_error(lambda: tiny_calibration.run(tmp_path / "out", tmp_path, **given))

    assert "the task that is certified" in refusal(guard="tiny")
    assert "given twice" in refusal(guard=[guard, guard])
    again = str(tmp_path / "again.yaml")
    Path(again).write_text(Path(guard).read_text())
    for path in (f"{tmp_path}/./guard.yaml", again):  # the same problems under other names
        assert f"problems with guard {guard!r}" in refusal(guard=[guard, path])
    read = read_guard(guard, load_task, word_tokenizer(), None, print)
    assert "shares" in usage_error(lambda: check_guards(load_task(guard), (read,)))
    check_guards(tiny_calibration.task(60), (read,))
    assert "guards take no file" in refusal(guard="agreement:0.9")
    assert "a front chooses no setting" in refusal(guard=guard, min_acc=None, pareto=True)
    assert "guard 'no-such-task': " in refusal(guard="no-such-task")
