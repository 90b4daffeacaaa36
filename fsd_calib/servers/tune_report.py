"""What a person, or a program, reads of a tuning: a table, a plot, and the flags of the fastest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from fsd_calib.measuring.speed import Interval
from fsd_calib.options.server import Launches
from fsd_calib.servers.tune import Cell, Found, rows_of
from fsd_common.console import TITLE, literal
from fsd_common.formatting import interval, pace_between
from fsd_common.pages.charts import Chart, by_series, layered, quantitative, tooltip
from fsd_common.pages.page import write
from fsd_common.pages.pictures import svg
from fsd_common.pages.themes import SERIES

Cells = Mapping[Cell, Found]


def tables(cells: Cells) -> list[Table]:
    """Returns a table of each load and mode, the fastest way first."""
    made = []
    for cell in cells:
        table = Table(title=literal(str(cell), TITLE), box=box.SIMPLE_HEAD, title_justify="left", padding=0)
        table.add_column("drafting")
        for heading in ("tokens/s of a stream", "× the fastest", "tokens/round", ""):
            table.add_column(heading, justify="right")
        for at, way, speed, against, seen, left in rows_of(cells):
            if at != cell:
                continue
            told = seen.acceptance
            rounds = "–" if told is None or not told.rounds else f"{told.record['mean_acceptance_length']:.2f}"
            note = "fastest" if against.value == 1 and against.low == 1 else "may be as fast" if left else ""
            ratio = f"{against.value:.2f}{_ends(against)}"
            table.add_row(*map(literal, (str(way), pace_between(speed.value, _known(speed)), ratio, rounds, note)))
        made.append(table)
    return made


def _known(found: Interval) -> tuple[float, float] | None:
    return (found.low, found.high) if found.bounded else None


def _ends(found: Interval) -> str:
    return f" ({interval((found.low, found.high), 2)})" if found.bounded and found.low < found.high else ""


def flags(cells: Cells, launches: Launches) -> list[str]:
    """Returns how the fastest way of each load and mode is started, to be pasted."""
    lines = []
    for cell, found in cells.items():
        best, others = found.best(), len(found.left) - 1
        known = "" if not others else f" ({others} other{'s' * (others > 1)} may be as fast)"
        lines += [f"# {cell}: {best}{known}", best.command(launches)]
    return lines


def facts(cells: Cells, launches: Launches) -> dict[str, Any]:
    """Returns the same for programs."""
    rows = [
        {
            "load": str(cell.load), "mode": cell.mode, "name": way.name, "length": way.length,
            "command": way.command(launches), "stream_tokens_per_second": speed.value,
            "interval": _known(speed), "over_fastest": against.value, "over_fastest_interval": _known(against),
            "tokens_per_second": seen.tokens_per_second, "time_to_first_token": seen.first,
            "time_between_tokens": seen.between, "failed": seen.failed,
            "acceptance": None if seen.acceptance is None else seen.acceptance.record, "may_be_fastest": left,
        }
        for cell, way, speed, against, seen, left in rows_of(cells)
    ]  # fmt: skip
    return {"ways": rows}


def plot(cells: Cells) -> Chart:
    """Returns a chart of speed by the number of drafted tokens, a line for each way of drafting, load and mode."""
    values: list[dict[str, Any]] = []
    for cell, way, speed, _, _, _ in rows_of(cells):
        low, high = _known(speed) or (speed.value, speed.value)
        shown = pace_between(speed.value, _known(speed))
        line = {"line": f"{way.name}: {cell}", "K": way.length or 0, "speed": speed.value, "shown": shown}
        values.append(line | {"low": low, "high": high})
    lines = list(dict.fromkeys(value["line"] for value in values))
    colour = by_series("color", "line", lines, SERIES)
    x, y = quantitative("K", "drafted tokens, K"), quantitative("speed", "tokens/s of a stream", scale={"zero": False})
    hover = {"tooltip": tooltip(drafting="line", speed="shown")}
    layers = [
        {"mark": {"type": "line"}, "encoding": {"x": x, "y": y, **colour}},
        {"mark": {"type": "rule"}, "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, **colour}},
        {"mark": {"type": "point", "filled": True, "size": 60}, "encoding": {"x": x, "y": y, **colour, **hover}},
    ]  # fmt: skip
    alt = f"Speed by the number of drafted tokens, for {', '.join(lines)}"
    return Chart("tuning", alt, layered(values, layers))


def save_plot(cells: Cells, folder: Path) -> Path:
    """Writes the chart, and returns its path. UsageError: it cannot be written."""
    return write(folder / "tuning.svg", svg(plot(cells)))
