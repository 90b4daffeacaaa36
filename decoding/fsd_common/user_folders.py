"""Folders shared by all runs of a user: a cache, which may be deleted, and a state folder, which may not.

Texts that take long to make are kept in the cache, for this user alone.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from platformdirs import user_state_path

from fsd_common.digests import facts_digest
from fsd_common.errors import UsageError
from fsd_common.files import atomic_write

CACHE_VARIABLE = "FSD_CALIB_CACHE"


def default_cache() -> Path:
    """Returns the folder of decodings, traces and fingerprints.

    Raises:
        UsageError: neither it nor the user's home is known, as for a user without a name in a container.
    """
    path = os.environ.get(CACHE_VARIABLE)
    if path:
        return Path(path)
    try:
        return Path.home() / ".cache" / "fsd-calib"
    except RuntimeError as error:
        raise no_home("cache", CACHE_VARIABLE) from error


def no_home(what: str, variable: str) -> UsageError:
    """Returns the error that a folder of the user's has no place."""
    return UsageError(f"the {what} has no folder, as this user has no home: set ${variable} to one, or HOME")


def kept(name: str) -> str | None:
    """Returns the text that is kept under a name, "folder/file"; None: there is none, or it is damaged."""
    try:
        check, _, text = (default_cache() / name).read_bytes().decode().partition("\n")
    except (OSError, ValueError):  # ValueError: damaged, or there is no home for the cache
        return None
    return text if check == facts_digest([name, text]) else None


def keep(name: str, text: str) -> None:
    """Keeps a text under a name, "folder/file", if the cache can be written."""
    with suppress(OSError, ValueError):
        path = default_cache() / name
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(0o700, parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(f"{facts_digest([name, text])}\n{text}".encode())


STATE_VARIABLE = "FSD_CALIB_STATE"


def default_state() -> Path:
    """Returns the folder of the attempt ledger, which certificates rest on.

    Raises:
        UsageError: neither it nor the user's home is known.
    """
    if path := os.environ.get(STATE_VARIABLE):
        return Path(path)
    try:
        return user_state_path("fsd-calib")
    except RuntimeError as error:
        raise no_home("ledger of attempts", STATE_VARIABLE) from error
