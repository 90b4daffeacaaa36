"""Traces drawn: how D is spread, what a T accepts, and what that makes of rounds.

Knows what each picture shows, and how to say it to someone who cannot see it. Knows neither rows nor pages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fsd_collectors.report.histogram import BINS, Histogram
from fsd_collectors.report.panels import LegendEntry, Theme, divergence_panels
from fsd_collectors.report.summary import DivergenceSummary, Summary
from fsd_collectors.report.tables import number, percent, threshold
from fsd_decoding.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LENGTHS = (2, 3, 5, 8, 12)  # draft lengths that are drawn
THRESHOLDS = 48  # of each divergence, evenly on its log scale
_BARS_A_DECADE = 10
_DECADES = 9  # drawn at most
_DISTRIBUTIONS = (
    "Each group by itself: the bars of one colour add up to 100%, less what lies left of the scale or, as zero and "
    "infinity, cannot stand on it."
)
_ACCEPTANCE = (
    "Each token by itself, whatever became of those drafted before it. Accepting by x = y costs no quality; accepting "
    "by D ≤ T does, and how much is not seen here."
)
_ROUNDS = (
    "Replayed along the target's own text: exact for the lossless level, an estimate where T lets the text change, "
    "better the fewer tokens it changes."
)


@dataclass(frozen=True)
class Picture:
    """`name`: of its file. `alt`: what it shows, in words. `caption`: what one should know to read it."""

    name: str
    alt: str
    caption: str
    draw: Callable[[Theme], Figure]


def pictures(summary: Summary, swept: pd.DataFrame | None) -> tuple[Picture, ...]:
    """All that there is to draw; `swept` is `sweep`'s table over `thresholds`, None where nothing can be replayed."""
    if not summary.counted or not summary.divergences:
        raise UsageError(
            f"the traces hold {summary.counted} token rows of {len(summary.divergences)} divergences; pictures need "
            "one of each at least: collect some first"
        )
    drawn = [
        Picture(
            "distributions", _distributions_said(summary), _DISTRIBUTIONS, lambda theme: distributions(summary, theme)
        ),
        Picture("acceptance", _acceptance_said(summary), _ACCEPTANCE, lambda theme: acceptance(summary, theme)),
    ]
    if swept is not None:
        drawn.append(Picture("rounds", _rounds_said(swept), _ROUNDS, lambda theme: rounds(swept, theme)))
    return tuple(drawn)


def thresholds(summary: Summary) -> dict[str, NDArray[np.float64]]:
    """Of each divergence, those between which a lossless rule becomes one that accepts all."""
    scales = {name: _scale(of.histogram(same_token=False), 0.01) for name, of in summary.divergences.items()}
    return {name: np.geomspace(*scale, THRESHOLDS) for name, scale in scales.items()}


def distributions(summary: Summary, theme: Theme) -> Figure:
    """Histograms of D where the argmaxes agree and where they differ, each group by itself."""
    agree = summary.means["same_argmax"].total
    keys = [
        LegendEntry(f"argmaxes agree ({percent(agree, summary.counted)} of tokens)", theme.first),
        LegendEntry(f"argmaxes differ ({percent(summary.counted - agree, summary.counted)})", theme.second),
    ]

    def draw(axes: Axes, name: str) -> None:
        of = summary.divergences[name]
        edges = _bar_edges(of)
        for same, key in zip((True, False), keys, strict=True):
            _bars(axes, of.histogram(same), edges, key.colour)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(bottom=0)
        _beyond(axes, of.histogram())

    heading = "Divergence of target and draft, by agreement of argmax"
    return divergence_panels(
        list(summary.divergences),
        draw,
        heading,
        keys,
        ("divergence D at a drafted token", "% of group per 0.1 decade"),
        theme,
    )


def acceptance(summary: Summary, theme: Theme) -> Figure:
    """Share of drafted tokens accepted against T: by D alone, and where x = y is accepted too."""
    keys = [
        LegendEntry("x = y or D ≤ T (fsd-coupled)", theme.first),
        LegendEntry("D ≤ T alone (fsd)", theme.second),
        LegendEntry(f"x = y alone, lossless ({_exact(summary)})", theme.ink, dashed=True),
    ]

    def draw(axes: Axes, name: str) -> None:
        of = summary.divergences[name]
        shown = _shown(of)
        axes.axhline(100 * of.exact / of.rows, color=theme.ink, ls="--", lw=0.9)
        for either, key in zip((True, False), keys, strict=False):
            axes.plot(BINS.edges[shown], 100 * of.accepted(either)[shown] / of.rows, color=key.colour)
        axes.set_xlim(*_span(of))
        axes.set_ylim(0, 102)
        axes.set_yticks(range(0, 101, 20))

    heading = "Drafted tokens accepted at threshold T"
    return divergence_panels(
        list(summary.divergences), draw, heading, keys, ("threshold T on D", "% of drafted tokens accepted"), theme
    )


