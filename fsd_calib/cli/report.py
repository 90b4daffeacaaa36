"""`fsd-report`: the page of a calibration, its charts as pictures, or a comparison of several calibrations.

Heavy imports are inside functions, so that `--help` prints at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fsd_calib.cli.console import leave, say
from fsd_calib.cli.family import Family, ending
from fsd_calib.cli.output import OutputOptions
from fsd_common.errors import UsageError
from fsd_common.option import Option

NAME = "fsd-report"
_FORMATS = ("html", "png", "svg", "pdf", "md", "csv")
_EPILOG = ending(
    "Exit codes: 0 written · 2 bad input · 130 interrupted",
    "fsd report fsd-profile/arithmetic",
    "fsd report fsd-profile/arithmetic --format png",
    "fsd report runs/a runs/b",
)

app = Family()


@app.command(epilog=_EPILOG)
def command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Folders of calibrations, or their profile.json.", show_default=False),
    ],
    format: Annotated[
        str,
        Option(
            "html: one interactive page that needs no network. png, svg, pdf: a file for each chart. md: Markdown, "
            "with its charts as SVG. csv: every setting that was measured.",
            words=_FORMATS,
        ),
    ] = "html",
    out: Annotated[
        Path | None,
        Option(
            "The file, or with png, svg and pdf the folder, to write. By default report.html, report.md, report.csv or "
            "pictures in RUN; of several runs comparison.html, comparison.md, comparison.csv or comparison here."
        ),
    ] = None,
    *,
    output: OutputOptions,
) -> None:
    """Writes the report of a calibration: verdict, accuracy against speed, the certificate, what the search tried,
    where time went, and the problems whose texts differ. With several calibrations, compares them.

    A calibration has written the page already, as report.html; this command writes it again, in another format, or
    from a profile alone.
    """
    output.begin()
    if format not in _FORMATS:
        raise UsageError(f"--format is {format!r}; it must be one of {', '.join(_FORMATS)}")

    from fsd_calib.report.run_folder import PICTURES, load_run, write_as
    from fsd_decoding.profile.io import file_of

    loaded = [load_run(path) for path in runs]
    for path, run in zip(runs, loaded, strict=True):
        if run.lacks:
            say(f"warning: {path}: {run.lacks}, so trials, problems and times are not shown")
    if out is not None:
        _check_keeps_inputs(out, runs)

    from fsd_calib.report.comparison import comparison_page  # which import torch
    from fsd_calib.report.curve_csv import curves_as_csv
    from fsd_calib.report.page import run_page
    from fsd_common.pages.page import write

    alone = len(loaded) == 1
    folder, stem = (file_of(runs[0]).parent, "report") if alone else (Path(), "comparison")
    picture_folder = PICTURES if alone else stem
    place = out or folder / (f"{stem}.{format}" if format in ("html", "md", "csv") else picture_folder)
    if format == "csv":
        files = [write(place, curves_as_csv(loaded).encode())]
    else:
        page = run_page(loaded[0]) if alone else comparison_page(loaded)
        files = write_as(format, page, place)  # type: ignore[arg-type]
    written = list(map(str, files))
    output.reply(NAME, {"files": written}, "\n".join(written))


def _check_keeps_inputs(out: Path, runs: Sequence[Path]) -> None:
    """Raises UsageError where the page would take the place of a profile or a record that it is made of."""
    from fsd_calib.report.record import FILE_NAME
    from fsd_decoding.profile.io import file_of

    profiles = [file_of(path) for path in runs]
    inputs = [*profiles, *(file.with_name(FILE_NAME) for file in profiles)]
    if out.resolve() in [file.resolve() for file in inputs]:
        raise UsageError(f"--out is {str(out)!r}, which the report is made of; name another file")


def main() -> None:
    leave(app, NAME)
