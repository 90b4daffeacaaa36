"""Printed reports of made-up profiles, for tests of their text."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from fsd_calib.report.console import print_details, print_report
from support.calibration.profiles import (
    FAST_ENOUGH,
    FRONT,
    LOSSLESS,
    SLOWER,
    TOO_SLOW,
    UNCERTIFIED,
    UNKNOWN,
    UNTESTED,
    profile,
)

HARM: dict[str, Any] = {
    "certificate.harm": 3 / 653, "certificate.harm_upper_bound": 0.01251, "certificate.difference": -1 / 700,
    "certificate.difference_interval": [-0.0084, 0.0056],
}  # fmt: skip
OUTCOMES: tuple[dict[str, Any], ...] = (
    {}, UNKNOWN, SLOWER, HARM, UNCERTIFIED, TOO_SLOW, FAST_ENOUGH, LOSSLESS, UNTESTED, FRONT,
)  # fmt: skip


def one_line(text: str) -> str:
    return " ".join(text.split())


def paper(width: int = 80) -> Console:
    """A console that prints into memory."""
    return Console(width=width, file=io.StringIO(), force_terminal=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def printed(changes: dict[str, Any] | None = None, width: int = 80, path: Path | None = None) -> str:
    """The report of the made-up profile with some values changed, see `support.profiles.values`."""
    print_report(profile(changes), path, console := paper(width))
    return text_of(console)


def printed_details(changes: dict[str, Any], width: int = 80) -> str:
    print_details(profile(changes), console := paper(width))
    return text_of(console)


def row(text: str, label: str) -> tuple[list[str], str]:
    """The numbers of a row of the summary, and the line below it, where bounds are."""
    lines = text.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.strip().startswith(label) and "²" in line]
    return lines[at].strip().removeprefix(label).split(), " ".join(lines[at + 1].split())
