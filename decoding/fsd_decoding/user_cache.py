"""The user's cache folder: everything in it can be computed again."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "FSD_CALIB_CACHE"


def default_cache() -> Path:
    """Returns the folder of decodings, traces and fingerprints."""
    path = os.environ.get(CACHE_VARIABLE)
    return Path(path) if path else Path.home() / ".cache" / "fsd-calib"
