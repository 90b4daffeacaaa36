"""The display that suits where stderr goes."""

from __future__ import annotations

import sys

from fsd_calib.progress import Progress, Silent


def stderr_progress(quiet: bool = False) -> Progress:
    """Returns bars where stderr is a terminal, else lines; nothing at all where `quiet`."""
    if quiet:
        return Silent()
    if sys.stderr is not None and sys.stderr.isatty():
        from fsd_calib.display.bars import Bars

        return Bars()
    from fsd_calib.display.lines import Lines

    return Lines()
