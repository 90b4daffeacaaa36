"""The tables and the chart of rules beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fsd_common.pages.charts import Chart, Spec, layered, quantitative

_LEVEL, _TOLD = 0.98, {None: "1 - 2 s.e."}
_WIDTH, _HEIGHT, _STEP = 215, 40, 22  # of a panel, and of one of its lines


def tables(found: Sequence[Mapping[str, Any]]) -> str:
    """Returns the tables of all temperatures in Markdown."""
    return "\n\n".join("\n".join(part) for each in found for part in (_levels(each), _defaults(each)))


def _levels(found: Mapping[str, Any]) -> Iterator[str]:
    wanted = list(dict.fromkeys(level["wanted"] for level in found["levels"]))
    by_rule: dict[str, list[Mapping[str, Any]]] = {}
    for level in found["levels"]:
        by_rule.setdefault(level["rule"], []).append(level)
    yield f"temperature {found['temperature']:g}: times the speed of {found['fastest_lossless']}, the fastest lossless"
    yield ""
    yield "| score | " + " | ".join(_TOLD.get(each, str(each)) for each in wanted) + " |"
    yield "| --- " * (1 + len(wanted)) + "|"
    for name, levels in by_rule.items():
        cells = [f"{_number(each['gain'])} at {each['setting']}" for each in levels]
        yield f"| {name} | " + " | ".join(cells) + " |"


def _defaults(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| engine | knob | retention | tokens/s | best that keeps as much |"
    yield "| --- " * 5 + "|"
    for each in found["defaults"]:
        best = each["best_that_keeps_as_much"]
        cells = [each["engine"], each["knob"], _number(each["retention"], 3), _number(each["gain"])]
        yield "| " + " | ".join([*cells, f"{_number(best['gain'])}, {best['rule']}"]) + " |"


def _number(found: Sequence[float], digits: int = 2) -> str:
    value, low, high = (f"{each:.{digits}f}" for each in found)
    return f"{value} ({low} to {high})"


def chart(found: Sequence[Mapping[str, Any]]) -> Chart:
    """Returns the chart: how fast each rule is where it keeps `_LEVEL`, and at the value of an engine's knob."""
    alt = (
        f"For each temperature and score: tokens/s over the fastest lossless rule's where {_LEVEL:.0%} is kept, with "
        "95 % intervals, and at the value of an engine's knob, with the retention there"
    )
    names = list(dict.fromkeys(level["rule"] for each in found for level in each["levels"]))
    highest = max(each["gain"][2] for one in found for each in (*one["levels"], *one["defaults"]))
    panels = [_panel(each, names, highest, labelled=not place) for place, each in enumerate(found)]
    return Chart("rules", alt, {"hconcat": panels, "spacing": 14})


def _panel(found: Mapping[str, Any], names: Sequence[str], highest: float, labelled: bool) -> Spec:
    values: list[dict[str, Any]] = [
        {"rule": level["rule"], "gain": level["gain"][0], "low": level["gain"][1], "high": level["gain"][2], "at": "T"}
        for level in found["levels"]
        if level["wanted"] == _LEVEL
    ]
    for each in found["defaults"]:
        rule = each["rule"].split(" w = ")[0]
        kept = f"keeps {each['retention'][0]:.3f}"
        values.append({"rule": rule, "gain": each["gain"][0], "at": "knob", "kept": kept})
    y: Spec = {"field": "rule", "type": "nominal", "sort": list(names), "title": None}
    y |= {"scale": {"domain": list(names)}, "axis": {"labels": labelled, "ticks": False, "grid": True}}
    x = quantitative("gain", "times the fastest lossless rule", scale={"domain": [0.9, highest + 0.1], "zero": False})
    ours, theirs = {"filter": "datum.at == 'T'"}, {"filter": "datum.at == 'knob'"}
    interval = {"x": quantitative("low", ""), "x2": {"field": "high"}, "y": y}
    layers: list[Spec] = [
        {"mark": {"type": "rule", "color": "@faint", "strokeDash": [4, 3]}, "encoding": {"x": {"datum": 1.0}}},
        {"transform": [ours], "mark": {"type": "rule", "strokeWidth": 3, "color": "@first"}, "encoding": interval},
        {"transform": [ours], "mark": {"type": "point", "color": "@first"}, "encoding": {"x": x, "y": y}},
        {"transform": [theirs], "mark": {"type": "point", "filled": False, "shape": "diamond", "size": 90,
                                         "color": "@second", "strokeWidth": 2}, "encoding": {"x": x, "y": y}},
        {"transform": [theirs], "mark": {"type": "text", "color": "@second", "dy": -9, "fontSize": 10},
         "encoding": {"x": x, "y": y, "text": {"field": "kept"}}},
    ]  # fmt: skip
    title = "greedy" if found["temperature"] == 0 else f"temperature {found['temperature']:g}"
    return layered(values, layers, _HEIGHT + _STEP * len(names), width=_WIDTH, title=title)
