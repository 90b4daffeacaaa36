"""benchmarks/gpu.py: how its parts are run, and its dry run on a CPU, with only the packages that the script needs."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lib.gpu.claims import SMALLER
from lib.gpu.parts import OPTIONAL, PARTS, Part, progress
from lib.gpu.plan import DRY, FULL, Plan
from support.paths import BENCHMARKS

SCRIPT = BENCHMARKS / "gpu.py"
NOT_NEEDED = ("optuna", "lightgbm", "pandas", "datasets", "pydantic")  # a machine with a GPU need not have them
BLOCKING = f"import sys; sys.modules.update(dict.fromkeys({NOT_NEEDED}))"  # a module that is None is as if missing
CAPPED = replace(DRY, capped=True)


def run(*options: str) -> subprocess.CompletedProcess[str]:
    """Runs the script where packages that it does not need cannot be imported."""
    code = f"{BLOCKING}; sys.argv = {[str(SCRIPT), *options]}; import runpy; sys.path.insert(0, {str(BENCHMARKS)!r})"
    program = f"{code}; import fsd_data.train; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"  # left out dry
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


@dataclass(frozen=True)
class Steps(Part):
    """A part that calls functions, and yields what they return."""

    calls: tuple[Callable[[], Any], ...] = ()

    def measure(self, plan: Plan) -> Generator[Any, None, None]:
        yield from (call() for call in self.calls)


def steps(*calls: Callable[[], Any], seconds: float = 60.0) -> Steps:
    return Steps("steps", "none", seconds, calls)


def last(records: Iterator[dict[str, Any]]) -> dict[str, Any]:
    (*_, record) = records
    return record


def test_a_part_begins_no_step_after_its_time() -> None:
    part = steps(lambda: time.sleep(0.05), lambda: time.sleep(0.05), lambda: 3, seconds=0.06)
    record = last(progress(part, CAPPED))
    assert (len(record["rows"]), record["capped"], record["failed"]) == (2, True, None)
    assert last(progress(part, DRY))["rows"][2:] == [3]  # a dry run takes the time that it takes


def test_a_part_begins_only_where_time_is_left_for_all() -> None:
    record = last(progress(steps(lambda: 1), CAPPED, left=-1.0))
    assert (record["rows"], record["capped"]) == ([], True)


def test_all_parts_together_have_eight_minutes() -> None:
    assert FULL.capped
    assert sum(part.seconds for part in PARTS) <= 480


def test_an_error_is_recorded_and_other_parts_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gpu import measure

    out = tmp_path / "results" / "gpu.json"

    def written() -> Any:
        return json.loads(out.read_text())["parts"]["first"]

    first = replace(steps(lambda: "a step", lambda: math.sqrt(-1), lambda: "another"), name="first")
    assert measure(DRY, [first, steps(written)], out) == 1
    record = json.loads(out.read_text())["parts"]
    assert record["first"]["rows"] == ["a step"]
    assert record["first"]["failed"]["type"] == "ValueError"
    assert Path(__file__).name in record["first"]["failed"]["frames"][-1]
    assert record["steps"]["rows"] == [record["first"]]  # it was written when it ended
    assert "FAILED: ValueError" in capsys.readouterr().out
    assert measure(DRY, [steps(written)], tmp_path / "other.json") == 0


def test_what_a_part_cannot_import_fails_it_alone() -> None:
    record = last(progress(Part("measure", "no_such_module", 1.0), DRY))
    assert record["failed"]["type"] == "ModuleNotFoundError"


def test_without_a_gpu_it_says_what_to_do() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    ran = run()
    assert ran.returncode == 2
    assert "torch finds no GPU on this machine; use --dry-run to try every part on a CPU" in ran.stderr


def dry_run(out: Path, *parts: str) -> Any:
    """Returns what a dry run of these parts has measured, all of which must have ended well."""
    pytest.importorskip("triton", reason="kernels are written in Triton, which is not installed")
    ran = run("--dry-run", "--out", str(out), "--parts", *parts)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(out.read_text())
    assert list(found["parts"]) == list(parts)
    assert not any(part["failed"] or part["capped"] for part in found["parts"].values())
    return found


def test_the_dry_run_has_a_number_for_every_claim(tmp_path: Path) -> None:
    found = dry_run(tmp_path / "results" / "gpu.json", *(part.name for part in PARTS))
    unknown = {claim["name"] for claim in found["claims"] if claim["measured"] is None}
    assert {name.partition(",")[0] for name in unknown} == {"peak of memory / plan"}  # which a CPU does not count
    assert all(math.isfinite(claim["measured"]) for claim in found["claims"] if claim["name"] not in unknown)
    rows = {name: part["rows"] for name, part in found["parts"].items()}
    assert all(rows.values())
    assert [row["works"] for row in rows["failure"]] == [True] * 3
    assert [row["rounds"] for row in rows["growth"]] == [6, 6]  # 16 tokens of one text and one law
    for one in rows["kernels"]:
        assert max(one["errors"].values()) < 3e-6
        assert one["choices"] == 1
    assert {one["equal"] for one in rows["equality"] if one["called"] != "compiled"} == {1}
    called = {one["called"] for one in rows["equality"]}
    assert called == {SMALLER, "captured", "captured again", "on a CPU", "compiled"}
    assert 1 < rows["rounds"][0]["tokens_a_round"] < 1 + DRY.draft_length
    assert any("scan" in kernel["name"] for kernel in rows["rounds"][1]["kernels"])
    assert sum(one["tree"] is not None for one in rows["samplings"]) == 2


@pytest.mark.slow
def test_the_dry_run_of_the_other_parts(tmp_path: Path) -> None:
    dry_run(tmp_path / "gpu.json", *(part.name for part in OPTIONAL))
