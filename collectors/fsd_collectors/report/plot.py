"""`plot`: writes a run's pictures into a folder, as PNG files and an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fsd_collectors.report.figures import LENGTHS, pictures, thresholds
from fsd_collectors.report.page import Drawn, page
from fsd_collectors.report.panels import DARK, LIGHT, png, require_drawing
from fsd_collectors.report.summary import Summary, TraceSource, summarise
from fsd_collectors.report.tables import sheets
from fsd_collectors.store.folder import atomic_write
from fsd_decoding.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

PAGE = "index.html"
_NO_ROUNDS = (
    "Tokens per round against T are not drawn: these traces are {}, collected under one rule and T; only traces "
    "along the target (fsd-collect without --rule) can be replayed at another T."
)


def plot(traces: TraceSource, folder: Path) -> list[Path]:
    """Writes the pictures and the page into `folder` and returns the paths of the files.

    Raises:
        UsageError: the traces hold no rows, the folder cannot be written, or matplotlib is not installed.
    """
    require_drawing()
    summary = summarise(traces)
    drawn = pictures(summary, _swept(traces, summary))
    files = {f"{picture.name}.png": png(picture.draw(LIGHT)) for picture in drawn}
    shown = [
        Drawn(light, png(picture.draw(DARK)), picture.alt, picture.caption)
        for picture, light in zip(drawn, files.values(), strict=True)
    ]
    manifest = traces.manifest
    title = f"Traces of {manifest.task.name}, {manifest.way}"
    remarks = () if manifest.way == "along-target" else (_NO_ROUNDS.format(manifest.way),)
    files[PAGE] = page(title, sheets(manifest, summary), shown, remarks).encode()
    return [write(folder / name, content) for name, content in files.items()]


def _swept(traces: TraceSource, summary: Summary) -> pd.DataFrame | None:
    """Returns the tokens per round, lossless and fuzzy, or None where the traces cannot be replayed."""
    if traces.manifest.way != "along-target" or not summary.counted:
        return None
    from fsd_collectors.replay.simulation import sweep

    return sweep(
        traces,
        rules=("coupled", "fsd-coupled"),
        divergences=tuple(summary.divergences),
        thresholds=thresholds(summary),
        draft_lengths=LENGTHS,
    )


def write(path: Path, content: bytes) -> Path:
    """Writes a file, with its folders, and returns its path. Raises UsageError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(content)
    except OSError as error:
        raise UsageError(
            f"{str(path)!r} cannot be written: {error.strerror or error}; free space or choose another folder"
        ) from error
    return path
