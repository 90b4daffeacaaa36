"""The tables of the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(cell: Mapping[str, Any]) -> str:
    """Returns what was measured of a task, at a temperature and a draft length, in Markdown."""
    title = (
        f"{cell['task']}, temperature {cell['temperature']:g}, L = {cell['draft_length']}: of {cell['problems']} "
        f"problems the target solves {_percent(cell['target'])}, the draft {_percent(cell['draft'])}"
    )
    columns = ("rule or score", "T", "tokens a round", "by replay", "gain", "retention", "churn", "texts changed")
    lines = [title, "", "| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]
    lines += [_line(each["rule"], "", each) for each in cell["lossless"]]
    lines += [_line(each["score"], f"{each['threshold']:.3g}", each) for each in cell["points"]]
    return "\n".join(lines)


def _line(name: str, threshold: str, each: Mapping[str, Any]) -> str:
    replayed = "" if each["replayed"] is None else f"{each['replayed']:.2f}"
    gain = _number(each["gain"]) if "gain" in each else ""
    changed = f"{each['changed']:.0%}" if "changed" in each else ""
    cells = [name, threshold, _number(each["tokens_per_round"]), replayed, gain, _percent(each["retention"])]
    return "| " + " | ".join([*cells, f"{each['churn']:.1%}", changed]) + " |"


def _number(found: Sequence[float]) -> str:
    value, low, high = found
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def _percent(found: Sequence[float]) -> str:
    value, low, high = (100 * each for each in found)
    return f"{value:.0f} % ({low:.0f} to {high:.0f})"
