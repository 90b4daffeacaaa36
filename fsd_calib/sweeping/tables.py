"""The rows of a sweep as a table on a terminal, as CSV, as LaTeX, and for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fsd_calib.measuring.speed import Interval
from fsd_calib.sweeping.sweep import Row
from fsd_common.console import TITLE, literal
from fsd_common.csv_text import csv_text

_HEADINGS = "", "T", "L", "accuracy", "retention", "churn", "tokens\na round", "× lossless"
_NONE = "–"
_WRITTEN = str.maketrans(
    {each: f"\\{each}" for each in "%_&#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
)


def records(rows: Sequence[Row], confidence: float) -> list[dict[str, Any]]:
    """Returns the rows with plain values, intervals as `…_low` and `…_high`; what there is not is None, and an infinite
    T the text "inf"."""
    return [
        {
            "task": row.task, "rule": row.setting.rule, "score": None if _is_lossless(row) else row.setting.score,
            "threshold": "inf" if row.setting.threshold == math.inf else row.setting.threshold,
            "draft_length": None if _is_alone(row) else row.setting.draft_length,
            "problems": row.problems, "seeds": row.seeds, "confidence": confidence,
            **_ends("accuracy", row.accuracy), **_ends("retention", row.retention), "churn": row.churn,
            **_ends("tokens_per_round", row.tokens_per_round), **_ends("gain", row.gain),
        }
        for row in rows
    ]  # fmt: skip


def as_csv(rows: Sequence[Row], confidence: float) -> str:
    """Returns the rows as CSV, with a line of names."""
    return csv_text(records(rows, confidence))


def as_json(rows: Sequence[Row], confidence: float) -> str:
    """Returns the rows as a JSON object."""
    return json.dumps({"rows": records(rows, confidence)}, indent=2, ensure_ascii=False, allow_nan=False)


def as_latex(rows: Sequence[Row], confidence: float) -> str:
    """Returns a tabular for the package booktabs, with intervals in brackets."""
    headings = (
        "Rule or score",
        "$T$",
        "$L$",
        *(heading.replace("\n", " ").capitalize() for heading in _HEADINGS[3:-1]),
        r"$\times$ lossless",
    )
    seeds = "" if rows[-1].seeds == 1 else f", {rows[-1].seeds} decodings of each problem"
    about = f"% rule {rows[-1].setting.rule}, {confidence:.0%} intervals{seeds}"
    lines = [r"% needs \usepackage{booktabs}", about, r"\begin{tabular}{lrrrrrrr}", r"\toprule", _line(headings)]
    for task, of_task in _by_task(rows):
        lines += [r"\midrule", rf"\multicolumn{{8}}{{l}}{{{_escaped(task)}, {of_task[0].problems} problems}} \\"]
        lines += [_line(map(_escaped, _cells(row))) for row in of_task]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def print_tables(rows: Sequence[Row], confidence: float, console: Console) -> None:
    """Prints a table for each task."""
    for task, of_task in _by_task(rows):
        title = f"{task}, {of_task[-1].setting.rule}, {of_task[0].problems} problems, {confidence:.0%} intervals"
        table = Table(title=literal(title, TITLE), box=box.SIMPLE_HEAD, title_justify="left", padding=0)
        for place, heading in enumerate(_HEADINGS):
            table.add_column(heading, justify="right" if place else "left", overflow="fold")
        for row in of_task:
            table.add_row(*map(literal, _cells(row)))
        console.print(table)


def _by_task(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    return ((task, list(of_task)) for task, of_task in groupby(rows, key=lambda row: row.task))


def _cells(row: Row) -> list[str]:
    setting = row.setting
    return [
        setting.rule if _is_lossless(row) else setting.score,
        _NONE if setting.threshold is None else f"{setting.threshold:.4g}",
        _NONE if _is_alone(row) else str(setting.draft_length), _percent(row.accuracy, 1), _percent(row.retention, 0),
        _NONE if row.churn is None else f"{row.churn:.0%}",
        _NONE if row.tokens_per_round is None else f"{row.tokens_per_round.value:.2f}", _plain(row.gain),
    ]  # fmt: skip


def _is_alone(row: Row) -> bool:
    return row.tokens_per_round is None


def _is_lossless(row: Row) -> bool:
    return row.setting.threshold is None


def _percent(found: Interval | None, digits: int) -> str:
    return _NONE if found is None else f"{found.value:.{digits}%} ({100 * found.low:.0f}–{100 * found.high:.0f})"


def _plain(found: Interval | None) -> str:
    if found is None:
        return _NONE
    return f"{found.value:.2f}" + (f" ({found.low:.2f}–{found.high:.2f})" if found.bounded else "")


def _ends(name: str, found: Interval | None) -> dict[str, float | None]:
    values = (None, None, None) if found is None else (found.value, found.low, found.high)
    finite = [None if value is None or math.isinf(value) else value for value in values]
    return dict(zip((name, f"{name}_low", f"{name}_high"), finite, strict=True))


def _escaped(text: str) -> str:
    return r"$\infty$" if text == "inf" else text.translate(_WRITTEN)
