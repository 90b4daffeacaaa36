"""GSM8K from the Hugging Face hub: its parts, and an unreachable hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fsd_data.problems import GeneratedProblem
from support.calibration.task_files import PROBLEMS
from support.hub_server import running_hub


def run_in_process(code: str, tmp_path: Path, **changes: str) -> str:
    """Runs code in a process with a cache of its own and no network access, and returns its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")} | changes
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    assert "Generating" not in process.stderr  # a bar that `datasets` shows for each split
    return process.stdout


@pytest.mark.slow
def test_an_unreachable_hub_is_reported_with_the_way_out(tmp_path: Path) -> None:
    code = """
from fsd_calib.tasks import load_task
from fsd_common.errors import UsageError
try:
    load_task("gsm8k", limit=10)
except UsageError as error:
    print(error)
"""
    message = run_in_process(code, tmp_path).strip()
    assert "\n" not in message
    assert "openai/gsm8k cannot be loaded" in message
    assert "data takes a local FILE.jsonl" in message


def hub_layout(folder: Path) -> dict[str, list[GeneratedProblem]]:
    """Writes a repository as the hub has it, and returns the problems of its parts."""
    pd = pytest.importorskip("pandas")
    (folder / "main").mkdir(parents=True)
    splits = {"test": PROBLEMS[:10], "train": PROBLEMS[10:]}
    front = "---\nconfigs:\n- config_name: main\n  data_files:\n"
    for split, members in splits.items():
        pd.DataFrame(members)[["question", "answer"]].to_parquet(folder / f"main/{split}-00000-of-00001.parquet")
        front += f"  - split: {split}\n    path: main/{split}-*\n"
    (folder / "README.md").write_text(front + "---\n")
    (folder / "socratic").mkdir()
    (folder / "socratic/train-00000-of-00001.parquet").write_bytes(b"another configuration")
    return splits


LOAD = """
import json
from fsd_calib.tasks import load_task
for limit in (None, 8):
    task = load_task("gsm8k", limit=limit)
    print(json.dumps([task.source, [[p.question, p.reference, p.part] for p in task.problems]]))
"""


def check_parts(output: str, splits: dict[str, list[GeneratedProblem]]) -> None:
    whole, capped = (json.loads(line) for line in output.splitlines())
    expected = [[p.question, p.answer, "tuning"] for p in splits["train"]]
    expected += [[p.question, p.answer, "certification"] for p in splits["test"]]
    assert whole == ["openai/gsm8k main (train: tuning, test: certification)", expected]
    assert Counter(part for *_, part in capped[1]) == {"tuning": 6, "certification": 2}


def test_hub_parts_become_tuning_and_certification(tmp_path: Path) -> None:
    """A local folder of the hub's name is preferred."""
    splits = hub_layout(tmp_path / "openai" / "gsm8k")
    check_parts(run_in_process(LOAD, tmp_path), splits)


@pytest.mark.slow
def test_problems_are_fetched_once(tmp_path: Path) -> None:
    """From the hub, and then from its cache where it does not answer."""
    splits = hub_layout(tmp_path / "repository")
    with running_hub({"openai/gsm8k": tmp_path / "repository"}) as hub:
        check_parts(run_in_process(LOAD, tmp_path, HF_HUB_OFFLINE="0", HF_ENDPOINT=hub.address), splits)
        assert [request for request in hub.requests if "socratic" in request] == []
    check_parts(run_in_process(LOAD, tmp_path, HF_HUB_OFFLINE="0", HF_ENDPOINT=hub.address), splits)
    check_parts(run_in_process(LOAD, tmp_path), splits)
