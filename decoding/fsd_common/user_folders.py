"""Folders shared by all runs of a user: a cache, which may be deleted, and a state folder, which may not."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_state_path

from fsd_common.errors import UsageError

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


__all__ = ["CACHE_VARIABLE", "STATE_VARIABLE", "default_cache", "default_state"]

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
