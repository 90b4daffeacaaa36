"""What an installation holds, and what starting a command imports."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module

import pytest

import fsd_calib
from fsd_calib.cli.console import run
from support.paths import ROOT
from support.sources import package_folders

HEAVY = {"torch", "transformers", "optuna", "lightgbm", "matplotlib", "pandas", "datasets"}
APPS = ["calibrate", "collect", "generate", "profile", "traces", "train"]


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


COMMANDS = ["fsd-calibrate", "fsd-collect", "fsd-generate", "fsd-profile", "fsd-traces", "fsd-train-predictor"]


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


def test_readme_tests_everything_and_ci_takes_its_command_from_there() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in readme if line.startswith("sh install.sh dev && ")] == [
        "sh install.sh dev && .venv/bin/python -m pytest -n 2 --dist loadfile"
    ]
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert r"grep -m 1 '^sh install\.sh dev && ' README.md" in ci
    assert "pytest" not in ci


def test_install_script_and_metadata_ask_for_the_same_torch() -> None:
    script = (ROOT / "install.sh").read_text(encoding="utf-8")
    asked = re.search(r'^torch="(.+)"$', script, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert asked is not None
    assert asked[1] in project["dependencies"]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of a wheel, built from a copy of the sources so that nothing is left behind in them."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    unwanted = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "out", "runs")
    shutil.copytree(ROOT, sources, ignore=unwanted)
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, str(sources)], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_wheel_holds_all_sources_and_the_pair(wheel_names: set[str]) -> None:
    wanted = {
        path.relative_to(package.parent).as_posix()
        for package in package_folders().values()
        for path in package.rglob("*")
        if path.is_file() and (path.suffix in {".py", ".typed"} or {"pair", "schemas"} & set(path.parts))
    }
    assert wanted <= wheel_names
    assert {f"{package}/py.typed" for package in package_folders()} <= wheel_names


@pytest.mark.slow
def test_wheel_adds_no_generic_name(wheel_names: set[str]) -> None:
    top = {name.split("/")[0] for name in wheel_names}
    assert {name for name in top if not name.endswith(".dist-info")} == set(package_folders())
