"""Folders shared by all calibrations of a user: a cache, which may be deleted, and a state folder, which may not."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_state_path

from fsd_decoding.user_cache import CACHE_VARIABLE, default_cache, no_home

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
