"""`fsd-traces`: verifies, describes and plots a folder of traces.

Heavy imports are inside functions, so that `--help` prints at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fsd_calib.cli.console import BAD_INPUT, leave, reply, say
from fsd_calib.cli.family import Family, VersionOption
from fsd_common.option import Option

NAME = "fsd-traces"
_EPILOG = """
Example: fsd-traces describe traces/arithmetic

Exit codes: 0 done (verify: the traces are intact) · 2 bad input or damaged traces · 130 interrupted
"""
_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder that fsd-collect wrote.", show_default=False)]

app = Family(
    no_args_is_help=True,
    help="Verifies, describes and plots the traces that fsd-collect writes.",
    epilog=_EPILOG,
)


@app.callback()
def common(version: VersionOption = False) -> None:
    """Options before the command's name."""


@app.command()
def verify(folder: _Folder) -> None:
    """Reads all files completely and prints each fault as a line on stderr.

    Exit code 0: the traces are intact. 2: they are damaged or missing.
    """
    _check_there(folder)
    from fsd_collectors.store.verifying import notes
    from fsd_collectors.store.verifying import verify as faults_of

    faults = faults_of(folder)
    for fault in faults:
        say(NAME, f"damaged: {fault}")
    if faults:
        raise typer.Exit(BAD_INPUT)
    reply("\n".join([f"{folder}: sound", *notes(folder)]))


@app.command()
def describe(folder: _Folder) -> None:
    """Summarises the traces: models, task, splits, accuracy, divergences, and acceptance rates by threshold."""
    _check_there(folder)
    from fsd_collectors.report.description import print_sheets, sheets, summarise
    from fsd_collectors.store.reading import load_traces
    from fsd_common.console import LiteralConsole

    traces = load_traces(folder)
    print_sheets(sheets(traces.manifest, summarise(traces)), LiteralConsole())


@app.command()
def plot(
    folder: _Folder,
    out: Annotated[Path | None, Option("Folder for the figures and index.html. By default DIR/pictures.")] = None,
) -> None:
    """Plots how divergences tell agreement from disagreement, which tokens they change, and tokens per round, as PNG
    files and one interactive page."""
    _check_there(folder)
    from fsd_collectors.report.plot import plot as draw
    from fsd_collectors.store.reading import load_traces

    for path in draw(load_traces(folder), out if out is not None else folder / "pictures"):
        reply(str(path))


def _check_there(folder: Path) -> None:
    """Raises UsageError where there are no traces, before what reads them is loaded."""
    from fsd_collectors.store.listing import MANIFEST, content_of

    content_of(folder / MANIFEST)


def main() -> None:
    leave(app, NAME)
