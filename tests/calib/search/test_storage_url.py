"""URLs of storages: never taken for file names, and their passwords never shown."""

from __future__ import annotations

import string
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fsd_calib.search.storage_url import is_url, reason, without_password
from support.calibration.search_worker import run_search, world
from support.messages import usage_error

SHAPES = [
    "postgresql://user:{}@host/db", "postgresql:/user:{}@host/db", "postgres//user:{}@host/db",
    "postgresql:user:{}@host/db", "postgres://user:{}@host:5432/db", "mysql+foo://u:{}@h/x", "mysql+://u:{}@h/x",
    "sqlite:///u:{}@h/x", "sqlite:///u:{}@h",
    "sqlite+pysqlite:////u:{}@h", "sqlite://u:{}@h/x", "sqlite:/u:{}@h/x", "user:{}@host/db", "//user:{}@host/db",
    "postgresql://user:{}", "postgresql://user:{}/db", "postgresql://:{}@host/db", "postgresql://{}@host/db",
    "postgresql://user:{}@host:port/db", "postgresql://user:{}@[::1]/db", "postgresql://user:{}@[::1/db",
    "postgresql://user:{}@host/db?sslmode=x", "postgresql://host/db?user=u&password={}",
    " postgresql://user:{}@host/db", "postgresql ://user:{}@host/db", "nosuch://user:{}@host/db",
    "://user:{}@host/db", "user:{}@host", "oracle:thin:user/{}@host", "postgresql://user:{} @host/db",
    "redis:{}@host", "a b://user:{}@host", "mysql+pymysql:user:{}@host/db", "POSTGRESQL:/user:{}@HOST/DB",
    "host=h user=u password={}", "Driver=x;Pwd={};", "x PASSWORD = {}",
]  # fmt: skip
PASSWORDS = st.text(string.ascii_letters + string.digits + "@:/?#%&[]+= éß\\'\"!$*", min_size=1, max_size=12)


def secret(middle: str) -> str:
    """A password that no message holds by chance; its parts are marked, so that a half shown is found, too."""
    return f"Zq7{middle}9Xk"


@pytest.mark.thinned(every=12)
@pytest.mark.parametrize("shape", SHAPES)
@given(middle=PASSWORDS)
@example(middle="@")
@example(middle="/")
@example(middle="%40")
@example(middle="://")
@settings(max_examples=60, deadline=None)
def test_a_password_is_never_shown(shape: str, middle: str) -> None:
    url = shape.format(secret(middle))
    assert is_url(url)
    for shown in (without_password(url), reason(url, ValueError(f"cannot connect to {url!r} by {secret(middle)}"))):
        assert "Zq7" not in shown
        assert "9Xk" not in shown


@pytest.mark.thinned(every=11)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("password", ["Zq79Xk", "Zq7@9Xk"])
def test_a_search_refuses_a_bad_url_without_the_password(
    shape: str, password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fsd_calib.search.study_storage._TRIES", 1)
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = usage_error(lambda: run_search(shape.format(password), world(), trials=1))
    assert "Zq7" not in said
    assert "9Xk" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "path",
    ["study.log", "/data/study.log", "./user:pw@host/study.log", "C:/data/me@home/study.log", "C:\\data\\study.log",
     "~/a:b@c", "./a://b", "runs@home/study.log", "12:30/study.log", "sqlite.log", "postgresql/study.log"],
)  # fmt: skip
def test_a_path_is_no_url(path: str) -> None:
    assert not is_url(path)
    assert without_password(path) == path


def test_what_may_be_shown_is_shown() -> None:
    assert without_password("sqlite:////data/study.db") == "sqlite:////data/study.db"
    assert without_password("postgresql://me:secret@host/db").startswith("postgresql URL (not shown")
    refused = OSError('connection to "host" failed: password authentication failed for user "me"\nmore')
    said = reason("postgresql://me:secret@host/db", refused)
    assert said == 'connection to "***" failed: password authentication failed for user "***"'


@pytest.mark.parametrize("storage", ["sqlite:////data/study.db", "postgresql://me:secret@host/db"])
def test_bytes_that_a_driver_quotes_do_not_act_on_a_terminal(storage: str) -> None:
    damaged = ValueError('malformed schema: unrecognized token: "\x1a\x1b[2J"')
    assert reason(storage, damaged) == r'malformed schema: unrecognized token: "\x1a\x1b[2J"'
