"""`plot`: writes a run's charts into a folder, as PNG files and an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fsd_collectors.report.charts import LENGTHS, charts, thresholds
from fsd_collectors.report.summary import Summary, TraceSource, summarise
from fsd_collectors.report.tables import sheets, short_name
from fsd_common.pages.blocks import Block, Page, Paragraph, Section
from fsd_common.pages.charts import Chart
from fsd_common.pages.page import html, write
from fsd_common.pages.pictures import png

if TYPE_CHECKING:
    import pandas as pd

PAGE = "index.html"
_NO_ROUNDS = (
    "Tokens per round against T are not drawn: these traces are {}, collected under one rule and T; only traces "
    "along the target (fsd-collect without --rule) can be replayed at another T."
)
_SECTIONS = {
    "separation": (
        "Which divergence tells agreement from disagreement",
        "The further a curve bends to the lower right, the fewer tokens are accepted where the models disagree, at the "
        "same share where they agree.",
    ),
    "substitutions": (
        "Tokens that are not the target's own",
        "At the same share of tokens accepted, the lower curve changes fewer of them; what a changed token costs in "
        "quality is not shown here.",
    ),
    "rounds": (
        "Tokens per round",
        "More is faster: each L has curves of one colour, one for each divergence, above its lossless level (dotted), "
        "replayed along the target's own text, which fuzzy acceptance would change.",
    ),
}


def plot(traces: TraceSource, folder: Path) -> list[Path]:
    """Writes the charts and the page into `folder` and returns the paths of the files.

    Raises:
        UsageError: the traces hold no rows, or the folder cannot be written.
    """
    page = traces_page(traces)
    pictures = [write(folder / f"{chart.name}.png", png(chart)) for chart in page.charts]
    return [*pictures, write(folder / PAGE, html(page).encode())]


def traces_page(traces: TraceSource) -> Page:
    """Returns the page of traces: charts first, then the tables of `fsd-traces describe`."""
    manifest, summary = traces.manifest, summarise(traces)
    drawn = [_section(chart) for chart in charts(summary, _swept(traces, summary))]
    notes: tuple[Block, ...] = ()
    if manifest.way != "along-target":
        notes = (Paragraph(_NO_ROUNDS.format(manifest.way), "note"),)
    tables = Section("tables", "In figures", "The tables that fsd-traces describe prints.",
                     (*notes, *sheets(manifest, summary)))  # fmt: skip
    title = f"Traces of {manifest.task.name}, {manifest.way}"
    return Page(title, (*drawn, tables), f"{short_name(manifest.target.id)} with draft {short_name(manifest.draft.id)}")


def _section(chart: Chart) -> Section:
    title, explanation = _SECTIONS[chart.name]
    return Section(chart.name, title, explanation, (chart,))


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
