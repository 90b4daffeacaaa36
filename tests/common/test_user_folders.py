"""Folders of a user who has no home, as under a user id without a name in a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsd_common.user_folders import CACHE_VARIABLE, STATE_VARIABLE, default_cache, default_state, keep, kept
from support.messages import usage_error

pwd = pytest.importorskip("pwd")  # users of POSIX


@pytest.fixture(autouse=True)
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_STATE_HOME", CACHE_VARIABLE, STATE_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def test_folders_that_have_no_place_are_refused() -> None:
    assert usage_error(default_cache) == (
        "the cache has no folder, as this user has no home: set $FSD_CALIB_CACHE to one, or HOME"
    )
    assert usage_error(default_state).startswith("the ledger of attempts has no folder")


def test_folders_that_are_given_need_no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    assert (default_cache(), default_state()) == (tmp_path / "cache", tmp_path / "state")


def test_texts_are_kept_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    keep("texts/key", "text")
    assert kept("texts/key") is None
    assert list(tmp_path.iterdir()) == []
