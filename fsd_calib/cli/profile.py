"""`fsd-profile`: shows a profile, validates profile files, and compares two profiles.

Heavy imports are inside functions, so that `--help` prints at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fsd_calib.cli.console import BAD_INPUT, leave, reply, say
from fsd_calib.cli.options import VersionOption
from fsd_decoding.errors import UsageError

NAME = "fsd-profile"
DIFFERENT = 1
_EPILOG = """
Example: fsd-profile show fsd-profile/arithmetic/profile.json

Exit codes: 0 done (validate: all files are valid; diff: no differences) · 1 diff found differences · 2 bad input or
an invalid file · 130 interrupted
"""
_Profile = Annotated[Path, typer.Argument(metavar="PATH", help="A profile.json file.", show_default=False)]
_A = Annotated[Path, typer.Argument(metavar="A", help="The first profile.json.", show_default=False)]
_B = Annotated[Path, typer.Argument(metavar="B", help="The second profile.json.", show_default=False)]
_Profiles = Annotated[list[Path], typer.Argument(metavar="PATH…", help="Profile files.", show_default=False)]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Shows, validates and compares the profiles that fsd-calibrate writes.",
    epilog=_EPILOG,
)


@app.callback()
def common(version: VersionOption = False) -> None:
    """Options before the command's name."""


@app.command()
def show(path: _Profile) -> None:
    """Prints the report, then the rest of the profile: curve, settings, models, certificate, costs and effort."""
    from fsd_calib.report.console import print_details, print_report
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

    profile = ThresholdProfile.load(path)
    print_report(profile)
    print_details(profile)


@app.command()
def validate(paths: _Profiles) -> None:
    """Checks each file, and prints that it is a valid profile or, on stderr, its first fault.

    Exit code 0: all are valid. 2: at least one is not.
    """
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

    valid = True
    for path in paths:
        try:
            ThresholdProfile.load(path)
        except UsageError as error:
            say(NAME, f"error: {error}")
            valid = False
        else:
            reply(f"{path}: valid")
    if not valid:
        raise typer.Exit(BAD_INPUT)


@app.command()
def diff(first: _A, second: _B) -> None:
    """Shows how two profiles differ in settings, models, certificate with its measurements, and curve.

    Dates and decoding effort are not compared. Exit code 0: no differences. 1: some differences.
    """
    from fsd_calib.report.diff import difference_table, differences
    from fsd_collectors.report.terminal import LiteralConsole
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

    differing = differences(ThresholdProfile.load(first), ThresholdProfile.load(second))
    if not differing:
        reply("no difference")
        return
    LiteralConsole().print(difference_table(differing, (str(first), str(second))))
    raise typer.Exit(DIFFERENT)


def main() -> None:
    leave(app, NAME)
