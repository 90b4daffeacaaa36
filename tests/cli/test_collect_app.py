"""`fsd-collect` as a shell sees it: its output, what it leaves behind, and that it survives being killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from fsd_calib import load_traces, read_labels
from fsd_calib.calibration import memory
from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.marking import LEDGER
from fsd_calib.cli import collect as collect_app
from fsd_calib.cli import traces as traces_app
from fsd_calib.cli.console import run
from fsd_calib.tasks.registry import load_task
from fsd_collectors.store.verifying import verify
from fsd_common.user_folders import default_state
from fsd_data import pair_paths
from fsd_decoding.loading import load_model, load_tokenizer
from fsd_decoding.models.fingerprint import family_id
from fsd_decoding.rules import RULES
from support.messages import error_line

COLLECT = [sys.executable, "-c", "from fsd_calib.cli.collect import main; main()"]
SMALL = ["--task", "arithmetic", "--limit", "24", "--device", "cpu", "--batch-size", "4"]


def collect(*arguments: str) -> int:
    return run(collect_app.app, collect_app.NAME, arguments)


def test_help_tells_options_defaults_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert collect("--help-all") == 0
    text = " ".join(capsys.readouterr().out.split())
    for expected in ("--task", "--rule", "--hidden", "fsd-traces/TASK", "arithmetic, csqa", "Examples: fsd ",
                     "along the target", "0 done", "2 bad input", "130 interrupted"):  # fmt: skip
        assert expected in text
    for name, rule in RULES.items():
        assert not rule.drafts or name in text


def test_a_batch_that_cannot_fit_is_refused_before_the_weights_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(memory, "available", lambda device: 30_000_000)
    monkeypatch.setattr("fsd_decoding.decoder.load_model", lambda *given: loaded.append(given[0]))
    monkeypatch.chdir(tmp_path)
    assert collect("--task", "arithmetic", "--limit", "100", "--device", "cpu") == 2
    line = error_line(capsys)
    assert (
        "decoding 32 at a time takes about target's weights 9 MB + drafts' weights 1 MB + joined weights 9 MB" in line
    )
    assert re.search(r"cpu has 30 MB free: the largest --batch-size that fits is [248]\b", line)
    assert loaded == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "Missing option '--task'"),
        (["--task", "poetry"], "unknown task 'poetry'"),
        ([*SMALL, "--limit", "0"], "--limit is 0"),
        ([*SMALL, "--batch-size", "-1"], "--batch-size is -1"),
        ([*SMALL, "--rule", "sd", "--draft-length", "0"], "--draft-length is 0"),
        ([*SMALL, "--hidden", "some"], "--hidden is 'some'; it must be 'whole', or a whole number of at least 1"),
        ([*SMALL, "--hidden", "0"], "--hidden is '0'"),
        ([*SMALL, "--threshold", "0.1"], "--threshold is 0.1, and is for on-policy traces alone; give --rule too"),
        ([*SMALL, "--rule", "fsd"], "--rule 'fsd' needs a --threshold"),
        ([*SMALL, "--rule", "target"], "--rule is 'target'; it must be one of sd, sd-block, coupled, fsd"),
        ([*SMALL, "--rule", "sd", "--threshold", "1"], "--rule 'sd' has none"),
        ([*SMALL, "--rule", "fsd", "--threshold", "much"], "Invalid value for '--threshold'"),
        ([*SMALL, "--judge", "both"], "--judge is 'both'; it must be one of outcome, self"),
        ([*SMALL, "--judge", "outcome", "--swaps", "twice"], "--swaps is 'twice'; it must be one of left-to"),
        ([*SMALL, "--judge", "outcome", "--budget", "0"], "--budget is 0"),
        ([*SMALL, "--judge", "outcome", "--per-problem", "0"], "--per-problem is 0"),
        ([*SMALL, "--judge", "self", "--swaps", "left-to-right"], "--swaps is left-to-right, and of labels by the"),
        ([*SMALL, "--judge", "outcome", "--rule", "sd"], "--rule is sd, and is for traces, not for labels"),
        ([*SMALL, "--judge", "outcome", "--hidden", "8"], "--hidden is 8, and is for traces, not for labels"),
        ([*SMALL, "--budget", "5"], "--budget is for labels alone; give --judge too, or leave it out"),
        ([*SMALL, "--device", "abacus"], "--device is 'abacus'; it must be cpu, cuda or"),
        ([*SMALL, "--dtype", "int8"], "dtype is 'int8'"),
        ([*SMALL, "--target", "./no/such/folder", "--draft", "x"], "give an id, or the path of a local folder"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert collect(*arguments, "--out", str(tmp_path)) == 2
    line = error_line(capsys)
    assert line.startswith("fsd-collect: error: ")
    assert complaint in line
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert collect(*SMALL, "--out", str(tmp_path / "file" / "out")) == 2
    assert "cannot be written: Not a directory; choose another folder" in error_line(capsys)


@pytest.mark.slow
def test_both_ways_on_the_bundled_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert collect(*SMALL, "--out", str(tmp_path / "along")) == 0
    captured = capsys.readouterr()
    along = load_traces(tmp_path / "along")
    done = along.to_pandas(table="completions")
    expected = f"24 completions, {done.emitted.sum()} tokens, accuracy {done.correct.mean():.4f}"
    assert captured.out == f"{tmp_path / 'along'} holds {expected}\n"
    said = [line for line in captured.err.splitlines() if "MB" not in line]  # of weights, on a slow machine
    assert said[0] == "collecting: 0 of 24"
    assert along.tokens.count_rows() == done.emitted.sum()

    forced = ["--rule", "fsd", "--threshold", "inf", "--draft-length", "3", "--hidden", "8"]
    assert collect(*SMALL, *forced, "--out", str(tmp_path / "on")) == 0
    on = load_traces(tmp_path / "on")
    assert on.manifest.policy is not None
    assert (on.manifest.policy.threshold, on.manifest.policy.draft_length) == ("inf", 3)
    rows = on.to_pandas(["accepted", "draft_position", "draft_hidden"])
    assert rows.accepted.all()
    assert set(rows.draft_position) == {0, 1, 2}
    assert {len(state) for state in rows.draft_hidden} == {8}

    assert collect(*SMALL, "--seed", "1", "--out", str(tmp_path / "along")) == 2
    assert "holds traces of another run" in capsys.readouterr().err


@pytest.mark.slow
def test_labels_on_the_bundled_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = ["--task", "arithmetic", "--limit", "60", "--device", "cpu", "--workers", "1", "--budget", "30"]
    assert collect(*many, "--judge", "outcome", "--out", str(tmp_path / "labels")) == 0
    captured, labels = capsys.readouterr(), read_labels(tmp_path / "labels")
    harmful, spent = labels.harmful.sum(), labels.spent.sum()
    counts = f"{len(labels)} labels of {labels.problem.nunique()} problems, of which {harmful} are harmful"
    assert captured.out == f"{tmp_path / 'labels'} holds {counts}; {spent} tokens behind them\n"
    assert re.search(r"of the first \d+ texts \d+ are right, .* labels take about .* continuations, ", captured.err)
    assert 20 < len(labels) <= 30
    assert run(traces_app.app, traces_app.NAME, ["verify", str(tmp_path / "labels")]) == 0
    capsys.readouterr()
    assert run(traces_app.app, traces_app.NAME, ["describe", str(tmp_path / "labels")]) == 2
    assert "holds labels, not traces; read them in Python with read_labels" in error_line(capsys)

    own = ["--judge", "self", "--per-problem", "2", "--json", "--out", str(tmp_path / "self")]
    assert collect(*many, *own) == 0
    told = json.loads(capsys.readouterr().out)["result"]
    changes = read_labels(tmp_path / "self")
    assert told["labels"] == len(changes)
    assert (changes.change < 0).mean() > 0.5  # a swap makes what follows the other token less likely
    assert collect(*many, *own, "--per-problem", "3") == 2
    assert "holds traces of another run: per_problem" in capsys.readouterr().err


def test_problems_decoded_under_a_threshold_are_recorded(tmp_path: Path) -> None:
    few = ["--task", "arithmetic", "--limit", "2", "--device", "cpu", "--max-new-tokens", "4"]
    target = str(pair_paths()[0])
    problems = load_task("arithmetic", 0, 2, tokenizer=load_tokenizer(target)).problems
    for policy, free in ((["coupled"], True), (["fsd", "--threshold", "0.1"], False)):
        assert collect(*few, "--rule", *policy, "--out", str(tmp_path / policy[0])) == 0
        with AttemptLedger(default_state() / LEDGER) as ledger:
            usable = ledger.usable(family_id(load_model(target, "cpu", None)), problems, "run")
        assert usable.tolist() == [free, free]


def _children(out: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*COLLECT, *arguments, "--out", str(out)], stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="SIGINT cannot be sent to a child there")
def test_ctrl_c_says_what_is_on_disk(tmp_path: Path) -> None:
    child = _children(tmp_path / "out", "--task", "arithmetic", "--device", "cpu", "--batch-size", "4")
    try:
        _wait_for(1, tmp_path / "out" / "shards.jsonl", child)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130, err
    last = err.splitlines()[-1]
    found = re.fullmatch(
        rf"fsd-collect: interrupted; {tmp_path / 'out'} holds (\d+) of 3000 completions; the same command continues "
        "from there",
        last,
    )
    assert found is not None, last
    assert int(found[1]) == load_traces(tmp_path / "out").completions.count_rows()
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_run_killed_at_random_moments_equals_one_that_was_not(tmp_path: Path) -> None:
    """Two portions of 32 problems; a moment falls into decoding or writing one."""
    arguments = ["--task", "arithmetic", "--limit", "64", "--device", "cpu", "--batch-size", "1", "--temperature", "1"]
    arguments += ["--rule", "sd"]
    assert collect(*arguments, "--out", str(tmp_path / "whole")) == 0
    random = Random(0)
    for portions in (0, 1):
        child = _children(tmp_path / "killed", *arguments)
        try:
            _wait_for(portions, tmp_path / "killed" / "shards.jsonl", child)
            time.sleep(random.uniform(0.0, 0.5))
        finally:
            child.kill()
            child.communicate()
        assert child.returncode == -signal.SIGKILL, "it ended before it could be killed"
    assert not load_traces(tmp_path / "killed").complete
    assert collect(*arguments, "--out", str(tmp_path / "killed")) == 0
    whole, resumed = load_traces(tmp_path / "whole"), load_traces(tmp_path / "killed")
    assert verify(resumed.path) == []
    assert resumed.manifest == whole.manifest
    assert resumed.tokens.to_table().equals(whole.tokens.to_table())
    assert resumed.completions.to_table().equals(whole.completions.to_table())


def _wait_for(portions: int, listing: Path, child: subprocess.Popen[str]) -> None:
    """Until the run has finished so many of them, and has begun at all."""
    deadline = time.monotonic() + 120
    while not listing.parent.is_dir() or (listing.read_bytes().count(b"\n") if listing.exists() else 0) < portions:
        assert child.poll() is None, "ended before it could be killed"
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["from the start", "after a line"])
def test_a_run_does_not_end_because_nobody_reads_what_it_says(closed: str, tmp_path: Path) -> None:
    """As of a pipe into a program that has ended."""
    out = tmp_path / "traces"
    reader, writer = os.pipe()
    with subprocess.Popen(
        [*COLLECT, *SMALL, "--workers", "1", "--json", "--out", str(out)], stdout=subprocess.PIPE, stderr=writer,
        preexec_fn=(lambda: os.close(2)) if closed == "from the start" else None, text=True,
    ) as collecting:  # fmt: skip
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        told = json.loads(collecting.communicate()[0])
    assert collecting.returncode == 0
    assert told["result"]["folder"] == str(out)
    assert verify(out) == []
