"""The charts of traces, all scores on one scale (the share of drafted tokens that a T accepts), and their page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fsd_collectors.report.description import (
    BINS,
    Histogram,
    ScoreSummary,
    Summary,
    TraceSource,
    number,
    percent,
    sheets,
    short_name,
    summarise,
    threshold,
)
from fsd_common.errors import UsageError
from fsd_common.pages.blocks import Block, Page, Paragraph, Section
from fsd_common.pages.charts import LINES, Chart, Spec, by_series, layered, quantitative
from fsd_common.pages.page import html, write
from fsd_common.pages.pictures import png
from fsd_common.pages.themes import DASHES, SERIES

if TYPE_CHECKING:
    import pandas as pd

LENGTHS = (2, 3, 5, 8, 12)  # draft lengths that are drawn
THRESHOLDS = 48  # thresholds of each score, evenly spaced on its log scale
_POINTS = 60  # of a curve
_DECADES = 9  # of the scale of thresholds, at most


def charts(summary: Summary, swept: pd.DataFrame | None) -> tuple[Chart, ...]:
    """Returns all charts of a run.

    Args:
        swept: result of `sweep` over `thresholds`; None where the traces cannot be replayed.

    Raises:
        UsageError: the traces hold no rows or no scores.
    """
    if not summary.counted or not summary.scores:
        raise UsageError(
            f"the traces hold {summary.counted} token rows of {len(summary.scores)} scores; pictures need "
            "at least one of each: collect some first"
        )
    drawn = (separation(summary), substitutions(summary))
    return drawn if swept is None else (*drawn, rounds(summary, swept))


def thresholds(summary: Summary) -> dict[str, NDArray[np.float64]]:
    """Returns thresholds of each score, from accepting 1 % of the tokens with x ≠ y to all of them."""
    scales = {name: _scale(of.histogram(same_token=False), 0.01) for name, of in summary.scores.items()}
    return {name: np.geomspace(*scale, THRESHOLDS) for name, scale in scales.items()}


def separation(summary: Summary) -> Chart:
    """Draws how well each score tells tokens whose argmaxes agree from those whose argmaxes differ."""
    values: list[dict[str, Any]] = []
    for name, of in summary.scores.items():
        agree, differ = (of.histogram(same_argmax=same) for same in (True, False))
        for at in _bins(of):
            values.append(_point(name, at, _share(agree, at), _share(differ, at), "accepted where argmaxes differ"))
    x = _percent("x", "% accepted where the argmaxes agree")
    y = _percent("y", "% accepted where they differ")
    medians = (
        f"{name} {' and '.join(number(of.histogram(same).quantiles([0.5])[0]) for same in (True, False))}"
        for name, of in summary.scores.items()
    )
    alt = (
        "Curves, one for each score, of the share of tokens with D ≤ T where the argmaxes of target and draft "
        f"differ against that where they agree. Medians of D, agreeing and differing: {'; '.join(medians)}."
    )
    return Chart("separation", alt, _curves(values, x, y, list(summary.scores)))


def substitutions(summary: Summary) -> Chart:
    """Draws how many tokens other than the target's own are accepted, at each share accepted in all."""
    values: list[dict[str, Any]] = []
    for name, of in summary.scores.items():
        other = of.histogram(same_token=False)
        for at in _bins(of):
            changed = float(other.at_most[at]) / of.rows
            values.append(_point(name, at, _share(of.histogram(), at), changed, "other than the target's"))
    x = _percent("x", "% of drafted tokens with D ≤ T")
    y = quantitative("y", "% of drafted tokens accepted though x ≠ y", scale={"zero": True})
    at_90 = "; ".join(f"{name} {threshold(of.threshold(0.9, False))}" for name, of in summary.scores.items())
    alt = (
        "Curves, one for each score, of the share of drafted tokens that are accepted although they are not the "
        f"target's own, against the share accepted by D ≤ T. x = y alone accepts {_exact(summary)}. D ≤ T alone "
        f"accepts 90% at: {at_90}."
    )
    return Chart("substitutions", alt, _curves(values, x, y, list(summary.scores)))


