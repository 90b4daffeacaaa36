"""URLs of databases: recognised even where they are malformed, and named in messages without their passwords."""

from __future__ import annotations

import re
from urllib.parse import unquote

from fsd_decoding.terminal import visible

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


def names_a_file_by_a_password(url: str) -> bool:
    """Returns whether SQLite, which has no users, would take `user:password@host` for the name of its file."""
    return re.match(r"sqlite\S*?:/+[^/@]*:.*@", url, re.IGNORECASE) is not None


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
