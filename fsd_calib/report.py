"""What a calibration found, for a reader at a terminal: tables, one verdict, and how to use it.

Knows the profile alone: every number shown is one that it holds.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from fsd_calib.reporting.curve import curve_tables, front_table
from fsd_calib.reporting.sheets import sheets
from fsd_calib.reporting.summary import notes, profile_table
from fsd_calib.reporting.verdict import effort_line, verdict
from fsd_decoding.profile import ThresholdProfile

_WITH_FRONT = ("not-certified", "lossless-suffices", "too-slow", "front")


def print_report(profile: ThresholdProfile, path: Path | None = None, console: Console | None = None) -> None:
    """Prints the table, the verdict, where no point was granted those there are, what it took and, where the profile
    lies at `path`, how to use it."""
    console = console or Console()
    front = front_table(profile) if profile.outcome in _WITH_FRONT else None
    _print(console, profile_table(profile), Text(notes(profile), "dim"), Text(verdict(profile)), front,
           Text(effort_line(profile)) if profile.effort else None)  # fmt: skip
    if path is not None:
        # Not wrapped: these lines are there to be copied.
        console.print(Text(usage(profile, path)), soft_wrap=True)


def print_details(profile: ThresholdProfile, console: Console | None = None) -> None:
    """Prints all else that the profile holds: the curve, settings, models, certificate, costs and effort."""
    _print(console or Console(), *curve_tables(profile), *sheets(profile))


def usage(profile: ThresholdProfile, path: Path) -> str:
    """A command and Python lines that follow the profile."""
    models = f"{profile.target.id!r}, {profile.draft.id!r}"
    return (
        f"fsd-generate --profile {shlex.quote(str(path))} 'your prompt'\n\n"
        "from fsd_calib import SpeculativeDecoder\n"
        f"decoder = SpeculativeDecoder.from_pretrained({models}, profile={str(path)!r})\n"
        "results = decoder.generate(['your prompt'])"
    )


def _print(console: Console, *things: RenderableType | None) -> None:
    """Each with an empty line behind it."""
    for thing in things:
        if thing is not None:
            console.print(thing)
            console.print()
