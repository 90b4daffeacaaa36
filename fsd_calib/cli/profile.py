"""`fsd-profile`: what a profile says, whether its file is sound, and in what two of them differ.

Knows options and exit codes. What a profile may hold is `fsd_decoding.profile.threshold_profile`'s, how it is shown `report`'s and
`reporting`'s. Heavy imports stay inside functions: `--help` must answer at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fsd_calib.cli.console import BAD_INPUT, leave, say
from fsd_decoding.errors import UsageError

NAME = "fsd-profile"
DIFFERENT = 1
_EPILOG = """
Example: fsd-profile show fsd-profile/arithmetic/profile.json

Exit codes: 0 done, for validate all valid, for diff no difference · 1 diff found some · 2 bad input, or a file that is
not valid · 130 interrupted
"""
_Profile = Annotated[Path, typer.Argument(metavar="PATH", help="A profile.json.", show_default=False)]
_A = Annotated[Path, typer.Argument(metavar="A", help="One profile.json.", show_default=False)]
_B = Annotated[Path, typer.Argument(metavar="B", help="Another.", show_default=False)]
_Profiles = Annotated[list[Path], typer.Argument(metavar="PATH…", help="Profile files.", show_default=False)]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Looks at profiles: what fsd-calibrate measured, chose and certified.",
    epilog=_EPILOG,
)


@app.command()
def show(path: _Profile) -> None:
    """Prints the report, then all that the profile holds: curve, settings, models, certificate, costs and effort."""
    from fsd_calib.report.console import print_details, print_report
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

    profile = ThresholdProfile.load(path)
    print_report(profile)
    print_details(profile)


@app.command()
def validate(paths: _Profiles) -> None:
    """Says of each file that it is a valid profile, or on stderr what is wrong first.

    Exit code 0: all are valid. 2: at least one is not.
    """
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

    sound = True
    for path in paths:
        try:
            ThresholdProfile.load(path)
        except UsageError as error:
            say(NAME, f"error: {error}")
            sound = False
        else:
            print(f"{path}: valid")
    if not sound:
        raise typer.Exit(BAD_INPUT)


@app.command()
def diff(first: _A, second: _B) -> None:
    """Shows in what two profiles differ: settings, models, certificate with what was measured, and curve.

    When they were made and how much decoding it took is not compared. Exit code 0: they do not differ. 1: they do.
    """
    from rich.console import Console

    from fsd_calib.report.diff import difference_table, differences
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

    found = differences(ThresholdProfile.load(first), ThresholdProfile.load(second))
    if not found:
        print("no difference")
        return
    Console().print(difference_table(found, (str(first), str(second))))
    raise typer.Exit(DIFFERENT)


def main() -> None:
    leave(app, NAME)
