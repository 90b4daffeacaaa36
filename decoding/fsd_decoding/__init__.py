"""The decoding core."""

from __future__ import annotations

import fsd_common as _before_torch  # noqa: F401  lets its waiting threads sleep
