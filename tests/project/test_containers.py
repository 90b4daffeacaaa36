"""Images and workflows: what they run exists, and the steps of images are run here, where no container engine is."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_parts_of_what_every_submission_must_pass(path: Path) -> None:
    parts = set(re.findall(r"^    ([a-z |]+)\) ", (ROOT / ".ci" / "run").read_text(), re.MULTILINE))
    known = {part.strip() for each in parts for part in each.split("|")} - {"all"}
    job = next(iter(yaml.safe_load(path.read_text())["jobs"].values()))
    asked = job.get("strategy", {}).get("matrix", {}).get("part", [])
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        program, part = command.split(maxsplit=1)
        assert program == ".ci/run"
        assert set(asked if part == "${{ matrix.part }}" else [part]) <= known


def test_an_unknown_part_is_refused_in_a_line() -> None:
    ran = subprocess.run([ROOT / ".ci" / "run", "tests"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(".ci/run: unknown part 'tests': give lint, ")


def steps(name: str) -> list[str]:
    """The commands of an image's file."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("RUN ") for line in lines if line.startswith("RUN ")]


def checkout(folder: Path) -> Path:
    """What an image copies."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist"))
    return folder


@pytest.mark.slow
def test_the_image_for_cpus_installs_and_answers(tmp_path: Path) -> None:
    where = checkout(tmp_path / "fsd-calib")
    said = [run(step, where) for step in steps("Dockerfile")]
    assert said[-1].startswith("fsd-calib ")
    path = next(line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("ENV PATH="))
    assert path == f"ENV PATH=/{where.name}/.venv/bin:$PATH"


@pytest.mark.slow
def test_the_image_beside_vllm_adds_this_package_alone(tmp_path: Path) -> None:
    """Its vLLM has what the extra asks for, which is why its step may run here without fetching anything."""
    where = checkout(tmp_path / "fsd-calib")
    install, says = steps("Dockerfile.cuda")
    assert shlex.split(install)[:4] == ["python3", "-m", "pip", "install"]
    assert says == "fsd --version"
    target = {"PIP_TARGET": str(tmp_path / "site"), "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    run(install.replace("python3", sys.executable, 1), where, target)
    assert (tmp_path / "site" / "bin" / "fsd").exists()


def run(step: str, where: Path, more: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        ["sh", "-c", step], cwd=where, env=os.environ | (more or {}), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{step}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout
