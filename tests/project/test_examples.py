"""The examples run as they stand, small. What they print is theirs."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from conformance.threshold_policies import EveryScalePolicy
from fsd_calib.testing import check
from support.own_code import on_path
from support.paths import DOCS, EXAMPLES
from support.snippets import snippets

EXAMPLE = EXAMPLES / "own_policy.py"
NOTEBOOK = EXAMPLES / "calibrate_and_use.ipynb"
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


OWN = {"new_score": ("score", "Behind@10"), "new_rule": ("rule", "OneSwap"), "new_drafter": ("drafter", "Lookup")}


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


@pytest.mark.slow
def test_the_notebook_runs_from_calibration_to_texts(tmp_path: Path) -> None:
    ran = nbformat.read(NOTEBOOK, as_version=4)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    NotebookClient(ran, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute(env=environment)
    shown = "".join(output.get("text", "") for cell in ran.cells for output in cell.get("outputs", []))
    assert "of 16 right" in shown


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
