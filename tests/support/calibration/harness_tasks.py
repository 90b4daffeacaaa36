"""Tasks of lm-evaluation-harness in YAML files, over generated problems."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

from fsd_data.problems import GeneratedProblem, generate

EXACT_MATCH = {
    "metric": "exact_match", "aggregation": "mean", "higher_is_better": True,
    "regexes_to_ignore": [",", "\\$", "(?s).*#### ", "\\.$"],
}  # fmt: skip
_FILTERS = [
    {"name": "strict-match", "filter": [
        {"function": "regex", "regex_pattern": "#### (\\-?[0-9\\.\\,]+)"}, {"function": "take_first"}]},
    {"name": "last-number", "filter": [
        {"function": "regex", "group_select": -1, "regex_pattern": "(-?[0-9]+)"}, {"function": "take_first"}]},
]  # fmt: skip


def problems(count: int, seed: int = 11) -> list[GeneratedProblem]:
    """Problems of two steps at most, whose answers are soon decoded."""
    return list(islice((problem for problem in generate(seed) if problem.steps <= 2), count))


def write_rows(path: Path, rows: list[GeneratedProblem]) -> Path:
    """Writes problems as a data set of `datasets`."""
    lines = (json.dumps({"question": row.question, "answer": row.answer}) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")
    return path


def write_task(folder: Path, count: int = 6, changes: dict[str, Any] | None = None, train: int = 0) -> Path:
    """Writes a task over the test problems of `problems(train + count)`, and its data; JSON is YAML too.

    Args:
        changes: fields that replace the task's own; None leaves one out.
        train: number of problems in a training split, the first ones.
    """
    rows = problems(train + count)
    files = {"test": str(write_rows(folder / "test.jsonl", rows[train:]))}
    if train:
        files["train"] = str(write_rows(folder / "train.jsonl", rows[:train]))
    task = {
        "task": "local_arithmetic", "dataset_path": "json", "dataset_kwargs": {"data_files": files},
        "output_type": "generate_until", "training_split": "train" if train else None, "test_split": "test",
        "doc_to_text": "{{question}}", "doc_to_target": "{{answer}}", "num_fewshot": 0,
        "generation_kwargs": {"until": ["\nQuestion:"], "do_sample": False, "max_gen_toks": 120},
        "metric_list": [EXACT_MATCH], "filter_list": _FILTERS, **(changes or {}),
    }  # fmt: skip
    path = folder / "local.yaml"
    path.write_text(json.dumps({name: value for name, value in task.items() if value is not None}), encoding="utf-8")
    return path
