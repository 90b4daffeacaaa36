"""Folders shared by all calibrations of a user: a cache, which may be deleted, and a state folder, which may not."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_state_path

from fsd_decoding.user_cache import CACHE_VARIABLE, default_cache

__all__ = ["CACHE_VARIABLE", "STATE_VARIABLE", "default_cache", "default_state"]

STATE_VARIABLE = "FSD_CALIB_STATE"


def default_state() -> Path:
    """Returns the folder of the attempt ledger, which certificates rest on."""
    path = os.environ.get(STATE_VARIABLE)
    return Path(path) if path else user_state_path("fsd-calib")
