"""The examples run as they stand, small. What they print is theirs."""

from __future__ import annotations

import csv
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

import notebook
from conformance.threshold_policies import EveryScalePolicy
from fsd_calib.cli import calibrate
from fsd_calib.cli.console import run
from fsd_calib.testing import check
from fsd_collectors.store.reading import load_traces
from fsd_decoding.profile.server_profile import ServerProfile
from support.own_code import on_path
from support.paths import DOCS, EXAMPLES
from support.servers.stand_in import standing_in
from support.snippets import snippets
from support.traces.rows import manifest, write

EXAMPLE = EXAMPLES / "own_policy.py"
SHOWN = runpy.run_path(str(EXAMPLE))


@pytest.mark.parametrize("make", [SHOWN["Unsure"]], ids=["unsure"])
class TestTheOwnPolicy(EveryScalePolicy):
    """It keeps what scale policies promise."""


def test_the_own_policy_is_measured_beside_a_constant(capsys: pytest.CaptureFixture[str]) -> None:
    SHOWN["main"](4)
    constant, own = capsys.readouterr().out.splitlines()
    assert constant.startswith("T = 0.1: ")
    assert own.startswith("Unsure: ")
    assert all("tokens a round" in line and "of 4 right" in line for line in (constant, own))


OWN = {
    "new_score": ("score", "Behind@10"), "new_rule": ("rule", "OneSwap"), "new_drafter": ("drafter", "Lookup"),
    "new_stop_policy": ("stop policy", "Sure"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("module", OWN)
def test_what_is_written_for_the_package_keeps_what_its_checks_ask_for(module: str) -> None:
    kind, name = OWN[module]
    with on_path(EXAMPLES):
        check(kind, f"{module}:{name}")  # type: ignore[arg-type]


@pytest.mark.parametrize("module", OWN)
def test_the_page_on_it_shows_it_as_it_is(module: str) -> None:
    (shown,) = [block for block in snippets(DOCS / "extending.md") if block.title == f"{module}.py"]
    assert shown.text == (EXAMPLES / f"{module}.py").read_text(encoding="utf-8")


def test_traces_are_read_by_duckdb_as_by_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = write(tmp_path / "run", manifest(40))
    runpy.run_path(str(EXAMPLES / "read_traces.py"))["main"](str(traces))
    tokens = load_traces(traces).tokens.to_table(columns=["js", "same_token"]).to_pandas()
    for line, threshold in zip(capsys.readouterr().out.splitlines(), (0, 0.05, 0.1, 0.2, 0.4, 0.8), strict=True):
        kept = (tokens.same_token | (tokens.js <= threshold)).mean()
        assert line == (
            f"T = {threshold:g}: {kept:.1%} of the drafted tokens are kept, {tokens.same_token.mean():.1%} are the "
            "target's own"
        )


@pytest.mark.slow
def test_the_papers_table_is_made_in_one_command(tmp_path: Path) -> None:
    folders = [f"--{name}={tmp_path / name}" for name in ("cache", "state")]
    asked = ["arithmetic", "--limit", "24", "--workers", "1", "--quiet", "--format", "csv", *folders]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["sh", EXAMPLES / "paper_table.sh", *asked], env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    lines = list(csv.DictReader(io.StringIO(ran.stdout)))
    assert [line["threshold"] for line in lines] == ["", "", "0.1", "0.2", "0.3", "0.4", "0.5"]
    assert {line["score"] for line in lines[2:]} == {"js"}


def test_a_server_is_calibrated_by_the_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stand-in in place of vLLM: up to .5 nothing is lost."""
    described = (EXAMPLES / "server.yaml").read_text(encoding="utf-8")
    folders = [f"--{name}={tmp_path / name}" for name in ("out", "cache", "state")]
    with standing_in() as server:
        (tmp_path / "server.yaml").write_text(
            described.replace("http://localhost:8000/v1", server.url).replace("model: pair", "model: model")
        )
        asked = [f"--config={tmp_path / 'server.yaml'}", "--limit=200", "--timing=none", "--quiet", *folders]
        assert run(calibrate.app, calibrate.NAME, asked) == 0
    profile = ServerProfile.load(tmp_path / "out")
    assert profile.value == 0.4


@pytest.mark.slow
def test_the_notebook_runs_from_calibration_to_texts(tmp_path: Path) -> None:
    ran = notebook.run(tmp_path)
    kept = nbformat.read(notebook.NOTEBOOK, as_version=4)
    assert shown_by(ran) == shown_by(kept)
    right = re.findall(r"(\d+) of 32 right, [\d.]+ tokens a round, \d+ tokens/s", str(ran.cells))
    assert len(right) == 2
    assert min(map(int, right)) > 24


def shown_by(found: Any) -> list[list[str]]:
    """Of each cell with code what it shows."""
    return [[output.output_type for output in cell.outputs] for cell in found.cells if cell.cell_type == "code"]


def test_the_notebook_is_kept_as_it_ran_with_a_picture_a_speed_and_no_path_of_a_machine() -> None:
    kept = nbformat.read(notebook.NOTEBOOK, as_version=4)
    code = [cell for cell in kept.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert all(shown_by(kept))
    text = notebook.NOTEBOOK.read_text(encoding="utf-8")
    assert text.count("data:image/svg+xml;base64,") >= 2
    assert len(re.findall(r"of 32 right, [\d.]+ tokens a round, \d+ tokens/s", str(code[-2].outputs))) == 2
    assert not re.search(r"/(?:home|root|tmp|work|Users)/", re.sub(r"base64,[\w+/=]+", "", text))
    assert len(text) < 500_000
