"""Files that appear whole or not at all, and files that only their user may read."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.measuring.result_cache import ResultCache
from fsd_common.files import atomic_write, intended_name, leftovers, make_private_folder, temporary_of
from support.models.tiny_calibration import run_surely
from support.traces.rows import manifest, write

_SIZE = 1 << 16
_KILLED = """
import os, signal, sys
from pathlib import Path
from fsd_common.files import atomic_write
with atomic_write(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _write(path: Path, letter: bytes) -> None:
    for _ in range(100):
        with atomic_write(path) as file:
            for _ in range(4):
                file.write(letter * (_SIZE // 4))


@pytest.mark.slow
def test_of_several_writers_one_stays_whole(tmp_path: Path) -> None:
    path, start = tmp_path / "file", multiprocessing.get_context("fork")
    writers = [start.Process(target=_write, args=(path, letter)) for letter in (b"a", b"b", b"c")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if path.exists():
            content = path.read_bytes()
            assert content == content[:1] * _SIZE
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_planted_link_leads_nowhere(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_text("mine")
    for name in ("file", "file.tmp", f".file.{os.getpid()}.tmp"):
        (tmp_path / name).symlink_to(victim)
    with atomic_write(path) as file:
        file.write(b"new")
    assert (victim.read_text(), path.read_text(), path.is_symlink()) == ("mine", "new", False)


def test_a_name_that_was_foreseen_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, path = tmp_path / "victim", tmp_path / "file"
    monkeypatch.setattr("secrets.token_hex", lambda _: "0" * 16)
    temporary_of(path).symlink_to(victim)
    with pytest.raises(FileExistsError), atomic_write(path):
        pass
    assert not victim.exists()
    assert not path.exists()
    assert temporary_of(path).is_symlink()  # it is not ours to remove


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(TypeError), atomic_write(path) as file:
        file.writelines([b"half", "no bytes"])  # type: ignore[list-item]
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("file", "old")]


def test_a_killed_writer_leaves_what_is_known_as_left(tmp_path: Path) -> None:
    path = tmp_path / "odd .tmp\nname.0123456789abcdef.tmp"
    done = subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = leftovers(tmp_path)
    assert (intended_name(left.name), path.exists()) == (path.name, False)
    assert intended_name("file.tmp") == "file.tmp"


@pytest.mark.parametrize(
    ("folder", "mode", "wanted"), [(0o700, None, 0o600), (0o755, None, 0o644), (0o755, 0o600, 0o600)]
)
def test_modes(folder: int, mode: int | None, wanted: int, tmp_path: Path) -> None:
    tmp_path.chmod(folder)
    with atomic_write(tmp_path / "file", mode) as file:
        file.write(b"")
    assert (tmp_path / "file").stat().st_mode & 0o777 == wanted


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
