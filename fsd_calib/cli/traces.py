"""`fsd-traces`: whether a folder of traces is sound, what it says, and pictures of it.

Knows options and exit codes. Reading, counting and drawing are `fsd_collectors`'. Heavy imports stay inside functions:
`--help` must answer at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fsd_calib.cli.console import BAD_INPUT, leave, say

NAME = "fsd-traces"
_EPILOG = """
Example: fsd-traces describe traces/arithmetic

Exit codes: 0 done, and for verify sound · 2 bad input, or damaged traces · 130 interrupted
"""
_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder that fsd-collect wrote.", show_default=False)]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Looks at traces: what fsd-collect recorded of two models, token by token.",
    epilog=_EPILOG,
)


@app.command()
def verify(folder: _Folder) -> None:
    """Reads every byte and says what is wrong, a line each on stderr.

    Exit code 0: the traces are sound. 2: they are damaged, or there are none.
    """
    from fsd_collectors.store.verifying import notes
    from fsd_collectors.store.verifying import verify as faults_of

    faults = faults_of(folder)
    for fault in faults:
        say(NAME, f"damaged: {fault}")
    if faults:
        raise typer.Exit(BAD_INPUT)
    print(f"{folder}: sound", *notes(folder), sep="\n")


@app.command()
def describe(folder: _Folder) -> None:
    """Says what was collected: models, task, splits, accuracy, how far the draft is from the target, and which
    thresholds accept how much.
    """
    from rich.console import Console

    from fsd_collectors.report.summary import summarise
    from fsd_collectors.report.tables import print_sheets, sheets
    from fsd_collectors.store.reading import load_traces

    traces = load_traces(folder)
    print_sheets(sheets(traces.manifest, summarise(traces)), Console())


@app.command()
def plot(
    folder: _Folder,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the pictures and index.html. By default DIR/pictures.")
    ] = None,
) -> None:
    """Draws the divergences' distributions, what thresholds accept, and tokens per round, as PNG and on one page."""
    from fsd_collectors.report.plot import plot as draw
    from fsd_collectors.store.reading import load_traces

    for path in draw(load_traces(folder), out if out is not None else folder / "pictures"):
        print(path)


def main() -> None:
    leave(app, NAME)