def rounds(swept: pd.DataFrame, theme: Theme) -> Figure:
    """Tokens a round against T for several draft lengths, as `fsd-coupled` would decode."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    lengths = sorted(swept["draft_length"].unique())
    keys = [
        LegendEntry(f"L = {length}", to_hex(colormaps["viridis"](at)))
        for length, at in zip(lengths, np.linspace(*theme.lengths, len(lengths)), strict=True)
    ]
    lossless = swept[swept["rule"] == "coupled"].set_index("draft_length")["tokens_per_round"]
    fuzzy = swept[swept["rule"] == "fsd-coupled"]

    def draw(axes: Axes, name: str) -> None:
        of = fuzzy[fuzzy["divergence"] == name].pivot(index="threshold", columns="draft_length")["tokens_per_round"]
        for length, key in zip(lengths, keys, strict=True):
            axes.axhline(lossless[length], color=key.colour, ls="--", lw=0.9, alpha=0.8)
            axes.plot(of.index, of[length], color=key.colour)
        axes.set_xlim(of.index[0], of.index[-1])
        axes.set_ylim(bottom=1)

    names = list(fuzzy["divergence"].unique())
    keys_shown = [*keys, LegendEntry("lossless (T < 0)", theme.ink, dashed=True)]
    heading = "Tokens per round at threshold T, by draft length L"
    return divergence_panels(
        names, draw, heading, keys_shown, ("threshold T on D", "tokens per round (fsd-coupled)"), theme
    )


def _bar_edges(of: DivergenceSummary) -> NDArray[np.float64]:
    """Tenths of decades that hold the span."""
    low, high = (np.floor(_BARS_A_DECADE * np.log10(end)) for end in _span(of))
    return 10 ** (np.arange(low, high + 2) / _BARS_A_DECADE)


def _bars(axes: Axes, of: Histogram, edges: NDArray[np.float64], colour: str) -> None:
    """% of the group between edges; what lies outside is left out."""
    if not of.total:
        return
    bars = np.histogram(BINS.middles[: BINS.infinite], edges, weights=of.counts[: BINS.infinite])[0]
    shares = 100 * bars / of.counts.sum()
    axes.stairs(shares, edges, fill=True, color=colour, alpha=0.25)
    axes.stairs(shares, edges, color=colour, lw=1.3)


def _beyond(axes: Axes, of: Histogram) -> None:
    """Says how many values a log scale cannot show."""
    apart = {"D = 0": int(of.counts[0]), "D = ∞": of.infinite, "missing": of.missing}
    said = [f"{name}: {count:,}" for name, count in apart.items() if count]
    axes.set_title(", ".join(said), loc="right", fontsize="small")


def _span(of: DivergenceSummary) -> tuple[float, float]:
    """The part of D's scale that is drawn: all but the least thousandth of the values."""
    return _scale(of.histogram(), 0.001)


def _scale(of: Histogram, from_share: float) -> tuple[float, float]:
    """From the quantile to the largest finite value, zeros aside; at least one decade and at most `_DECADES`."""
    counts = of.counts.copy()
    counts[0] = counts[BINS.infinite :] = 0
    low, high = Histogram(counts).quantiles((from_share, 1)) if counts.any() else (0.1, 1.0)
    return max(min(low, high / 10), high / 10**_DECADES), high


def _shown(of: DivergenceSummary) -> slice:
    """The bins inside the span, thinned to what a panel can show."""
    first, last = np.searchsorted(BINS.edges[: BINS.infinite], _span(of))
    return slice(int(first), int(last) + 1, 4)


def _exact(summary: Summary) -> str:
    return percent(summary.means["same_token"].total, summary.counted)


def _distributions_said(summary: Summary) -> str:
    medians = (
        f"{name} {' and '.join(number(of.histogram(same).quantiles([0.5])[0]) for same in (True, False))}"
        for name, of in summary.divergences.items()
    )
    return (
        "Histograms on a log scale, one panel a divergence, of the divergence D where the argmaxes of target and draft "
        f"agree and where they differ. Medians: {'; '.join(medians)}."
    )


def _acceptance_said(summary: Summary) -> str:
    found = (f"{name} {threshold(of.threshold(0.9, False))}" for name, of in summary.divergences.items())
    return (
        "Curves, one panel a divergence, of the share of drafted tokens accepted against the threshold T, by D ≤ T "
        f"alone and where x = y is accepted too. x = y alone accepts {_exact(summary)}. D ≤ T alone accepts 90% at: "
        f"{'; '.join(found)}."
    )


def _rounds_said(swept: pd.DataFrame) -> str:
    lossless = swept[swept["rule"] == "coupled"]
    found = (f"{row.tokens_per_round:.2f} at L = {row.draft_length}" for row in lossless.itertuples())
    return (
        "Curves, one panel a divergence, of tokens per round against the threshold T, one for each draft length L; "
        f"they rise from the lossless level, {', '.join(found)}, towards L + 1."
    )
