"""The figures of a run: distributions of D, acceptance against T, and tokens per round against T, with alt texts."""

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
THRESHOLDS = 48  # thresholds of each divergence, evenly spaced on its log scale
_BARS_A_DECADE = 10
_DECADES = 9  # of the scale, at most
_DISTRIBUTIONS = (
    "Each group by itself: the bars of one colour add up to 100%, less the values left of the scale and those (zero "
    "and infinity) that a log scale cannot show."
)
_ACCEPTANCE = (
    "Each token by itself, whether or not the tokens drafted before it were accepted. Accepting by x = y costs no "
    "quality; accepting by D ≤ T does, and how much is not shown here."
)
_ROUNDS = (
    "Replayed along the target's own text: exact for the lossless level, an estimate where fuzzy acceptance changes "
    "the text, and the better the fewer tokens it changes."
)


@dataclass(frozen=True)
class Picture:
    """A figure: the name of its file, its alt text, its caption, and the function that draws it."""

    name: str
    alt: str
    caption: str
    draw: Callable[[Theme], Figure]


def pictures(summary: Summary, swept: pd.DataFrame | None) -> tuple[Picture, ...]:
    """Returns all pictures of a run.

    Args:
        swept: result of `sweep` over `thresholds`; None where the traces cannot be replayed.

    Raises:
        UsageError: the traces hold no rows or no divergences.
    """
    if not summary.counted or not summary.divergences:
        raise UsageError(
            f"the traces hold {summary.counted} token rows of {len(summary.divergences)} divergences; pictures need "
            "at least one of each: collect some first"
        )
    drawn = [
        Picture(
            "distributions", _distributions_alt(summary), _DISTRIBUTIONS, lambda theme: distributions(summary, theme)
        ),
        Picture("acceptance", _acceptance_alt(summary), _ACCEPTANCE, lambda theme: acceptance(summary, theme)),
    ]
    if swept is not None:
        drawn.append(Picture("rounds", _rounds_alt(swept), _ROUNDS, lambda theme: rounds(swept, theme)))
    return tuple(drawn)


def thresholds(summary: Summary) -> dict[str, NDArray[np.float64]]:
    """Returns thresholds of each divergence, from accepting 1 % of the tokens with x ≠ y to all of them."""
    scales = {name: _scale(of.histogram(same_token=False), 0.01) for name, of in summary.divergences.items()}
    return {name: np.geomspace(*scale, THRESHOLDS) for name, scale in scales.items()}


def distributions(summary: Summary, theme: Theme) -> Figure:
    """Draws histograms of D where the argmaxes agree and where they differ, each group by itself."""
    agree = summary.means["same_argmax"].total
    keys = [
        LegendEntry(f"argmaxes agree ({percent(agree, summary.counted)} of tokens)", theme.first),
        LegendEntry(f"argmaxes differ ({percent(summary.counted - agree, summary.counted)})", theme.second),
    ]

    def draw(axes: Axes, name: str) -> None:
        divergence = summary.divergences[name]
        edges = _bar_edges(divergence)
        for same, key in zip((True, False), keys, strict=True):
            _bars(axes, divergence.histogram(same), edges, key.colour)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(bottom=0)
        _note_hidden_values(axes, divergence.histogram())

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
    """Draws the share of drafted tokens accepted against T: by D alone, and where x = y is accepted too."""
    keys = [
        LegendEntry("x = y or D ≤ T (fsd-coupled)", theme.first),
        LegendEntry("D ≤ T alone (fsd)", theme.second),
        LegendEntry(f"x = y alone, lossless ({_exact(summary)})", theme.ink, dashed=True),
    ]

    def draw(axes: Axes, name: str) -> None:
        divergence = summary.divergences[name]
        bins = _drawn_bins(divergence)
        axes.axhline(100 * divergence.exact / divergence.rows, color=theme.ink, ls="--", lw=0.9)
        for either, key in zip((True, False), keys, strict=False):
            axes.plot(BINS.edges[bins], 100 * divergence.accepted(either)[bins] / divergence.rows, color=key.colour)
        axes.set_xlim(*_span(divergence))
        axes.set_ylim(0, 102)
        axes.set_yticks(range(0, 101, 20))

    heading = "Drafted tokens accepted at threshold T"
    return divergence_panels(
        list(summary.divergences), draw, heading, keys, ("threshold T on D", "% of drafted tokens accepted"), theme
    )


