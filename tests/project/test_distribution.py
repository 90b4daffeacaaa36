"""What would be published: a source archive, the wheel that is built from it, and its demo without a checkout."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from fsd_calib.vllm_plugin.plugin import register
from support.paths import ROOT
from support.sources import package_folders

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both archives, built from a copy of the sources so that nothing is left behind in them."""
    folder = tmp_path_factory.mktemp("built")
    sources = folder / "sources"
    unwanted = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "out", "runs")
    shutil.copytree(ROOT, sources, ignore=unwanted)
    ran("build", "--no-isolation", "--outdir", str(folder / "dist"), str(sources))
    return folder / "dist"


def ran(module: str, *arguments: str, **options: object) -> str:
    """Runs a module of this Python; returns what it printed."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (file,) = built.glob("*.whl")
    return zipfile.ZipFile(file)


def test_an_index_would_take_both(built: Path) -> None:
    archives = sorted(map(str, built.iterdir()))
    assert [Path(archive).suffix for archive in archives] == [".whl", ".gz"]
    assert ran("twine", "check", "--strict", *archives).count("PASSED") == 2


def test_the_source_archive_has_what_the_wheel_is_built_of(built: Path, wheel: zipfile.ZipFile) -> None:
    (file,) = built.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names
    folders = {name: path.parent.relative_to(ROOT) for name, path in package_folders().items()}
    sources = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert {(folders[name.split("/")[0]] / name).as_posix() for name in sources} <= names


def test_the_demo_runs_from_the_wheel_without_a_checkout(built: Path, tmp_path: Path) -> None:
    """As a new user has it, but for what it depends on, which is that of this environment."""
    (file,) = built.glob("*.whl")
    ran("venv", "--without-pip", str(tmp_path / "venv"))
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # without its .pth of this checkout
    ran("pip", "--python", str(python), "install", "--no-deps", "--no-index", str(file))
    demo = [str(python.with_name("fsd")), "calibrate", "--task", "arithmetic", "--min-acc", "0.8", "--limit", "100",
            "--timing", "none", "--workers", "1", "--score", "doubt", "--draft-length", "12"]  # fmt: skip
    folders = [f"--{name}={tmp_path / name}" for name in ("cache", "state")]
    done = subprocess.run([*demo, *folders], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Certified" in done.stdout
    assert (tmp_path / "fsd-profile" / "arithmetic" / "profile.json").exists()
    where = "import fsd_calib; print(fsd_calib.__file__)"
    found = subprocess.run([str(python), "-c", where], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).is_relative_to(site)


def test_wheel_holds_all_sources_and_the_pair(wheel: zipfile.ZipFile) -> None:
    wanted = {
        path.relative_to(package.parent).as_posix()
        for package in package_folders().values()
        for path in package.rglob("*")
        if path.is_file()
        and (path.suffix in {".py", ".typed", ".css"} or {"pair", "schemas"} & set(path.parts) or path.stem == "page")
    }
    assert wanted <= set(wheel.namelist())
    assert {f"{package}/py.typed" for package in package_folders()} <= set(wheel.namelist())


def test_wheel_adds_no_generic_name(wheel: zipfile.ZipFile) -> None:
    top = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == set(package_folders())


def test_vllm_finds_the_plugin_of_the_wheel_and_the_extra_has_what_it_imports(wheel: zipfile.ZipFile) -> None:
    (folder,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    installed: Distribution = PathDistribution(zipfile.Path(wheel, f"{folder}/"))
    (plugin,) = installed.entry_points.select(group="vllm.general_plugins")
    assert (plugin.name, plugin.value) == ("fsd", "fsd_calib.vllm_plugin.plugin:register")
    assert plugin.load() is register
    wanted = [each for each in installed.requires or () if each.endswith('extra == "vllm"')]
    assert {re.split(r"[^\w-]", each)[0] for each in wanted} == {"packaging", "prometheus-client"}
