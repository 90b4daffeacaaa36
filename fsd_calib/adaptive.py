"""Threshold policies for users: `from fsd_calib import adaptive`. They are defined in `fsd_decoding.adaptive`."""

from __future__ import annotations

from fsd_decoding.adaptive import *  # noqa: F403
from fsd_decoding.adaptive import __all__ as __all__
