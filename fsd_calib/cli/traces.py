"""`fsd-traces`: verifies, describes and plots a folder of traces.

Heavy imports are inside functions, so that `--help` prints at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsd_calib.cli.console import BAD_INPUT, leave, reply_json, say
from fsd_calib.cli.family import Family, VersionOption, ending
from fsd_calib.cli.options import check_found
from fsd_calib.cli.output import OutputOptions
from fsd_calib.options.common import SCORES
from fsd_common.errors import UsageError
from fsd_common.option import Option, several

if TYPE_CHECKING:
    from fsd_collectors.collection.rescoring import Rescored
    from fsd_collectors.store.reading import Traces

NAME = "fsd-traces"
_EPILOG = ending(
    "Exit codes: 0 done (verify: the traces are intact) · 2 bad input or damaged traces · 130 interrupted",
    "fsd traces describe traces/arithmetic",
    "fsd traces plot traces/arithmetic",
    "fsd traces verify traces/arithmetic",
)
_Scores = Annotated[
    str | None,
    Option(
        "Scores to compute in addition, with commas between them, such as margin@10 or mine:Name; of traces that were "
        "collected with --log-probs.",
        read=several,
        words=SCORES,
    ),
]
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
def verify(folder: _Folder, *, output: OutputOptions) -> None:
    """Reads all files completely and prints each fault as a line on stderr.

    Exit code 0: the traces are intact. 2: they are damaged or missing.
    """
    output.begin()
    _check_there(folder)
    from fsd_collectors.store.verifying import notes
    from fsd_collectors.store.verifying import verify as faults_of

    faults = faults_of(folder)
    for fault in faults:
        say(f"damaged: {fault}")
    if faults:
        raise typer.Exit(BAD_INPUT)
    more = notes(folder)
    output.reply(NAME, {"folder": folder.absolute(), "notes": more}, "\n".join([f"{folder}: sound", *more]))


@app.command()
def describe(folder: _Folder, score: _Scores = None, *, output: OutputOptions) -> None:
    """Summarises the traces: models, task, splits, accuracy, scores, and acceptance rates by threshold."""
    output.begin()
    traces = _read(folder, score)
    from fsd_collectors.report.description import print_sheets, sheets, summarise
    from fsd_common.console import LiteralConsole

    found = sheets(traces.manifest, summarise(traces))
    if output.as_json:
        reply_json(NAME, {"sheets": list(map(asdict, found))})
    else:
        print_sheets(found, LiteralConsole())


@app.command()
def plot(
    folder: _Folder,
    out: Annotated[Path | None, Option("Folder for the figures and index.html. By default DIR/pictures.")] = None,
    score: _Scores = None,
    *,
    output: OutputOptions,
) -> None:
    """Plots how scores tell agreement from disagreement, which tokens they change, and tokens per round, as PNG
    files and one interactive page."""
    output.begin()
    traces = _read(folder, score)
    from fsd_collectors.report.plot import plot as draw

    drawn = list(map(str, draw(traces, out if out is not None else folder / "pictures")))
    output.reply(NAME, {"files": drawn}, "\n".join(drawn))


def _read(folder: Path, scores: Sequence[str] | None) -> Traces | Rescored:
    """The traces, with further scores if any are asked for, of which a line says what they are."""
    _check_there(folder)
    check_found("score", "--score", scores, SCORES)
    from fsd_collectors.store.reading import load_traces

    traces = load_traces(folder)
    if traces.manifest.way == "labels":
        raise UsageError(f"folder {str(folder)!r} holds labels, not traces; read them in Python with read_labels")
    if not scores:
        return traces
    from fsd_collectors.collection.rescoring import with_scores

    rescored = with_scores(traces, scores)
    if inexact := [name for name in rescored.scores if not rescored.exact(name)]:
        of_target, of_draft = rescored.left_out()
        say(
            f"{', '.join(inexact)}: an approximation, by the {traces.manifest.log_probs} likeliest tokens of each "
            f"model; {of_target:.2%} of the target's probability lies beyond them, and {of_draft:.2%} of the draft's"
        )
    return rescored


def _check_there(folder: Path) -> None:
    """Raises UsageError where there are no traces, before what reads them is loaded."""
    from fsd_collectors.store.listing import MANIFEST, content_of

    content_of(folder / MANIFEST)


def main() -> None:
    leave(app, NAME)
