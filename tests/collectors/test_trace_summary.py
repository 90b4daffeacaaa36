"""Summaries of traces, compared with NumPy and brute force on the rows; and the tables and pictures made of them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from rich.console import Console

from fsd_collectors.manifest import Manifest
from fsd_collectors.report.description import (
    ACCEPTED,
    BINS,
    ENTROPIES,
    RELATIVE_ERROR,
    Histogram,
    ScoreSummary,
    print_sheets,
    sheets,
    summarise,
)
from fsd_collectors.report.plot import charts
from fsd_common.errors import UsageError
from fsd_common.pages.blocks import Sheet
from fsd_common.pages.pictures import svg
from support.traces.rows import ON_POLICY, manifest

NAMES = ("js", "ag")
SMALLEST = 2.0**-126  # of a float32 whose precision is whole
FLAGS = ("same_argmax", "same_token", "sd_accepts", "correct")
ALONG_TARGET = manifest(scores=list(NAMES))
Rows = dict[str, np.ndarray]


@dataclass(frozen=True)
class TracesInMemory:
    """Traces in memory, read in shards of `shard` rows."""

    tokens: Rows
    completions: Rows
    shard: int = 7
    manifest: Manifest = ALONG_TARGET

    def batches(self, columns: Sequence[str], where: Any = None, table: str = "tokens") -> Iterator[pa.Table]:
        whole = pa.table({name: getattr(self, table)[name] for name in columns})
        yield from (whole.slice(start, self.shard) for start in range(0, len(whole), self.shard))


def random_traces(
    rows: int, seed: int = 0, splits: Sequence[str] = ("tuning", "certification"), **changes: Any
) -> TracesInMemory:
    """Makes random rows, one for each completion, so that both tables can be checked by the same columns."""
    random = np.random.default_rng(seed)
    tokens: Rows = {name: random.random(rows) < 0.7 for name in FLAGS}
    tokens |= {name: random.random(rows).astype(np.float32) for name in ("sd_probability", *ENTROPIES)}
    tokens |= {name: np.exp(random.normal(-7, 4, rows)).astype(np.float32) for name in NAMES}
    problem = np.arange(rows) // 2
    tokens |= {"problem": problem, "split": random.choice(splits, rows).astype(object)[problem]}
    completions = {**tokens, "emitted": random.integers(1, 60, rows)}
    return TracesInMemory(tokens | changes.pop("tokens", {}), completions, **changes)


def histogram(values: np.ndarray) -> Histogram:
    return Histogram(np.bincount(BINS.of(values), minlength=BINS.count))


def scores(finite: bool = False) -> st.SearchStrategy[np.ndarray]:
    values = st.floats(0, width=32, allow_infinity=not finite)
    values = values if finite else values | st.just(float("nan"))
    return arrays(np.float32, st.integers(1, 60), elements=values)


def printed(shown: Sequence[Sheet]) -> str:
    file = io.StringIO()
    print_sheets(shown, Console(width=80, file=file, force_terminal=False))
    return file.getvalue()


# Quantiles


@given(scores(finite=True), st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_quantiles_are_numpys_within_the_stated_error(values: np.ndarray, shares: list[float]) -> None:
    exact = np.quantile(values.astype(np.float64), shares, method="inverted_cdf")
    found = histogram(values).quantiles(shares)
    # The bin of 0 is shown as 0, and holds as many numbers below the smallest normal one as fit into a bin.
    np.testing.assert_allclose(found, exact, rtol=RELATIVE_ERROR, atol=2 * RELATIVE_ERROR * SMALLEST)


@given(scores())
def test_infinite_and_missing_values_are_counted_apart(values: np.ndarray) -> None:
    of = histogram(values)
    assert of.infinite == np.isposinf(values).sum()
    assert of.missing == np.isnan(values).sum()
    assert of.total == len(values) - of.missing
    (largest,) = of.quantiles([1.0])
    assert np.isinf(largest) == (of.infinite > 0)
    assert np.isnan(largest) == (of.total == 0)


def test_signs_of_zero_and_nan_mean_nothing() -> None:
    plus, minus = (BINS.of(np.array([sign * 0.0, sign * np.nan], np.float32)) for sign in (1, -1))
    np.testing.assert_array_equal(plus, minus)
    assert plus[0] == 0


# One pass


@given(st.integers(1, 80), st.integers(0, 2**32), st.integers(1, 100))
def test_counts_and_means_are_exact_however_rows_are_sharded(rows: int, seed: int, shard: int) -> None:
    traces = random_traces(rows, seed, shard=shard)
    summary = summarise(traces)
    tokens, completions = traces.tokens, traces.completions
    assert (summary.rows, summary.counted) == (rows, rows)
    for split, part in summary.parts.items():
        of = tokens["split"] == split
        assert (part.rows, part.completions, part.right) == (of.sum(), of.sum(), tokens["correct"][of].sum())
        assert part.tokens == completions["emitted"][of].sum()
        assert part.problems == len(np.unique(completions["problem"][of]))
    assert sum(part.rows for part in summary.parts.values()) == summary.whole.rows == rows
    for name, mean in summary.means.items():
        assert mean.value == pytest.approx(tokens[name].astype(np.float64).mean())
    for name in NAMES:
        for agree in (False, True):
            counts = summary.scores[name].histogram(same_argmax=agree).counts
            np.testing.assert_array_equal(counts, histogram(tokens[name][tokens["same_argmax"] == agree]).counts)


@given(st.integers(1, 80), st.integers(0, 2**32), st.sampled_from([0.5, 0.8, 0.95, 1.0]), st.booleans())
def test_threshold_is_the_least_that_accepts_the_share(rows: int, seed: int, share: float, exact: bool) -> None:
    traces = random_traces(rows, seed)
    threshold = summarise(traces).scores["js"].threshold(share, exact)
    assert threshold is not None
    accepted_before = traces.tokens["same_token"] & exact

    def accepts(at: float) -> bool:
        return bool((accepted_before | (traces.tokens["js"] <= np.float32(at))).sum() >= share * rows)

    assert accepts(threshold)
    assert threshold < 0 or not accepts(threshold / (1 + 1 / 64))
    assert (threshold < 0) == accepts(-1.0)


def test_no_finite_threshold_accepts_what_diverges_infinitely() -> None:
    ag = np.array([0.1] * 9 + [np.inf], np.float32)
    of = summarise(random_traces(10, tokens={"ag": ag, "same_token": np.zeros(10, bool)})).scores["ag"]
    assert of.threshold(0.9, or_same_token=False) == pytest.approx(0.1, rel=1 / 128)
    assert of.threshold(0.95, or_same_token=False) is None


def test_on_policy_rows_count_where_their_verdict_shaped_the_text() -> None:
    decided, in_text = np.arange(12) % 2 == 0, np.arange(12) < 8
    accepted = np.arange(12) % 4 == 0
    changed = {"decided": decided, "in_text": in_text, "accepted": accepted}
    traces = random_traces(12, tokens=changed, manifest=manifest(scores=list(NAMES), **ON_POLICY))
    summary = summarise(traces)
    assert (summary.rows, summary.counted) == (12, 4)
    assert summary.means["accepted"].value == 0.5
    assert summary.scores["js"].rows == 4
    assert "8 token rows lie after a rejection or the end of a text" in words(printed(sheets(traces.manifest, summary)))


# What is said of it


def report_of(traces: TracesInMemory) -> str:
    return printed(sheets(traces.manifest, summarise(traces)))


def words(text: str) -> str:
    """Returns the text without line breaks."""
    return " ".join(text.split())


def line(text: str, *start: str) -> list[str]:
    """Returns the fields of the only line with this start, without the start."""
    (found,) = [fields for row in text.splitlines() if (fields := row.split())[: len(start)] == list(start)]
    return found[len(start) :]


def test_report_fits_80_columns_and_gives_the_summarys_figures() -> None:
    traces = random_traces(900)
    text, summary = report_of(traces), summarise(traces)
    assert max(map(len, text.splitlines())) <= 80
    whole = summary.whole
    assert line(text, "all")[:3] == ["450", "900", "900"]
    assert line(text, "all")[3] == f"{100 * whole.right / 900:.1f}%"
    agree = summary.scores["js"].histogram(same_argmax=True)
    figures = [f"{value:.3g}" for value in agree.quantiles([0.5, 0.9, 0.95, 0.99])]
    assert line(text, "js", "agree") == [str(agree.total), *figures, "0"]
    assert "In nats." in text


def test_large_counts_and_long_names_fit_80_columns() -> None:
    summary = summarise(random_traces(40))
    many = ScoreSummary(summary.scores["js"].counts * 10_000_000)
    summary = replace(summary, scores={"hellinger@50": many})
    text = printed(sheets(ALONG_TARGET, summary))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert len(line(text, "hellinger@50", "agree")) == 6


@pytest.mark.slow
@given(st.integers(1, 80), st.integers(0, 2**32))
def test_a_threshold_accepts_its_share_as_it_is_printed(rows: int, seed: int) -> None:
    traces = random_traces(rows, seed)
    *_, thresholds = sheets(traces.manifest, summarise(traces))
    for name, rule, *shown in thresholds.rows:
        exact = traces.tokens["same_token"] & (rule != "D ≤ T")
        for share, cell in zip(ACCEPTED, shown, strict=True):
            accepted = exact | (traces.tokens[name] <= float("-inf" if cell == "any" else cell))
            assert accepted.sum() >= share * rows


def test_infinite_and_missing_values_are_reported() -> None:
    ag = np.array([0.1, np.inf, np.inf, np.nan] * 10, np.float32)
    text = report_of(random_traces(40, tokens={"ag": ag, "same_argmax": np.ones(40, bool)}))
    assert line(text, "ag", "agree") == ["40", "∞", "∞", "∞", "∞", "20"]
    assert "10 values are missing (NaN or null)" in words(text)


def test_nulls_are_counted_and_left_out_of_means() -> None:
    chances = np.array([0.25, None] * 10, object)
    text = report_of(random_traces(20, tokens={"sd_probability": pa.array(chances, pa.float32())}))
    assert line(text, "sd_probability")[-2:] == ["25.0%", "10"]


def test_one_split_needs_no_sum() -> None:
    text = report_of(random_traces(20, splits=["tuning"]))
    assert line(text, "tuning")[2] == "20"
    assert not any(row.split()[:1] == ["all"] for row in text.splitlines())


def test_an_unfinished_run_is_reported() -> None:
    assert "Unfinished: 20 of 30 problems" in words(report_of(random_traces(20)))


def test_no_rows_are_described_with_dashes_and_refused_as_pictures() -> None:
    traces = random_traces(0)
    text = report_of(traces)
    assert line(text, "js", "agree") == ["0", "–", "–", "–", "–", "0"]
    assert line(text, "js", "D", "≤", "T") == ["–", "–", "–"]
    assert line(text, "js", "x", "=", "y", "or", "D", "≤", "T") == ["–", "–", "–"]
    with pytest.raises(UsageError, match="0 token rows"):
        charts(summarise(traces), None)


def test_no_scores_are_described_and_refused_as_pictures() -> None:
    traces = random_traces(20, manifest=manifest(scores=[]))
    assert line(report_of(traces), "same_argmax")[-1] == "0"
    with pytest.raises(UsageError, match="of 0 scores"):
        charts(summarise(traces), None)


# Pictures of odd traces


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize(
    "changed",
    [
        {"js": np.zeros(20, np.float32)},
        {"js": np.full(20, np.inf, np.float32)},
        {"js": np.full(20, 0.25, np.float32)},
        {"same_argmax": np.ones(20, bool), "same_token": np.ones(20, bool)},
    ],
    ids=["zero", "infinite", "constant", "all agree"],
)
def test_degenerate_traces_can_be_drawn(changed: Rows) -> None:
    for chart in charts(summarise(random_traces(20, tokens=changed)), None):
        json.dumps(chart.spec, allow_nan=False)
        assert svg(chart).startswith(b"<svg")
