"""What is claimed of early stops, held against what was measured; and the numbers behind it as tables.

Knows the claims and their targets. Knows nothing of how anything was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lib.common.claims import Claim, table

_GAIN, _CLOSED, _ERROR, _STEP = 0.10, 0.30, 0.02, 0.05
_FIXED, _TUNED = "fixed", ("confidence", "svip", "adaedl", "heuristic")
_OURS = "boosted"


def claims(found: Mapping[str, Any]) -> list[Claim]:
    return [claim for cell in found["cells"] for claim in _of(cell)]


def printed(found: Mapping[str, Any]) -> str:
    cells = found["cells"]
    parts = [_speeds(cells, part) for part in ("contest", "delayed") if part in cells[0]]
    parts += [_counts(cells)] if "counts" in cells[0] else []
    parts += [_closed(cells)] if {"contest", "counts", "replay"} & set(cells[0]) else []
    parts += [_ablation(cells)] if "ablation" in cells[0] else []
    return "\n\n".join([*parts, table(claims(found))])


def name_of(cell: Mapping[str, Any]) -> str:
    how = f"temperature {cell['temperature']:g}" if cell["temperature"] else "greedy"
    return f"{how}, T = {cell['threshold']:g}"


def _of(cell: Mapping[str, Any]) -> Iterator[Claim]:
    at = name_of(cell)
    for part in ("contest", "delayed"):
        if part in cell:
            yield from _faster(cell[part]["gains"][_OURS], f"{at}{', delayed' if part == 'delayed' else ''}")
    for part in ("contest", "counts", "replay"):
        if part in cell:
            yield _at_least(f"share of the oracle's gap closed ({part}), {at}", _CLOSED, cell[part]["closed"][_OURS])
    if "forecast" in cell:
        yield from _forecasts(cell["forecast"][_OURS], at)
    if "step" in cell:
        yield from _step(cell["step"][_OURS], at)


def _faster(gains: Mapping[str, Mapping[str, float]], at: str) -> Iterator[Claim]:
    """The bound is the lower end of the two-sided interval."""
    for rival in (_FIXED, *_TUNED):
        gain = gains[rival]
        yield Claim(f"gain over {rival}, {at}", "> 0", gain["gain"], gain["low"], gain["low"] > 0)
    yield _at_least(f"gain over {_FIXED}, {at}", _GAIN, gains[_FIXED]["gain"])


def _forecasts(found: Mapping[str, Any], at: str) -> Iterator[Claim]:
    for one in found["reached"]:
        name = one["forecast"]
        if one["auc"] is not None:
            best = max(max(auc, 1 - auc) for auc in (one["probability_auc"], one["entropy_auc"]))  # either way round
            yield Claim(f"AUC of {name} (bound: the better of q(x) and entropy), {at}", "> bound", one["auc"], best,
                        one["auc"] > best)  # fmt: skip
        yield _at_most(f"calibration error of {name}, {at}", _ERROR, one["error"])
    yield _at_most(f"rows that fall in T, {at}", 0, found["violations"])


def _step(found: Mapping[str, float], at: str) -> Iterator[Claim]:
    yield _at_most(f"asking, share of a draft step, {at}", _STEP, found["asked_share"])
    yield _at_most(f"asking, share of a draft step three times as long, {at}", _STEP, found["asked_share_delayed"])
    yield _at_most(f"all that it adds, share of a draft step, {at}", _STEP, found["whole_share"])


def _at_least(name: str, wanted: float, measured: float) -> Claim:
    return Claim(name, f">= {wanted:g}", measured, measured, measured >= wanted)


def _at_most(name: str, wanted: float, measured: float) -> Claim:
    return Claim(name, f"<= {wanted:g}", measured, measured, measured <= wanted)


def _speeds(cells: list[dict[str, Any]], part: str) -> str:
    """Tokens a second, the gain of ours over each with its interval, and accuracy."""
    lines = [f"{part}: tokens/s net of everything; gain of {_OURS} over it; accuracy", ""]
    names = list(cells[0][part]["tokens_per_second"])
    lines += ["| | " + " | ".join(map(name_of, cells)) + " |", "| --- " * (len(cells) + 1) + "|"]
    for name in names:
        lines.append(f"| {name} | " + " | ".join(_speed(cell[part], name) for cell in cells) + " |")
    return "\n".join(lines)


def _speed(found: Mapping[str, Any], name: str) -> str:
    gain = found["gains"][_OURS].get(name)
    gained = f" {gain['gain']:+.1%} [{gain['low']:+.1%}, {gain['high']:+.1%}]" if gain else ""
    setting = f" ({found['settings'][name]})" if name in found["settings"] else ""
    return f"{found['tokens_per_second'][name]:.0f}{setting}{gained} {found['accuracy'][name]:.3f}"


def _counts(cells: list[dict[str, Any]]) -> str:
    """Tokens a second by counts, at the costs of a single row, over the best fixed length."""
    lines = ["counts in batches, priced: tokens/s over the best fixed length; tokens a round; accuracy", ""]
    lines += ["| | " + " | ".join(map(name_of, cells)) + " |", "| --- " * (len(cells) + 1) + "|"]
    for name in cells[0]["counts"]["of"]:
        lines.append(f"| {name} | " + " | ".join(_count(cell["counts"]["of"], name) for cell in cells) + " |")
    return "\n".join(lines)


def _count(of: Mapping[str, Mapping[str, float]], name: str) -> str:
    gain = of[name]["tokens_per_second"] / of[_FIXED]["tokens_per_second"] - 1
    return f"{gain:+.1%} {of[name]['tokens_a_round']:.2f} {of[name]['accuracy']:.3f}"


def _closed(cells: list[dict[str, Any]]) -> str:
    lines = ["share of the oracle's gap closed, everyone by one yardstick", ""]
    lines += ["| | " + " | ".join(map(name_of, cells)) + " |", "| --- " * (len(cells) + 1) + "|"]
    for part in ("contest", "counts", "replay"):
        for name in cells[0].get(part, {}).get("closed", {}):
            shares = " | ".join(f"{cell[part]['closed'][name]:.0%}" for cell in cells)
            lines.append(f"| {name}, {part} | {shares} |")
    return "\n".join(lines)


def _ablation(cells: list[dict[str, Any]]) -> str:
    lines = [f"tokens/s by counts, against {_OURS} whole", ""]
    lines += ["| | " + " | ".join(map(name_of, cells)) + " |", "| --- " * (len(cells) + 1) + "|"]
    for name in cells[0]["ablation"]["loss"]:
        lines.append(f"| {name} | " + " | ".join(f"{cell['ablation']['loss'][name]:+.1%}" for cell in cells) + " |")
    return "\n".join(lines)
