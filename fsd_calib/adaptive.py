"""Public names of the threshold policies: `from fsd_calib import adaptive`."""

from __future__ import annotations

from fsd_decoding.adaptive import *  # noqa: F403
from fsd_decoding.adaptive import __all__ as __all__
