"""Description of a run of traces: its statistics, from one pass over the rows, and the tables that show them.

Only rows that influenced the text count: those that are `decided` and `in_text`, which along the target are all. Memory
is bounded by the columns of one shard, 1 MB a score and 8 bytes a problem.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from decimal import ROUND_CEILING, Context
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fsd_collectors.manifest import Manifest
from fsd_collectors.replay.cases import FloatBins
from fsd_collectors.schema import token_columns
from fsd_common.pages.blocks import Sheet

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fsd_decoding.profile.parts import ModelInfo

BINS = FloatBins(kept=7)
RELATIVE_ERROR = 2.0 ** -(BINS.kept + 1)  # of quantiles; below 1e-38 the absolute error is 1e-40

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Histogram:
    """A histogram; `counts` (BINS.count,) are the numbers of values in each bin."""

    counts: Counts

    @property
    def total(self) -> int:
        """Number of values other than NaN and null; infinity counts."""
        return int(self.counts[: BINS.infinite + 1].sum())

    @property
    def infinite(self) -> int:
        return int(self.counts[BINS.infinite])

    @property
    def missing(self) -> int:
        """Number of values that are NaN or null."""
        return int(self.counts[BINS.infinite + 1 :].sum())

    @property
    def at_most(self) -> Counts:
        """(BINS.count,) number of values <= BINS.edges; after infinity's bin, missing values are included."""
        return self.counts.cumsum()

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Returns quantiles as numpy's `inverted_cdf`, within RELATIVE_ERROR; NaN where there are no values."""
        if not self.total:
            return [float("nan")] * len(shares)
        ranks = np.maximum(np.asarray(shares) * self.total, 1.0)
        return [float(value) for value in BINS.middles[np.searchsorted(self.at_most, ranks)]]


SHARES = ("same_argmax", "same_token", "sd_accepts", "sd_probability", "accepted")
ENTROPIES = ("target_entropy", "draft_entropy")
_COMPLETION = ["problem", "split", "emitted", "correct"]
_INFLUENCED = ["decided", "in_text"]


class TraceSource(Protocol):
    """What a summary needs of traces, such as `fsd_collectors.store.reading.Traces`."""

    @property
    def manifest(self) -> Manifest: ...

    def batches(self, columns: Sequence[str], where: Any = None, table: str = "tokens") -> Iterator[pa.Table]: ...


@dataclass
class Mean:
    """The mean of a column's values that are not null."""

    total: float = 0.0
    values: int = 0
    nulls: int = 0

    @property
    def value(self) -> float | None:
        return self.total / self.values if self.values else None

    def add(self, column: pa.ChunkedArray) -> None:
        self.total += pc.sum(column, min_count=0).as_py() or 0.0
        self.nulls += column.null_count
        self.values += len(column) - column.null_count


@dataclass
class PartSummary:
    """Counts of one split: `tokens` are emitted tokens, an EOS included; `rows` are rows of the table of tokens.

    Of the `graded` completions is known whether they are `right`: of served ones it is not.
    """

    completions: int = 0
    graded: int = 0
    right: int = 0
    tokens: int = 0
    rows: int = 0
    problems: int = 0


@dataclass(frozen=True)
class ScoreSummary:
    """The distribution of a score.

    `counts` (2, 2, BINS.count) are by `same_argmax`, `same_token` and bin of D; where nobody knows whether x = y, as of
    sampled tokens that were served, they are counted as x ≠ y.
    """

    counts: Counts

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    @property
    def exact(self) -> int:
        """Number of rows that are accepted losslessly: x = y."""
        return int(self.counts[:, 1].sum())

    def histogram(self, same_argmax: bool | None = None, same_token: bool | None = None) -> Histogram:
        """Returns the histogram of the rows with these values of `same_argmax` and `same_token`; None selects both."""
        argmax, token = (slice(None) if value is None else [int(value)] for value in (same_argmax, same_token))
        return Histogram(self.counts[argmax][:, token].sum(axis=(0, 1)))

    def accepted(self, or_same_token: bool) -> Counts:
        """Returns the exact number of rows accepted at finite T = BINS.edges, by D <= T or also by x = y."""
        if or_same_token:
            return self.histogram(same_token=False).at_most + self.exact
        return self.histogram().at_most

    def threshold(self, share: float, or_same_token: bool) -> float | None:
        """Returns the smallest edge of a bin that accepts `share` of the rows.

        It is at most 1/128 above the smallest such T. It is negative where x = y alone accepts this share, and None
        where no finite T does or there are no rows.
        """
        if not self.rows:
            return None
        target = share * self.rows
        if or_same_token and self.exact >= target:
            return -1.0
        enough = np.flatnonzero(self.accepted(or_same_token) >= target)
        first = float(BINS.edges[enough[0]]) if len(enough) else np.inf
        return first if np.isfinite(first) else None


@dataclass(frozen=True)
class Summary:
    """The summary of a run.

    Args:
        rows: number of token rows.
        counted: number of those that `means` and `scores` are of.
        parts: counts by split.
        means: means by column.
        scores: distributions by score.
    """

    rows: int
    counted: int
    parts: dict[str, PartSummary]
    means: dict[str, Mean]
    scores: dict[str, ScoreSummary]

    @property
    def whole(self) -> PartSummary:
        """The sum of all parts."""
        return PartSummary(
            *(sum(counts) for counts in zip(*(astuple(part) for part in self.parts.values()), strict=True))
        )


