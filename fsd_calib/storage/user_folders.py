"""Folders that all calibrations of a user share: a cache, which may be deleted, and a state, which may not."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_state_path

CACHE_VARIABLE, STATE_VARIABLE = "FSD_CALIB_CACHE", "FSD_CALIB_STATE"


def default_cache() -> Path:
    """Of decodings and traces, which cost time alone."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else Path.home() / ".cache" / "fsd-calib"


def default_state() -> Path:
    """Of the ledger of attempts, on which certificates rest."""
    given = os.environ.get(STATE_VARIABLE)
    return Path(given) if given else user_state_path("fsd-calib")
