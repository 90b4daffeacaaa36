"""The tables that describe traces, for a terminal of 80 columns or for an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import ROUND_CEILING, Context
from pathlib import PurePath
from typing import TYPE_CHECKING

from fsd_collectors.manifest import Manifest
from fsd_collectors.report.histogram import RELATIVE_ERROR
from fsd_collectors.report.summary import ENTROPIES, DivergenceSummary, PartSummary, Summary
from fsd_collectors.schema import token_columns
from fsd_common.pages.blocks import Sheet

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fsd_decoding.profile.parts import ModelInfo

QUANTILES = (0.5, 0.9, 0.95, 0.99)
ACCEPTED = (0.8, 0.9, 0.95)
_NONE = "–"
_RULES = (("D ≤ T", False), ("x = y or D ≤ T", True))  # the second where it is known whether x = y
_UPWARDS = Context(prec=3, rounding=ROUND_CEILING)
_MEANINGS = {
    "same_argmax": "p and q have one argmax",
    "same_token": "x = y: drafted token is the target's own",
    "sd_accepts": "speculative decoding accepts, by its u",
    "sd_probability": "its acceptance rate: 1 − tv (greedy: x = y)",
    "accepted": "accepted by the run's rule",
    "target_entropy": "entropy of p, in nats",
    "draft_entropy": "entropy of q, in nats",
}


def sheets(manifest: Manifest, summary: Summary) -> tuple[Sheet, ...]:
    """Returns the tables of `fsd-traces describe`."""
    return (
        _origin(manifest),
        _parts(summary, manifest),
        _means(summary),
        _quantiles(summary),
        _thresholds(summary),
    )


def print_sheets(shown: Sequence[Sheet], console: Console) -> None:
    for sheet in shown:
        console.print(_as_table(sheet), end="\n\n" if sheet.note else "\n")


def model_line(model: ModelInfo) -> str:
    """Describes a model in one line."""
    revision = f" at {model.revision[:12]}" if model.revision else ""
    quantised = f" quantised as {model.quantization}" if model.quantization else ""
    return f"{model.id}{revision}, {model.dtype}{quantised}, {model.vocab_size:,} logits"


def short_name(model: str) -> str:
    """Returns a hub id as it is, of a path the last two parts."""
    return "/".join(PurePath(model).parts[-2:]) if PurePath(model).is_absolute() else model


def sampling_line(manifest: Manifest) -> str:
    """Describes the sampling settings in one line."""
    sampling = manifest.sampling
    if sampling.temperature == 0:
        words = ["greedy"]
    else:
        limits = {"top-k": sampling.top_k, "top-p": sampling.top_p, "min-p": sampling.min_p}
        words = [f"temperature {sampling.temperature:g}", *(f"{name} {v:g}" for name, v in limits.items() if v)]
    if sampling.repetition_penalty != 1:
        words.append(f"repetition penalty {sampling.repetition_penalty:g}")
    return ", ".join([*words, f"seed {manifest.seed}"])


def way_line(manifest: Manifest) -> str:
    """Describes the way of collecting in one line."""
    policy = manifest.policy
    if policy is None:
        return "along the target: its own completions, teacher-forced"
    support = ", within the target's support" if policy.within_support else ""
    way = "served by vLLM" if manifest.way == "serving" else manifest.way
    return (
        f"{way}: {policy.rule} with {policy.divergence} ≤ {policy.threshold}, "
        f"{policy.draft_length} tokens a draft{support}"
    )


def unit_of(name: str) -> str:
    """Returns the unit of a divergence, or "" where it has none."""
    return next(column.unit for column in token_columns([name]) if column.name == name)


def number(value: float | None) -> str:
    """Formats a number with three digits, from 1000 with all before the point; None and NaN become a dash."""
    if value is None or value != value:
        return _NONE
    if 999.5 <= abs(value) < 1e9:
        return f"{value:.0f}"
    return f"{value:.3g}".replace("inf", "∞")


def threshold(value: float | None) -> str:
    """Formats a threshold with three digits, rounded up so that it accepts no less; "any" below 0."""
    if value is not None and value < 0:
        return "any"
    return number(None if value is None else float(_UPWARDS.create_decimal_from_float(value)))


def percent(count: float, of: float) -> str:
    return f"{100 * count / of:.1f}%" if of else _NONE


def _origin(manifest: Manifest) -> Sheet:
    task, hidden = manifest.task, manifest.hidden
    facts = {
        "run": manifest.run,
        "way": way_line(manifest),
        "target": model_line(manifest.target),
        "draft": model_line(manifest.draft),
        "task": f"{task.name}, from {task.source}, up to {task.max_new_tokens:,} tokens",
        "sampling": sampling_line(manifest),
        "divergences": f"{', '.join(manifest.divergences)}, of {manifest.on} logits",
        "draft's state": f"{hidden} components a row{', projected' if manifest.projected else ''}"
        if hidden
        else "not kept",
        "device": manifest.device,
    }
    return Sheet("What was collected", (), tuple(facts.items()))


def _parts(summary: Summary, manifest: Manifest) -> Sheet:
    rows = [(name, *_part_row(part)) for name, part in summary.parts.items()]
    if len(rows) != 1:
        rows.append(("all", *_part_row(summary.whole)))
    return Sheet(
        "Splits",
        ("split", "problems", "completions", "token rows", "accuracy", "tokens each"),
        tuple(rows),
        _remarks(summary, manifest),
    )


def _part_row(part: PartSummary) -> tuple[str, ...]:
    counts = (part.problems, part.completions, part.rows)
    each = number(part.tokens / part.completions) if part.completions else _NONE
    return (*(f"{count:,}" for count in counts), percent(part.right, part.graded), each)


def _remarks(summary: Summary, manifest: Manifest) -> str:
    """Notes that the run is unfinished, or that rows are not counted."""
    notes, total = [], manifest.task.problems
    maker = "serving" if manifest.way == "serving" else "fsd-collect"
    if (done := summary.whole.completions) < total:
        notes.append(f"Unfinished: {done:,} of {total:,} problems; {maker} with the same settings continues.")
    if beyond := summary.rows - summary.counted:
        notes.append(f"{beyond:,} token rows lie after a rejection or the end of a text and are not counted below.")
    return " ".join(notes)


def _means(summary: Summary) -> Sheet:
    rows = []
    for name, mean in summary.means.items():
        value = number(mean.value) if name in ENTROPIES else percent(mean.total, mean.values)
        rows.append((name, _MEANINGS[name], value, f"{mean.nulls:,}"))
    return Sheet("Agreement of the models", ("column", "meaning", "mean", "nulls"), tuple(rows), names=2)


def _quantiles(summary: Summary) -> Sheet:
    missing = sum(of.histogram().missing for of in summary.divergences.values())
    return Sheet(
        "Quantiles of the divergence D, by agreement of argmax",
        ("D", "argmax", "rows", *(f"{share:.0%}" for share in QUANTILES), "infinite"),
        tuple(row for name, of in summary.divergences.items() for row in _quantile_rows(name, of)),
        f"Within {RELATIVE_ERROR:.1%} of the exact quantiles. {_units(summary)}"
        + (f" {missing:,} values are missing (NaN or null)." if missing else ""),
        names=2,
    )


def _quantile_rows(name: str, of: DivergenceSummary) -> Iterator[tuple[str, ...]]:
    for label, agree in (("agree", True), ("differ", False)):
        histogram = of.histogram(agree)
        figures = (number(value) for value in histogram.quantiles(QUANTILES))
        yield name, label, f"{histogram.counts.sum():,}", *figures, f"{histogram.infinite:,}"


def _units(summary: Summary) -> str:
    units = {name: unit_of(name) for name in summary.divergences}
    without = ", ".join(name for name, unit in units.items() if not unit)
    return "In nats" + (f"; without unit: {without}." if without else ".")


def _thresholds(summary: Summary) -> Sheet:
    rules = _RULES if summary.means["same_token"].values or not summary.counted else _RULES[:1]
    return Sheet(
        "T that accepts a share of the drafted tokens",
        ("D", "accepted when", *(f"{share:.0%}" for share in ACCEPTED)),
        tuple(row for name, of in summary.divergences.items() for row in _threshold_rows(name, of, rules)),
        "any: x = y alone accepts this share, at every T. Each T is at most 2% above the smallest that accepts it. "
        "What a T costs in quality is not shown here: fsd-calibrate measures it.",
        names=2,
    )


def _threshold_rows(name: str, of: DivergenceSummary, rules: Sequence[tuple[str, bool]]) -> Iterator[tuple[str, ...]]:
    for rule, exact in rules:
        yield name, rule, *(threshold(of.threshold(share, exact)) for share in ACCEPTED)


def _as_table(sheet: Sheet) -> Table:
    from rich import box
    from rich.table import Table

    from fsd_common.console import literal

    table = Table(
        title=literal(sheet.title, "bold"),
        caption=literal(sheet.note, "table.caption") if sheet.note else None,
        box=box.SIMPLE_HEAD if sheet.headings else box.SIMPLE,
        show_header=bool(sheet.headings),
        title_justify="left",
        caption_justify="left",
        padding=(0, 1, 0, 0),
    )
    for place, heading in enumerate(sheet.headings or ("", "")):
        table.add_column(literal(heading), justify="left" if place < sheet.names or not sheet.headings else "right")
    for row in sheet.rows:
        table.add_row(*map(literal, row))
    return table