def rounds(swept: pd.DataFrame, theme: Theme) -> Figure:
    """Draws tokens per round against T for several draft lengths under `fsd-coupled`."""
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
        curves = fuzzy[fuzzy["divergence"] == name].pivot(index="threshold", columns="draft_length")["tokens_per_round"]
        for length, key in zip(lengths, keys, strict=True):
            axes.axhline(lossless[length], color=key.colour, ls="--", lw=0.9, alpha=0.8)
            axes.plot(curves.index, curves[length], color=key.colour)
        axes.set_xlim(curves.index[0], curves.index[-1])
        axes.set_ylim(bottom=1)

    names = list(fuzzy["divergence"].unique())
    keys_shown = [*keys, LegendEntry("lossless (T < 0)", theme.ink, dashed=True)]
    heading = "Tokens per round at threshold T, by draft length L"
    return divergence_panels(
        names, draw, heading, keys_shown, ("threshold T on D", "tokens per round (fsd-coupled)"), theme
    )


def _bar_edges(divergence: DivergenceSummary) -> NDArray[np.float64]:
    """Returns edges of bars, ten a decade, that cover the span."""
    low, high = (np.floor(_BARS_A_DECADE * np.log10(end)) for end in _span(divergence))
    return 10 ** (np.arange(low, high + 2) / _BARS_A_DECADE)


def _bars(axes: Axes, histogram: Histogram, edges: NDArray[np.float64], colour: str) -> None:
    """Draws the percentage of the group between the edges; values outside are left out."""
    if not histogram.total:
        return
    bars = np.histogram(BINS.middles[: BINS.infinite], edges, weights=histogram.counts[: BINS.infinite])[0]
    shares = 100 * bars / histogram.counts.sum()
    axes.stairs(shares, edges, fill=True, color=colour, alpha=0.25)
    axes.stairs(shares, edges, color=colour, lw=1.3)


def _note_hidden_values(axes: Axes, histogram: Histogram) -> None:
    """Writes above a panel how many values a log scale cannot show."""
    hidden = {"D = 0": int(histogram.counts[0]), "D = ∞": histogram.infinite, "missing": histogram.missing}
    notes = [f"{name}: {count:,}" for name, count in hidden.items() if count]
    axes.set_title(", ".join(notes), loc="right", fontsize="small")


def _span(divergence: DivergenceSummary) -> tuple[float, float]:
    """Returns the part of D's scale that is drawn: all but the smallest thousandth of the values."""
    return _scale(divergence.histogram(), 0.001)


def _scale(histogram: Histogram, from_share: float) -> tuple[float, float]:
    """Returns a scale from a quantile to the largest finite value, without zeros, of one to `_DECADES` decades."""
    counts = histogram.counts.copy()
    counts[0] = counts[BINS.infinite :] = 0
    low, high = Histogram(counts).quantiles((from_share, 1)) if counts.any() else (0.1, 1.0)
    return max(min(low, high / 10), high / 10**_DECADES), high


def _drawn_bins(divergence: DivergenceSummary) -> slice:
    """Returns the bins inside the span, every fourth of them."""
    first, last = np.searchsorted(BINS.edges[: BINS.infinite], _span(divergence))
    return slice(int(first), int(last) + 1, 4)


def _exact(summary: Summary) -> str:
    same = summary.means["same_token"]
    return percent(same.total, same.values)


def _distributions_alt(summary: Summary) -> str:
    medians = (
        f"{name} {' and '.join(number(of.histogram(same).quantiles([0.5])[0]) for same in (True, False))}"
        for name, of in summary.divergences.items()
    )
    return (
        "Histograms on a log scale, one panel a divergence, of the divergence D where the argmaxes of target and draft "
        f"agree and where they differ. Medians: {'; '.join(medians)}."
    )


def _acceptance_alt(summary: Summary) -> str:
    thresholds_90 = (f"{name} {threshold(of.threshold(0.9, False))}" for name, of in summary.divergences.items())
    return (
        "Curves, one panel a divergence, of the share of drafted tokens accepted against the threshold T, by D ≤ T "
        f"alone and where x = y is accepted too. x = y alone accepts {_exact(summary)}. D ≤ T alone accepts 90% at: "
        f"{'; '.join(thresholds_90)}."
    )


def _rounds_alt(swept: pd.DataFrame) -> str:
    lossless = swept[swept["rule"] == "coupled"]
    levels = (f"{row.tokens_per_round:.2f} at L = {row.draft_length}" for row in lossless.itertuples())
    return (
        "Curves, one panel a divergence, of tokens per round against the threshold T, one for each draft length L; "
        f"they rise from the lossless level, {', '.join(levels)}, towards L + 1."
    )
