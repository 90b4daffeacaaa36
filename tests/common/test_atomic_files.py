"""Files that appear whole or not at all."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fsd_common.files import atomic_write, intended_name, leftovers, temporary_of

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
