"""Telemetry: an observer that returns a run as a table of rounds, or writes it as one page with figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fsd_collectors.report.description import number, percent, unit_of
from fsd_common.argument_checks import check_count
from fsd_common.errors import UsageError
from fsd_common.pages.blocks import Paragraph, Section, Sheet
from fsd_common.pages.charts import LINES, Chart, Spec, by_series, layered, quantitative
from fsd_decoding.observers.round_log import FACT_PREFIX, DecodingSetup, RoundLog

if TYPE_CHECKING:
    import pandas as pd


def summary_table(table: pd.DataFrame, setups: Sequence[DecodingSetup]) -> Sheet:
    """Returns the totals and means of a whole run, from the table of its rounds."""
    total = table.sum()
    seconds, streams = table.seconds.iloc[-1], (table.rows * table.round_seconds).sum()
    each = unit(setups)
    facts = {
        "decoded with": "; ".join(_describe(setup) for setup in setups),
        "rounds": f"{len(table):,} in {seconds:,.1f} s, of {number(table.rows.mean())} texts each",
        "tokens": f"{total.emitted:,.0f} emitted, {number(total.emitted / total.rows)} per row and round",
        "speed": f"{number(total.emitted / seconds)} tokens/s; one text {number(total.emitted / streams)} tokens/s",
        "drafted tokens accepted": f"{percent(total.accepted, total.drafted)} of {total.drafted:,.0f}",
        "accepted only because D ≤ T": f"{percent(total.substituted, total.emitted)} of emitted tokens",
        f"T{each}": _mean_and_range(table, "threshold", "threshold_least", "threshold_most"),
        f"D of decided tokens{each}": number(_mean(table, "score")),
        f"largest D accepted only because D ≤ T{each}": number(table.score_substituted.max()),
        **{name: f"{number(table[column].mean())}; last {number(table[column].iloc[-1])}"
           for column, name in facts_of(table).items()},
    }  # fmt: skip
    return Sheet("", (), tuple(facts.items()))


def remarks(setups: Sequence[DecodingSetup]) -> list[str]:
    """Returns remarks on what the figures lack, and why."""
    without = [setup.rule for setup in setups if not setup.fuzzy]
    lines = [f"The rule {rule} has no T, so no token was accepted only because D ≤ T." for rule in without]
    return list(dict.fromkeys(lines))


def facts_of(table: pd.DataFrame) -> dict[str, str]:
    """Returns the columns that hold the policy's facts, with the names of the facts."""
    return {
        str(column): str(column).removeprefix(FACT_PREFIX) for column in table if str(column).startswith(FACT_PREFIX)
    }


def scores_line(setups: Sequence[DecodingSetup]) -> str:
    """Returns the scores of a run in words."""
    return " and ".join(dict.fromkeys(f"{setup.score} of {setup.on} logits" for setup in setups))


def unit(setups: Sequence[DecodingSetup]) -> str:
    """Returns the unit of T and D, " (nats)", or "" if they have none, or not all the same."""
    units = {unit_of(setup.score) for setup in setups}
    return f" ({name})" if len(units) == 1 and (name := units.pop()) else ""


def _describe(setup: DecodingSetup) -> str:
    by = f", T set by {setup.policy}" if setup.policy else ""
    return f"{setup.rule}, {setup.score} of {setup.on} logits{by}"


def _mean(table: pd.DataFrame, name: str) -> float:
    """Returns the mean over decided tokens."""
    rounds = table[table.decided > 0]
    if rounds.empty:
        return float("nan")
    return float((rounds[name] * rounds.decided).sum(skipna=False) / rounds.decided.sum())


def _mean_and_range(table: pd.DataFrame, name: str, least: str, most: str) -> str:
    return f"{number(_mean(table, name))}, from {number(table[least].min())} to {number(table[most].max())}"


MAX_STEPS = 300  # points a curve
_HEIGHT = 170
_MIN_WINDOW = 32  # rounds that speeds are averaged over, at least
_KEYS = {"line": "mean", "dashes": "drafted", "dots": "largest fuzzy one"}
_LOOKS = {"line": ("@first", [1, 0]), "dashes": ("@quiet", [5, 3]), "dots": ("@second", [1, 0])}


@dataclass(frozen=True)
class _Panel:
    name: str
    title: str
    axis: str
    line: str  # column drawn as a line; `dots`, `dashes` and `band` are columns, too
    dots: str | None = None
    dashes: str | None = None
    band: tuple[str, str] | None = None


