"""Names of a study's storage: paths of journals, and URLs of databases, which are recognised even where they are
malformed, and named in messages without their passwords. Nothing here opens one.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from urllib.parse import unquote

from fsd_common.argument_checks import check_path
from fsd_common.errors import UsageError
from fsd_common.files import check_regular, naming
from fsd_common.terminal import visible

JOURNAL = "the study's journal"

_DIALECTS = "postgres|postgresql|mysql|mariadb|sqlite|oracle|mssql|cockroachdb|redis|rediss|grpc|https?"
_MEANT = re.compile(
    rf"(?![./~]).*://"
    rf"|\s*({_DIALECTS})(\+\w*)?\s*(:|//)"
    rf"|\w[\w+.-]+:/.*@"  # a scheme of two letters or more: a single one is a Windows drive
    rf"|\s*//.*@"
    rf"|.*\b(password|passwd|pwd)\s*="  # as drivers of databases take it
    rf"|(?![./~]|[a-z]:[/\\])[^@]*:.*@",  # user:password@host, unless it begins as a path does
    re.IGNORECASE | re.DOTALL,
)
_WITHOUT_ROOM = re.compile(r"[a-z][\w+.]*://[^@:?#%&\s]*", re.IGNORECASE)  # for a password


def is_url(storage: str) -> bool:
    """Returns whether this is, or was meant as, a URL; then it must not become the name of a file."""
    return _MEANT.match(storage) is not None


def check_storage(storage: str | None) -> None:
    """Checks what can be told of a storage, as `open_study` takes it, before a search needs it.

    Raises:
        UsageError: see `check_url` and `check_journal`.
    """
    if storage is not None:
        check_url(storage) if is_url(storage) else check_journal(Path(storage))


def check_url(url: str) -> None:
    """Raises UsageError where SQLite would take the URL for a file named by a password, or for memory."""
    if re.match(r"sqlite\S*?:/+[^/@]*:.*@", url, re.IGNORECASE):
        raise UsageError(
            f"the study's storage {without_password(url)} names a user, and SQLite has none; it is "
            "sqlite:////PATH, or the URL of another database"
        )
    if re.fullmatch(r"sqlite(\+\w+)?:/{2,3}(:memory:)?", url, re.IGNORECASE):
        raise UsageError(
            f"the study's storage {url} is SQLite's memory, which every thread has one of; name a file, as in "
            "sqlite:///study.db, or leave it out"
        )


def check_journal(path: Path) -> None:
    """Raises UsageError where a path is of something else than a regular file, reading which may never end, or is
    within a file.
    """
    check_path(JOURNAL, path)
    with naming(JOURNAL, path):
        if path.exists():
            check_regular(path)
        elif not (there := next(each for each in path.absolute().parents if each.exists())).is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))


def without_password(storage: str | None) -> str:
    """Returns a storage as messages name it.

    A URL is quoted only where it has no room for a password: in a malformed one, a part of it may be anywhere.
    """
    if storage is None:
        return "memory"
    if _may_be_shown(storage):
        return storage
    dialect = re.match(rf"\s*({_DIALECTS})\b", storage, re.IGNORECASE)
    return f"{dialect[1].lower() if dialect else 'database'} URL (not shown, as it may hold a password)"


def reason(storage: str, error: BaseException) -> str:
    """Returns the first line of a driver's message, in which `***` stands for what may be a part of a password.

    It may quote bytes of a damaged file, so control characters become escapes.
    """
    line = visible(next(iter(str(error).strip().splitlines()), "") or type(error).__name__)
    if _may_be_shown(storage):
        return line
    content = re.sub(rf"^\s*({_DIALECTS})\b", "", storage, flags=re.IGNORECASE)
    for part in sorted({*re.findall(r"\w+", f"{content} {unquote(content)}")}, key=len, reverse=True):
        whole = re.escape(part) if len(part) > 3 else rf"(?<!\w){re.escape(part)}(?!\w)"
        line = re.sub(whole, "***", line)
    return line


def _may_be_shown(storage: str) -> bool:
    return not is_url(storage) or _WITHOUT_ROOM.fullmatch(storage) is not None
