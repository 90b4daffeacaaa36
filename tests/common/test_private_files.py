"""Modes of what is created: the user's cache and state are for their owner alone, output is as the umask says."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.measuring.result_cache import ResultCache
from fsd_common.files import make_private_folder
from support.models.tiny_calibration import run_surely
from support.traces.rows import manifest, write


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_cache_and_ledger_are_private_with_their_logs(umask: int, tmp_path: Path) -> None:
    folder = tmp_path / "home" / "cache"
    with ResultCache(folder / "decodings.sqlite"), AttemptLedger(folder / "ledger.sqlite"):
        names = {path.name for path in folder.iterdir()}
        assert {"decodings.sqlite-wal", "decodings.sqlite-shm", "decodings.sqlite.lock", "ledger.sqlite"} <= names
        assert {mode(path) for path in folder.iterdir()} == {0o600}
    assert mode(folder) == mode(folder.parent) == 0o700


def test_an_existing_folder_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private_folder(tmp_path / "new")
    make_private_folder(tmp_path)
    ResultCache(tmp_path / "decodings.sqlite").close()
    assert mode(tmp_path) == 0o755
    assert mode(tmp_path / "new") == 0o700
    assert mode(tmp_path / "decodings.sqlite") == 0o600


def test_traces_are_as_private_as_their_folder(umask: int, tmp_path: Path) -> None:
    private = tmp_path / "private"
    make_private_folder(private)
    for folder, files, folders in (
        (write(private, manifest(8)), 0o600, 0o700),
        (write(tmp_path / "shared", manifest(8)), 0o666 & ~umask, 0o777 & ~umask),
    ):
        assert {mode(path) for path in folder.rglob("*") if path.is_file()} == {files}
        assert {mode(path) for path in (folder, *folder.rglob("*")) if path.is_dir()} == {folders}


@pytest.mark.slow
def test_a_calibration_leaves_a_private_cache_and_output_to_share(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        run_surely(tmp_path / "out", tmp_path / "cache", state=tmp_path / "state")
    finally:
        os.umask(before)
    for folder in (tmp_path / "cache", tmp_path / "state"):
        found = [folder, *folder.rglob("*")]
        assert {mode(path) for path in found if path.is_dir()} == {0o700}
        assert {mode(path) for path in found if path.is_file()} == {0o600}
    assert {mode(path) for path in (tmp_path / "out").iterdir()} == {0o644}