def run_section(table: pd.DataFrame, setups: Sequence[DecodingSetup]) -> Section:
    """Returns the charts of a run, from the table of its rounds."""
    steps, rounds = downsample(table), -(-len(table) // MAX_STEPS)
    blocks: list[Chart | Paragraph] = []
    for panel in _panels(table, setups):
        blocks += [Paragraph(panel.title), _chart(panel, steps)]
    step = f"Each step is the mean of up to {rounds} rounds; bands and dots show the extremes among them. "
    notes = (
        f"{step if rounds > 1 else ''}Speeds are averaged over {max(_MIN_WINDOW, rounds)} rounds. Scores are "
        f"{scores_line(setups)}, of drafted tokens up to the first rejected one; a fuzzy one was accepted only "
        "because D ≤ T."
    )
    return Section(
        "rounds", "Round by round", "What was decided and how fast, over the seconds since the first round began.",
        (*blocks, Paragraph(notes, "note")),
    )  # fmt: skip


def downsample(table: pd.DataFrame) -> pd.DataFrame:
    """Returns a table of at most 300 steps of equally many rounds each. T and D are averaged over tokens, accepted and
    drafted lengths over rows, everything else over rounds."""
    count = min(len(table), MAX_STEPS)
    step = np.arange(len(table)) * count // len(table)
    grouped = table.groupby(step)
    sums, means = grouped.sum(), grouped.mean()
    weighted = {
        name: (table[name] * table.decided).groupby(step).sum(min_count=1) / sums.decided
        for name in ("threshold", "score")
    }
    window = max(_MIN_WINDOW, -(-len(table) // count))
    emitted, seconds, streams = (
        column.rolling(window, min_periods=1).sum().groupby(step).last()
        for column in (table.emitted, table.round_seconds, table.rows * table.round_seconds)
    )
    return means.assign(
        **weighted,
        **{name: sums[name] / sums.rows for name in ("drafted", "accepted")},
        threshold_least=grouped.threshold_least.min(),
        threshold_most=grouped.threshold_most.max(),
        score_substituted=grouped.score_substituted.max(),
        tokens_per_second=emitted / seconds,
        tokens_per_second_of_one=emitted / streams,
    )


def _panels(table: pd.DataFrame, setups: Sequence[DecodingSetup]) -> list[_Panel]:
    """Returns the panels for which the table has finite values."""
    each = unit(setups)
    candidates = [
        _Panel("threshold", f"Threshold T{each}", f"T{each}", "threshold", band=("threshold_least", "threshold_most")),
        _Panel("score", f"Score D of decided tokens{each}", f"D{each}", "score",
               dots="score_substituted"),
        _Panel("accepted", "Accepted length (tokens per row and round)", "tokens", "accepted", dashes="drafted"),
        _Panel("one", "Speed of one text (tokens/s)", "tokens/s", "tokens_per_second_of_one"),
        _Panel("all", "Speed of all texts (tokens/s)", "tokens/s", "tokens_per_second"),
        *(_Panel(f"fact-{i}", f"Policy: {name}", name, column)
          for i, (column, name) in enumerate(facts_of(table).items())),
    ]  # fmt: skip
    alone = table.rows.max() == 1  # the speed of all texts is that of one
    return [p for p in candidates if np.isfinite(table[p.line]).any() and not (alone and p.line == "tokens_per_second")]


def _chart(panel: _Panel, steps: pd.DataFrame) -> Chart:
    kinds = [kind for kind in _KEYS if getattr(panel, kind) is not None]
    values = [value for kind in kinds for value in _values(steps, getattr(panel, kind), kind)]
    names = [_KEYS[kind] for kind in kinds]
    legend: dict[str, Any] = {"legend": LINES if "dots" not in kinds else {}} if len(kinds) > 1 else {"legend": None}
    looks = by_series("color", "kind", names, [_LOOKS[kind][0] for kind in kinds], **legend)
    dashes = by_series("strokeDash", "kind", names, [_LOOKS[kind][1] for kind in kinds], **legend)
    last = float(steps.seconds.iloc[-1]) or 1.0
    x = quantitative("seconds", "seconds since the first round began", scale={"domain": [0, last], "nice": False})
    y = quantitative("value", panel.axis, scale={"domain": _range(panel, steps)})
    tooltip = [{"field": "kind", "type": "nominal", "title": panel.axis},
               *({"field": f, "type": "quantitative", "format": ".4~g"} for f in ("seconds", "value"))]  # fmt: skip
    lines: Spec = {
        "transform": [{"filter": f"datum.kind != '{_KEYS['dots']}'"}],
        "mark": {"type": "line", "point": {"size": 8}},
        "encoding": {"x": x, "y": y, **looks, **dashes, "tooltip": tooltip},
    }  # fmt: skip
    dots: Spec = {
        "transform": [{"filter": f"datum.kind == '{_KEYS['dots']}'"}],
        "mark": {"type": "point", "size": 22, "shape": "cross"},
        "encoding": {"x": x, "y": y, **looks, "tooltip": tooltip},
    }  # fmt: skip
    layers = [*_band(panel, steps, x, y), lines, *([dots] if panel.dots else [])]
    mean = float(np.nanmean(_finite(steps[panel.line])))
    alt = f"{panel.title} over {last:.3g} seconds; mean {mean:.4g}."
    return Chart(panel.name, alt, layered(values, layers, _HEIGHT))


def _range(panel: _Panel, steps: pd.DataFrame) -> list[float]:
    """The ends of the vertical axis: from 0, unless there are negative values."""
    columns = [*filter(None, (panel.line, panel.dots, panel.dashes)), *(panel.band or ())]
    ends = [float(end) for name in columns for end in _finite(steps[name]).agg(["min", "max"]) if np.isfinite(end)]
    return [min(0.0, *ends), 1.05 * max(0.0, *ends) or 1.0]


def _band(panel: _Panel, steps: pd.DataFrame, x: Spec, y: Spec) -> list[Spec]:
    if panel.band is None:
        return []
    ends = zip(steps.seconds, *(_finite(steps[name]) for name in panel.band), strict=True)
    values = [{"seconds": at, "least": low, "most": high} for at, low, high in ends if np.isfinite([low, high]).all()]
    return [{
        "data": {"values": values}, "mark": {"type": "area", "color": "@first", "opacity": 0.25},
        "encoding": {"x": x, "y": y | {"field": "least"}, "y2": {"field": "most"}},
    }]  # fmt: skip


def _values(steps: pd.DataFrame, column: str, kind: str) -> Iterator[dict[str, Any]]:
    for at, value in zip(steps.seconds, _finite(steps[column]), strict=True):
        if np.isfinite(value):
            yield {"seconds": float(at), "value": float(value), "kind": _KEYS[kind]}


def _finite(column: pd.Series[float]) -> pd.Series[float]:
    """Returns the column with infinite values, which cannot be drawn, as NaN."""
    return column.where(np.isfinite(column))


COLUMNS = {
    "seconds": ("s", "since the first round began, by the host's clock"),
    "round_seconds": ("s", "duration, including the time since the round before, for example for prefill"),
    "rows": ("", "texts in the round"),
    "drafted": ("tokens", "drafted, in all rows"),
    "accepted": ("tokens", "accepted before the first rejection, in all rows"),
    "emitted": ("tokens", "accepted and one more per row; the last round of a text may emit more than the text keeps"),
    "decided": ("tokens", "drafted, up to the first rejected one: accepted or rejected"),
    "threshold_least": ("as D", "smallest T that decided tokens were compared with; NaN: the rule has no T"),
    "threshold": ("as D", "mean T of decided tokens"),
    "threshold_most": ("as D", "largest T of decided tokens"),
    "score": ("as D", "mean D of decided tokens"),
    "substituted": ("tokens", "accepted only because D ≤ T: the exact rule would have rejected them"),
    "score_substituted": ("as D", "largest D of these; NaN: there were none"),
    "tokens_per_second": ("tokens/s", "emitted in all rows, over the last `window` rounds"),
    "tokens_per_second_of_one": ("tokens/s", "emitted in one row on average, over the last `window` rounds"),
}
"""Columns of `Telemetry.frame`: unit and meaning. "as D": the unit of the score, nats or none."""


class Telemetry(RoundLog):
    """Records a run: pass it to `generate` as `observer`, then call `frame`, or `save` for a page with figures.

    Several calls of `generate` continue one run, which includes the time between them. The cost is that of `RoundLog`.
    """

    def frame(self, window: int = 32) -> pd.DataFrame:
        """Returns a table with one row per round: `COLUMNS`, and the policy's facts as `policy.…`, named with units.

        Args:
            window: number of rounds that speeds are averaged over.

        Raises:
            UsageError: `window` is not a whole number of at least 1.
        """
        import pandas as pd

        check_count("window", window)
        table = pd.DataFrame({name: column.numpy() for name, column in self.columns().items()}).rename_axis("round")
        if table.empty:
            return pd.DataFrame(columns=list(COLUMNS), dtype=float).rename_axis("round")
        table["round_seconds"] = table.seconds.diff().fillna(table.seconds)
        streams = table.rows * table.round_seconds
        emitted, seconds, stream_seconds = (
            column.rolling(window, min_periods=1).sum() for column in (table.emitted, table.round_seconds, streams)
        )
        table["tokens_per_second"], table["tokens_per_second_of_one"] = emitted / seconds, emitted / stream_seconds
        return table[[*COLUMNS, *(name for name in table if name not in COLUMNS)]]

    def save(self, path: str | Path, title: str = "A run, round by round") -> Path:
        """Writes one self-contained page: T, scores, accepted lengths, tokens/s and the policy's facts over time.
        Its size does not grow with the run, as long runs are drawn in 300 steps. Returns the path.

        Raises:
            UsageError: no round was recorded, or the file cannot be written.
        """
        from fsd_calib.telemetry import remarks, run_section, summary_table
        from fsd_common.pages.blocks import Page, Paragraph, Section
        from fsd_common.pages.page import html, write

        table = self.frame()
        if table.empty:
            raise UsageError("the telemetry recorded no round; pass it to generate(observer=…) before you save it")
        notes = (Paragraph(line, "note") for line in remarks(self.setups))
        whole = Section("summary", "The whole run", "Totals and means.", (summary_table(table, self.setups), *notes))
        return write(Path(path), html(Page(title, (whole, run_section(table, self.setups)))).encode())
