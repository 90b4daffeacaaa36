"""What the project claims of early stopping, compared with what `predictor.py` measured, and tables of the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lib.common.claims import Claim, claims_table

_GAIN, _CLOSED, _ERROR, _STEP = 0.10, 0.30, 0.02, 0.05
_FIXED, _TUNED = "fixed", ("confidence", "svip", "adaedl", "heuristic")
_OURS = "boosted"


def stopping_claims(results: Mapping[str, Any]) -> list[Claim]:
    return [claim for cell in results["cells"] for claim in _of_cell(cell)]


def as_markdown(results: Mapping[str, Any]) -> str:
    """Returns a table of every part that was measured, and one of the claims."""
    cells = results["cells"]
    parts = [_speeds(cells, part) for part in ("contest", "delayed") if part in cells[0]]
    parts += [_counts(cells)] if "counts" in cells[0] else []
    parts += [_closed(cells)] if {"contest", "counts", "replay"} & set(cells[0]) else []
    parts += [_ablation(cells)] if "ablation" in cells[0] else []
    return "\n\n".join([*parts, claims_table(stopping_claims(results))])


def name_of(cell: Mapping[str, Any]) -> str:
    sampling = f"temperature {cell['temperature']:g}" if cell["temperature"] else "greedy"
    return f"{sampling}, T = {cell['threshold']:g}"


def _of_cell(cell: Mapping[str, Any]) -> Iterator[Claim]:
    at = name_of(cell)
    for part in ("contest", "delayed"):
        if part in cell:
            yield from _faster(cell[part]["gains"][_OURS], f"{at}{', delayed' if part == 'delayed' else ''}")
    for part in ("contest", "counts", "replay"):
        if part in cell:
            closed = cell[part]["closed"][_OURS]
            yield Claim.at_least(f"share of the oracle's gap closed ({part}), {at}", _CLOSED, closed)
    if "forecast" in cell:
        yield from _forecasts(cell["forecast"][_OURS], at)
    if "step" in cell:
        yield from _step(cell["step"][_OURS], at)


def _faster(gains: Mapping[str, Mapping[str, float]], at: str) -> Iterator[Claim]:
    """Claims whose bound is the lower end of the two-sided interval."""
    for rival in (_FIXED, *_TUNED):
        gain = gains[rival]
        yield Claim(f"gain over {rival}, {at}", "> 0", gain["gain"], gain["low"], gain["low"] > 0)
    yield Claim.at_least(f"gain over {_FIXED}, {at}", _GAIN, gains[_FIXED]["gain"])


def _forecasts(quality: Mapping[str, Any], at: str) -> Iterator[Claim]:
    for measures in quality["reached"]:
        name, auc = measures["forecast"], measures["auc"]
        if auc is not None:
            best = max(measures["probability_auc"], measures["entropy_auc"])
            name_auc = f"AUC of {name} (bound: the better of q(x) and entropy), {at}"
            yield Claim(name_auc, "> bound", auc, best, auc > best)
        yield Claim.at_most(f"calibration error of {name}, {at}", _ERROR, measures["error"])
    yield Claim.at_most(f"rows that fall in T, {at}", 0, quality["violations"])


def _step(times: Mapping[str, float], at: str) -> Iterator[Claim]:
    delayed = times["asked_share_delayed"]
    yield Claim.at_most(f"asking, share of a draft step, {at}", _STEP, times["asked_share"])
    yield Claim.at_most(f"asking, share of a draft step three times as long, {at}", _STEP, delayed)
    yield Claim.at_most(f"all that it adds, share of a draft step, {at}", _STEP, times["whole_share"])


def _speeds(cells: list[dict[str, Any]], part: str) -> str:
    """Returns tokens per second, the predictor's gain over each contestant with its interval, and accuracy."""
    lines = [f"{part}: tokens/s of whole calls; gain of {_OURS} over it; accuracy", ""]
    names = list(cells[0][part]["tokens_per_second"])
    lines += ["| | " + " | ".join(map(name_of, cells)) + " |", "| --- " * (len(cells) + 1) + "|"]
    for name in names:
        lines.append(f"| {name} | " + " | ".join(_speed(cell[part], name) for cell in cells) + " |")
    return "\n".join(lines)


def _speed(timed: Mapping[str, Any], name: str) -> str:
    gain = timed["gains"][_OURS].get(name)
    gained = f" {gain['gain']:+.1%} [{gain['low']:+.1%}, {gain['high']:+.1%}]" if gain else ""
    setting = f" ({timed['settings'][name]})" if name in timed["settings"] else ""
    return f"{timed['tokens_per_second'][name]:.0f}{setting}{gained} {timed['accuracy'][name]:.3f}"


def _counts(cells: list[dict[str, Any]]) -> str:
    """Returns tokens per second by the cost model, relative to the best fixed length."""
    lines = ["by the cost model: tokens/s over the best fixed length; tokens per round; accuracy", ""]
    lines += ["| | " + " | ".join(map(name_of, cells)) + " |", "| --- " * (len(cells) + 1) + "|"]
    for name in cells[0]["counts"]["of"]:
        lines.append(f"| {name} | " + " | ".join(_count(cell["counts"]["of"], name) for cell in cells) + " |")
    return "\n".join(lines)


def _count(of: Mapping[str, Mapping[str, float]], name: str) -> str:
    gain = of[name]["tokens_per_second"] / of[_FIXED]["tokens_per_second"] - 1
    return f"{gain:+.1%} {of[name]['tokens_a_round']:.2f} {of[name]['accuracy']:.3f}"


def _closed(cells: list[dict[str, Any]]) -> str:
    lines = ["share of the oracle's gap closed", ""]
    lines += ["| | " + " | ".join(map(name_of, cells)) + " |", "| --- " * (len(cells) + 1) + "|"]
    for part in ("contest", "counts", "replay"):
        for name in cells[0].get(part, {}).get("closed", {}):
            shares = " | ".join(f"{cell[part]['closed'][name]:.0%}" for cell in cells)
            lines.append(f"| {name}, {part} | {shares} |")
    return "\n".join(lines)


def _ablation(cells: list[dict[str, Any]]) -> str:
    lines = [f"tokens/s by the cost model without some inputs, relative to {_OURS} with all", ""]
    lines += ["| | " + " | ".join(map(name_of, cells)) + " |", "| --- " * (len(cells) + 1) + "|"]
    for name in cells[0]["ablation"]["loss"]:
        lines.append(f"| {name} | " + " | ".join(f"{cell['ablation']['loss'][name]:+.1%}" for cell in cells) + " |")
    return "\n".join(lines)
