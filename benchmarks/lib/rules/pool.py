"""A pool of the texts that `rules.py` stored: many scores at one draft length, each at every T."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fsd_calib import SpeculativeDecoder, collect_traces, load_task
from fsd_calib.calibration.auto_scores import possible, tried
from fsd_calib.search.forecast import HIGHEST, LOWEST, POINTS, finite
from fsd_calib.search.space import logit
from fsd_collectors.replay import quantiles, sweep
from fsd_collectors.store.reading import Traces
from fsd_data import pair_paths
from lib.pool import Arm, Pool, PooledForecast
from lib.rules.curves import Columns
from lib.rules.judges import Judge, Panel
from lib.rules.stored import Stored, folder_of

TEMPERATURES = (0.0, 0.6, 1.0)
_LENGTH, _LARGEST = 8, 3.9  # T beyond which nothing is looked up
_COUNTED = ("threshold", "rounds", "drafted")
_TRACED, _SEED = 128, 82_000  # problems of the traces, which are others than the pool's


def pool_of_texts(texts: Path, temperature: float) -> tuple[Pool, PooledForecast, str, tuple[str, ...]]:
    """Returns a pool, its forecast, the rule, and the scores that traces speak for among those of the pool.

    Args:
        texts: the folder that `rules.py` stored them in.
    """
    decoder = SpeculativeDecoder.from_pretrained(*pair_paths(), draft_length=_LENGTH, temperature=temperature)
    panel = Panel.at(temperature)
    stored = Stored(folder_of(texts, decoder, load_task("arithmetic").name, panel), panel)
    numbers = np.array(sorted(stored.numbers))
    of = {judge: _numbered(columns, numbers) for judge, columns in zip(panel.judges, stored.columns(), strict=True)}
    scored = {judge.score: columns for judge, columns in of.items() if judge.score is not None}
    pool = _pool(of[Judge(panel.base)], scored)
    rule = f"fsd-{panel.base}"
    names = [name for name in possible(temperature == 0, _LENGTH, trees=False) if name in scored]
    with TemporaryDirectory() as folder:
        task = load_task("arithmetic", seed=_SEED, limit=_TRACED, tokenizer=decoder.tokenizer)
        traces = collect_traces(
            task, target=decoder.target, draft=decoder.draft, tokenizer=decoder.tokenizer, out=Path(folder) / "traces",
            temperature=temperature, scores=list(scored),
        )  # fmt: skip
        return pool, _forecast(pool, traces, rule, list(scored)), rule, tried(traces, rule, names)


def _numbered(columns: Columns, numbers: Any) -> Columns:
    """The texts of problems that are numbered from 0 in the order of those that are stored."""
    return columns | {"problem": np.searchsorted(numbers, columns["problem"])}


def _pool(alone: Columns, scored: dict[str, Columns]) -> Pool:
    about = {**Pool.read().about, "thresholds_below": dict.fromkeys(scored, _LARGEST)}
    arms = {(name, _LENGTH): Arm(name, columns, _LARGEST + 1e-6) for name, columns in scored.items()}
    return Pool(about, arms, {"correct": alone["correct"].astype(bool), "tokens": alone["tokens"]})


def _forecast(pool: Pool, traces: Traces, rule: str, names: Sequence[str]) -> PooledForecast:
    grid = np.linspace(logit(LOWEST), logit(HIGHEST), POINTS)
    scales = {name: finite(quantiles(traces, name, 1 / (1 + np.exp(-grid)))) for name in names}
    swept = sweep(traces, [rule], names, scales, [_LENGTH])
    arms = [
        {"score": name, "draft_length": _LENGTH} | {column: rows[column].to_numpy() for column in _COUNTED}
        for name, rows in swept.groupby("score")
    ]
    thresholds = {name: scale.tolist() for name, scale in scales.items()}
    kept = {"tokens": int(swept["tokens"].iloc[0]), "logit_shares": grid, "thresholds": thresholds, "arms": arms}
    return PooledForecast(pool, kept)
