"""Small runs of traces on tiny models, in all ways of collecting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fsd_calib import collect_traces
from fsd_collectors.store.reading import Traces
from support.models.tiny_models import word_tokenizer

Frame = Any  # a pandas DataFrame, whose stubs know columns by name only
NAMES = ("js", "ag", "kl_qp", "kl_pq", "tv", "hellinger", "doubt")
TOKENIZER = word_tokenizer()
ON_POLICY: dict[str, Any] = {"rule": "fsd-coupled", "threshold": 0.1, "draft_length": 3}
WAYS: dict[str, dict[str, Any]] = {
    "along the target": {},
    "fsd-coupled": ON_POLICY,
    "sd": {"rule": "sd", "draft_length": 4},
    "all drafts": {"rule": "fsd", "threshold": float("inf")},
}


def collect(out: Path, models: tuple[Any, Any], task: Any, **settings: Any) -> Traces:
    common: dict[str, Any] = {"tokenizer": TOKENIZER, "scores": NAMES, "batch_size": 4, "seed": 5}
    return collect_traces(task, target=models[0], draft=models[1], out=out, **common | settings)


def by_problem(traces: Traces) -> Iterator[tuple[int, Frame, Any]]:
    """Every problem's id, its rows of tokens and its completion."""
    tokens: Frame = traces.to_pandas()
    completions: Frame = traces.to_pandas(table="completions")
    for completion in completions.itertuples():
        yield completion.problem, tokens[tokens.problem == completion.problem], completion


def contexts(rows: Frame, prompt: list[int], tokens: list[int]) -> tuple[list[list[int]], list[int]]:
    """The texts that the models read, and the number of positions at the end of each that the rows are of."""
    if rows["round"].isna().all():
        return [[*prompt, *tokens][: len(prompt) + len(rows) - 1]], [len(rows)]
    texts, counts = [], []
    for _, drafted in rows.groupby("round", sort=True):
        before = [*prompt, *tokens[: drafted.position.iloc[0]]]
        texts.append(before + drafted.drafted.tolist()[:-1])
        counts.append(len(drafted))
    return texts, counts
