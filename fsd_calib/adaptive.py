"""Threshold policies, where users find them: `from fsd_calib import adaptive`. Knows names alone."""

from __future__ import annotations

from fsd_decoding.adaptive import *  # noqa: F403
from fsd_decoding.adaptive import __all__ as __all__
