"""The user's cache folder: everything in it can be computed again."""

from __future__ import annotations

import os
from pathlib import Path

from fsd_decoding.errors import UsageError

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