def rounds(summary: Summary, swept: pd.DataFrame) -> Chart:
    """Draws tokens per round under `fsd-coupled`, by draft length, against the share accepted by D ≤ T."""
    lossless = swept[swept["rule"] == "coupled"].set_index("draft_length")["tokens_per_round"]
    fuzzy = swept[swept["rule"] == "fsd-coupled"]
    lengths = [int(length) for length in sorted(swept["draft_length"].unique())]
    names = [f"L = {length}" for length in lengths]
    values = [_round_point(summary, row) for row in fuzzy.to_dict("records")]
    levels = [{"L": f"L = {length}", "y": float(lossless[length])} for length in lengths]
    x, y = _percent("x", "% of drafted tokens with D ≤ T"), quantitative("y", "tokens per round (fsd-coupled)")
    looks = by_series("color", "L", names, SERIES)
    dashes = by_series("strokeDash", "score", list(summary.scores), DASHES, legend=LINES)
    tooltip = [{"field": name, "type": "nominal"} for name in ("L", "score", "T", "tokens/round")]
    layers: list[Spec] = [
        {"data": {"values": levels}, "mark": {"type": "rule", "strokeDash": [2, 3], "strokeWidth": 1.5},
         "encoding": {"y": y, **looks}},
        {"mark": {"type": "line", "strokeWidth": 1.4, "opacity": 0.75},
         "encoding": {"x": x, "y": y, **looks, **dashes, "order": {"field": "x"}}},
        {"mark": {"type": "point", "filled": True, "size": 26, "opacity": 0.9},
         "encoding": {"x": x, "y": y, **looks, "tooltip": tooltip}},
    ]  # fmt: skip
    at = (f"{lossless[length]:.2f} at L = {length}" for length in lengths)
    alt = (
        "Curves of tokens per round against the share of drafted tokens accepted, one for each draft length L and "
        f"score; they rise from the lossless level, {', '.join(at)}, towards L + 1."
    )
    return Chart("rounds", alt, layered(values, layers, 360))


def _round_point(summary: Summary, row: Mapping[Any, Any]) -> dict[str, Any]:
    accepted = _accepted(summary.scores[row["score"]], row["threshold"])
    return {
        "L": f"L = {row['draft_length']}", "score": row["score"], "T": threshold(row["threshold"]),
        "x": 100 * accepted, "y": row["tokens_per_round"], "tokens/round": f"{row['tokens_per_round']:.2f}",
    }  # fmt: skip


def _curves(values: Sequence[dict[str, Any]], x: Spec, y: Spec, names: Sequence[str]) -> Spec:
    looks = by_series("color", "score", names, SERIES, legend=LINES)
    looks |= by_series("strokeDash", "score", names, DASHES, legend=LINES)
    tooltip = [{"field": name, "type": "nominal"} for name in ("score", "T", "accepted", "of these")]
    nearest = {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"}
    layers: list[Spec] = [
        {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"x": x, "y": y, **looks, "order": {"field": "x"}}},
        {"mark": {"type": "point", "filled": True, "size": 40}, "params": [{"name": "near", "select": nearest}],
         "encoding": {"x": x, "y": y, "color": looks["color"], "tooltip": tooltip,
                      "opacity": {"condition": {"param": "near", "empty": False, "value": 1}, "value": 0}}},
    ]  # fmt: skip
    return layered(values, layers, 360)


def _point(name: str, at: int, x: float, y: float, what: str) -> dict[str, Any]:
    return {
        "score": name, "T": threshold(float(BINS.edges[at])), "x": 100 * x, "y": 100 * y, "accepted": f"{x:.1%}",
        "of these": f"{y:.2%} {what}",
    }  # fmt: skip


def _percent(field: str, title: str) -> Spec:
    return quantitative(field, title, scale={"domain": [0, 100]})


def _bins(of: ScoreSummary) -> list[int]:
    """Bins whose edges are the thresholds of a curve: those that accept shares evenly spaced from 0 to 1."""
    counted = of.histogram().at_most[: BINS.infinite]
    shares = np.linspace(0, 1, _POINTS) * max(int(counted[-1]), 1)
    return sorted({int(at) for at in np.minimum(np.searchsorted(counted, shares), BINS.infinite - 1)})


def _share(histogram: Histogram, at: int) -> float:
    """The share of a histogram's values that are at most the edge of a bin; 0 where it is empty."""
    return float(histogram.at_most[at]) / histogram.counts.sum() if histogram.counts.sum() else 0.0


def _accepted(of: ScoreSummary, at: float) -> float:
    """The share of the rows with D <= T."""
    bins = int(np.searchsorted(BINS.edges[: BINS.infinite], at, side="right")) - 1
    return float(of.histogram().at_most[max(bins, 0)]) / of.rows


def _scale(histogram: Histogram, from_share: float) -> tuple[float, float]:
    """Returns a scale from a quantile to the largest finite value, without zeros, of one to `_DECADES` decades."""
    counts = histogram.counts.copy()
    counts[0] = counts[BINS.infinite :] = 0
    low, high = Histogram(counts).quantiles((from_share, 1)) if counts.any() else (0.1, 1.0)
    return max(min(low, high / 10), high / 10**_DECADES), high


def _exact(summary: Summary) -> str:
    same = summary.means["same_token"]
    return percent(same.total, same.values)


PAGE = "index.html"
_NO_ROUNDS = (
    "Tokens per round against T are not drawn: these traces are {}, collected under one rule and T; only traces "
    "along the target (collected without a rule) can be replayed at another T."
)
_SECTIONS = {
    "separation": (
        "Which score tells agreement from disagreement",
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
        "More is faster: each L has curves of one colour, one for each score, above its lossless level (dotted), "
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
        scores=tuple(summary.scores),
        thresholds=thresholds(summary),
        draft_lengths=LENGTHS,
    )
