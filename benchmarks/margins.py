"""Numerical noise of every divergence, by dtype, as margins cover it: `python benchmarks/margins.py`.

The same problems are decoded one at a time and in larger batches, in another order. Where a drafted token has the same
context in both, its two divergences differ by rounding alone.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from fsd_calib import load_task
from fsd_calib.tasks.base import Task
from fsd_collectors.collection.run import collect_traces
from fsd_collectors.store.reading import Traces
from fsd_data import pair_paths
from fsd_decoding.divergence import DIVERGENCES
from lib.common.machine import machine_facts
from lib.common.results import write_and_print

_SEED, _BATCHES, _TEMPERATURES, _DTYPES = 424_242, (3, 16, 60), (0.0, 0.8), ("float32", "float16", "bfloat16")
_RULE: dict[str, Any] = {"rule": "fsd-coupled", "divergence": "js", "threshold": 0.05, "draft_length": 5}
_NAMES = (*DIVERGENCES, *(f"{name}@50" for name in DIVERGENCES))
_DRAFT = ["problem", "start", "draft_position"]
_EDGES = 10.0 ** np.arange(-9, 2)  # of D, decade by decade


@dataclass(frozen=True)
class Noise:
    """Noise of one divergence in one dtype.

    Args:
        positions: pairs compared.
        largest: largest |difference| / sqrt(D), D being the larger of the two.
        decades: the same by decade of D, from 1e-9 up; None where no D lies there.
    """

    dtype: str
    divergence: str
    positions: int
    largest: float
    decades: tuple[float | None, ...]


def drafts_of(traces: Traces) -> tuple[pd.DataFrame, Mapping[int, list[int]]]:
    """Returns a row for each drafted token with its context in the round, and the texts by problem."""
    columns = ["problem", "position", "draft_position", "drafted", *_NAMES]
    frame = traces.tokens.to_table(columns=columns).to_pandas()
    frame["start"] = frame["position"] - frame["draft_position"]
    frame = frame.sort_values(_DRAFT).reset_index(drop=True)
    before = frame.groupby(["problem", "start"])["drafted"].transform(lambda ids: _prefixes(ids.tolist()))
    texts = traces.completions.to_table(columns=["problem", "tokens"]).to_pydict()
    return frame.assign(before=before), dict(zip(texts["problem"], texts["tokens"], strict=True))


def _prefixes(ids: Sequence[int]) -> list[int]:
    return [hash(tuple(ids[:i])) for i in range(len(ids))]


def paired(alone: Traces, batched: Traces) -> pd.DataFrame:
    """Returns the drafted tokens that have the same context in both, with both divergences."""
    (a, texts), (b, others) = drafts_of(alone), drafts_of(batched)
    both = a.merge(b, on=[*_DRAFT, "before"], suffixes=("_a", "_b"))
    same = {problem: _common(texts[problem], others[problem]) for problem in texts}
    return both[both["start"] <= both["problem"].map(same)]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def noise_of(pairs: pd.DataFrame, dtype: str, name: str) -> Noise:
    a, b = (pairs[f"{name}_{side}"].to_numpy(np.float64) for side in "ab")
    larger, moved = np.maximum(a, b), np.abs(a - b)
    ratio = np.divide(moved, np.sqrt(larger), out=np.zeros_like(moved), where=larger > 0)
    decade = np.searchsorted(_EDGES, larger, side="right")
    decades = [float(ratio[decade == i].max()) if (decade == i).any() else None for i in range(1, len(_EDGES) + 1)]
    return Noise(dtype, name, len(pairs), float(ratio.max()), tuple(decades))


def measure(task: Task, dtype: str) -> list[Noise]:
    target, draft = pair_paths()
    found = []
    for temperature in _TEMPERATURES:
        with TemporaryDirectory() as folder:
            traces = {
                batch: collect_traces(
                    _shuffled(task, batch), target=target, draft=draft, out=Path(folder) / str(batch), dtype=dtype,
                    temperature=temperature, batch_size=batch, device="cpu", divergences=_NAMES, **_RULE,
                )
                for batch in (1, *_BATCHES)
            }  # fmt: skip
            found += [paired(traces[1], traces[batch]) for batch in _BATCHES]
            del traces
    pairs = pd.concat(found)
    return [noise_of(pairs, dtype, name) for name in _NAMES]


def _shuffled(task: Task, seed: int) -> Task:
    return replace(task, problems=tuple(random.Random(seed).sample(task.problems, len(task.problems))))


def table(rows: Sequence[Noise]) -> str:
    found = {(row.divergence, row.dtype): f"{row.largest:.2g}" for row in rows}
    head = [f"| divergence | {' | '.join(_DTYPES)} |", "| --- " * (1 + len(_DTYPES)) + "|"]
    return "\n".join(
        [*head, *(f"| {name} | " + " | ".join(found[name, dtype] for dtype in _DTYPES) + " |" for name in _NAMES)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=180)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "margins.json")
    options = parser.parse_args()
    machine, began = machine_facts(), time.perf_counter()
    task = load_task("arithmetic", seed=_SEED, limit=options.problems)
    rows = [row for dtype in _DTYPES for row in measure(task, dtype)]
    results = {"machine": machine, "problems": options.problems, "seed": _SEED, "batches": _BATCHES,
               "temperatures": _TEMPERATURES, "rule": _RULE, "noise": [asdict(row) for row in rows],
               "seconds": time.perf_counter() - began}  # fmt: skip
    write_and_print(results, options.out, table(rows))


if __name__ == "__main__":
    main()
