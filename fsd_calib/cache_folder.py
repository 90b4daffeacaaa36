"""Where decodings, traces and attempts lie that all calibrations of a user share. Knows a path and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "FSD_CALIB_CACHE"


def default_cache() -> Path:
    """The folder that all calibrations of a user share."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else Path.home() / ".cache" / "fsd-calib"