def summarise(traces: TraceSource) -> Summary:
    """Summarises traces in one pass over the tokens and one over the completions."""
    manifest = traces.manifest
    influenced = _INFLUENCED if manifest.way != "along-target" else []  # along the target all rows are
    means = {name: Mean() for name in SHARES + ENTROPIES if influenced or name != "accepted"}
    counts = {name: np.zeros((2, 2, BINS.count), np.int64) for name in manifest.scores}
    rows: dict[str, int] = defaultdict(int)  # by split
    counted = 0
    for tokens in traces.batches(["split", *influenced, *means, *counts]):
        for split in pc.value_counts(tokens["split"]):
            rows[split["values"].as_py()] += split["counts"].as_py()
        if influenced:
            tokens = tokens.filter(pc.and_(*(tokens[name] for name in influenced)))
        counted += len(tokens)
        for name, mean in means.items():
            mean.add(tokens[name])
        _count(tokens, counts)
    scores = {name: ScoreSummary(each) for name, each in counts.items()}
    return Summary(sum(rows.values()), counted, _parts(traces, rows), means, scores)


def _count(tokens: pa.Table, counts: Mapping[str, Counts]) -> None:
    """Adds rows to the counts of `ScoreSummary`."""
    argmax, token = (
        pc.fill_null(tokens[name], False).to_numpy().astype(np.uint32) for name in ("same_argmax", "same_token")
    )
    place = (2 * argmax + token) * np.uint32(BINS.count)  # (N,)
    for name, each in counts.items():
        values = tokens[name].to_numpy().astype(np.float32, copy=False)  # null becomes NaN
        np.add.at(each.reshape(-1), place + BINS.of(values), 1)


def _parts(traces: TraceSource, rows: dict[str, int]) -> dict[str, PartSummary]:
    """Returns the counts by split, the tuning part first."""
    parts: dict[str, PartSummary] = defaultdict(PartSummary)
    problems: dict[str, list[np.ndarray]] = defaultdict(list)
    for completions in traces.batches(_COMPLETION, table="completions"):
        for split in pc.unique(completions["split"]).to_pylist():
            selected = completions.filter(pc.equal(completions["split"], split))
            parts[split].completions += len(selected)
            parts[split].graded += len(selected) - selected["correct"].null_count
            parts[split].right += pc.sum(selected["correct"], min_count=0).as_py()
            parts[split].tokens += pc.sum(selected["emitted"]).as_py()
            problems[split].append(selected["problem"].to_numpy())
    for split, part in parts.items():
        part.problems = len(np.unique(np.concatenate(problems[split])))
        part.rows = rows.get(split, 0)
    return dict(sorted(parts.items(), reverse=True))


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
    return (_origin(manifest), _splits(summary, manifest), _means(summary), _quantiles(summary), _thresholds(summary))


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
        f"{way}: {policy.rule} with {policy.score} ≤ {policy.threshold}, {policy.draft_length} tokens a draft{support}"
    )


def unit_of(name: str) -> str:
    """Returns the unit of a score, or "" where it has none."""
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
        "scores": f"{', '.join(manifest.scores)}, of {manifest.on} logits",
        "draft's state": f"{hidden} components a row{', projected' if manifest.projected else ''}"
        if hidden
        else "not kept",
        "device": manifest.device,
    }
    return Sheet("What was collected", (), tuple(facts.items()))


def _splits(summary: Summary, manifest: Manifest) -> Sheet:
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
    missing = sum(of.histogram().missing for of in summary.scores.values())
    return Sheet(
        "Quantiles of the score D, by agreement of argmax",
        ("D", "argmax", "rows", *(f"{share:.0%}" for share in QUANTILES), "infinite"),
        tuple(row for name, of in summary.scores.items() for row in _quantile_rows(name, of)),
        f"Within {RELATIVE_ERROR:.1%} of the exact quantiles. {_units(summary)}"
        + (f" {missing:,} values are missing (NaN or null)." if missing else ""),
        names=2,
    )


def _quantile_rows(name: str, of: ScoreSummary) -> Iterator[tuple[str, ...]]:
    for label, agree in (("agree", True), ("differ", False)):
        histogram = of.histogram(agree)
        figures = (number(value) for value in histogram.quantiles(QUANTILES))
        yield name, label, f"{histogram.counts.sum():,}", *figures, f"{histogram.infinite:,}"


def _units(summary: Summary) -> str:
    units = {name: unit_of(name) for name in summary.scores}
    without = ", ".join(name for name, unit in units.items() if not unit)
    return "In nats" + (f"; without unit: {without}." if without else ".")


def _thresholds(summary: Summary) -> Sheet:
    rules = _RULES if summary.means["same_token"].values or not summary.counted else _RULES[:1]
    return Sheet(
        "T that accepts a share of the drafted tokens",
        ("D", "accepted when", *(f"{share:.0%}" for share in ACCEPTED)),
        tuple(row for name, of in summary.scores.items() for row in _threshold_rows(name, of, rules)),
        "any: x = y alone accepts this share, at every T; –: no T does, as D is infinite too often. "
        "Each T is at most 2% above the smallest that accepts it. "
        "What a T costs in quality is not shown here: fsd-calibrate measures it.",
        names=2,
    )


def _threshold_rows(name: str, of: ScoreSummary, rules: Sequence[tuple[str, bool]]) -> Iterator[tuple[str, ...]]:
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
