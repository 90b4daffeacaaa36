"""The display that suits where stderr goes."""

from __future__ import annotations

import os
import sys

from fsd_common.progress.base import Progress, Silent

_WITHOUT_CURSOR = ("dumb", "unknown")  # terminals on which nothing can be drawn over


def stderr_progress(quiet: bool = False) -> Progress:
    """Returns bars where stderr is a terminal that can draw them, else lines; nothing at all where `quiet`."""
    if quiet:
        return Silent()
    if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") not in _WITHOUT_CURSOR:
        from fsd_common.progress.bars import Bars

        return Bars()
    from fsd_common.progress.lines import Lines

    return Lines()
