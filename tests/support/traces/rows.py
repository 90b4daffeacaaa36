"""Synthetic traces for tests: a valid manifest, and any number of rows whose columns are consistent.

The numbers are drawn from a seed, and so are equal in every process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fsd_collectors.manifest import Manifest
from fsd_collectors.schema import ROUNDS_BACK
from fsd_collectors.store.shard_file import schemas
from fsd_collectors.store.writing import TraceWriter

_MODEL = {"revision": None, "dtype": "float32", "vocab_size": 60, "quantization": None, "attention": "sdpa",
          "kind": "model"}  # fmt: skip

VALUES: dict[str, Any] = {
    "way": "along-target",
    "policy": None,
    "target": {"id": "big", "fingerprint": "b", **_MODEL},
    "draft": {"id": "small", "fingerprint": "s", **_MODEL},
    "tokenizer": "t",
    "eos": [1],
    "task": {"name": "arithmetic", "source": "generated", "fingerprint": "d", "prompts": "p",
             "problems": 30, "max_new_tokens": 64, "stop": ["\n\n"]},
    "sampling": {"temperature": 0.0, "top_k": None, "top_p": None},
    "seed": 0,
    "scores": ["js", "ag", "kl_qp", "kl_pq", "tv"],
    "on": "raw",
    "hidden": 0,
    "projected": False,
    "batch_size": 8,
    "portion": 8,
    "device": "cpu",
    "versions": {"torch": "2"},
}  # fmt: skip

ON_POLICY: dict[str, Any] = {
    "way": "on-policy",
    "policy": {"rule": "fsd-coupled", "score": "js", "threshold": "0.1", "draft_length": 5,
               "within_support": False},
}  # fmt: skip


def manifest(problems: int = 30, **changes: Any) -> Manifest:
    """Returns a manifest with some values replaced: `manifest(12, portion=4, **ON_POLICY)`."""
    return Manifest.model_validate({**VALUES, "task": {**VALUES["task"], "problems": problems}, **changes})


def problem_id(index: int) -> int:
    return int.from_bytes(hashlib.sha256(f"problem {index}".encode()).digest()[:6], "big")


def portion(of: Manifest, number: int, longest: int = 40) -> dict[str, pa.Table]:
    """Returns the tables of one portion, whose completions have 1 to `longest` tokens."""
    random = np.random.default_rng([of.seed, number])
    first = number * of.portion
    problems = range(first, min(first + of.portion, of.task.problems))
    completions = [_places(of, random, longest) for _ in problems]
    owners = _owners(of, [problem_id(index) for index in problems])
    owners["correct"] = random.random(len(problems)) < 0.8
    values = {
        "tokens": _tokens(of, random, owners, completions),
        "completions": _completions(random, owners, completions),
        "rounds": _rounds(random, owners, completions),
    }
    return {table: _table(values[table], schema) for table, schema in schemas(of).items()}


def write(folder: Path, of: Manifest, portions: int | None = None, longest: int = 40) -> Path:
    """Writes the run, or its first portions, into `folder`; portions that are there already are kept."""
    with TraceWriter(folder, of) as writer:
        for number in range(writer.finished, of.portions if portions is None else portions):
            writer.write(number, portion(of, number, longest))
    return folder


Values = dict[str, Any]  # by column, one value per row; a column without values is null


def _table(values: Values, schema: pa.Schema) -> pa.Table:
    rows = len(values["problem"])
    return pa.Table.from_arrays(
        [pa.array(values.get(field.name, [None] * rows), field.type, from_pandas=False) for field in schema],
        schema=schema,
    )


def _owners(of: Manifest, ids: list[int]) -> Values:
    split = np.where(np.array(ids) % 10 < 3, "tuning", "certification").astype(object)
    return {"run": np.full(len(ids), of.run, dtype=object), "problem": np.array(ids), "split": split}


def _places(of: Manifest, random: np.random.Generator, longest: int) -> Values:
    """Returns the positions, and on-policy the rounds, of one completion's drafted tokens."""
    length = int(random.integers(1, longest + 1))
    if of.policy is None:
        return {"position": np.arange(length)}
    accepted = random.integers(0, of.policy.draft_length + 1, size=length)
    starts = np.concatenate([[0], np.cumsum(accepted + 1)])[:length]
    rounds = int((starts < length).sum())
    return _in_rounds(accepted[:rounds], starts[:rounds], of.policy.draft_length, length)


def _in_rounds(accepted: Any, starts: Any, draft_length: int, length: int) -> Values:
    rounds = len(starts)
    number, place = np.repeat(np.arange(rounds), draft_length), np.tile(np.arange(draft_length), rounds)
    back = {
        f"accepted_{b}_back": [int(accepted[r - b]) if r >= b else None for r in number]
        for b in range(1, ROUNDS_BACK + 1)
    }
    position = starts[number] + place
    stays, decided = place < accepted[number], place <= accepted[number]
    return {"position": position, "round": number, "draft_position": place, "accepted": stays, "decided": decided,
            "in_text": position < length, "starts": starts, "of_round": accepted, **back}  # fmt: skip


def _tokens(of: Manifest, random: np.random.Generator, owners: Values, completions: list[Values]) -> Values:
    sizes = [len(places["position"]) for places in completions]
    columns = {name: np.repeat(values, sizes) for name, values in owners.items()}
    per_token = [name for name in completions[0] if name not in ("starts", "of_round")]
    columns |= {name: np.concatenate([places[name] for places in completions]) for name in per_token}
    rows = sum(sizes)
    if of.policy is None:
        columns |= {"decided": np.ones(rows, bool), "in_text": np.ones(rows, bool)}
    return columns | _decision(random, rows) | _shape(random, rows) | _measured(of, random, rows)


def _decision(random: np.random.Generator, rows: int) -> Values:
    same, choice = random.random(rows) < 0.8, random.integers(0, 60, rows)
    return {"drafted": np.where(same, choice, (choice + 1) % 60), "target_choice": choice, "same_argmax": same,
            "same_token": same, "sd_accepts": same, "sd_probability": same.astype(np.float32)}  # fmt: skip


def _shape(random: np.random.Generator, rows: int) -> Values:
    columns: Values = {}
    for model in ("target", "draft"):
        top1 = random.beta(4, 1, rows).astype(np.float32)
        top2 = ((1 - top1) * random.random(rows)).astype(np.float32)
        rank = random.geometric(0.8, rows) - 1
        likely = np.where(rank == 0, top1, np.where(rank == 1, top2, top2 / 2))
        values = (random.gamma(1, 0.3, rows), random.gamma(1, 0.3, rows), top1, top2, top1 - top2, rank, likely)
        names = ("entropy", "varentropy", "top1", "top2", "margin", "rank", "probability")
        columns |= {f"{model}_{name}": np.asarray(v) for name, v in zip(names, values, strict=True)}
    return columns


def _measured(of: Manifest, random: np.random.Generator, rows: int) -> Values:
    """Returns scores that rise and fall together, as real ones do; unbounded ones are sometimes infinite."""
    size = random.beta(0.5, 4, rows)
    bounds = {"js": float(np.log(2)), "tv": 1.0}
    columns: Values = {}
    for name in of.scores:
        values = size * bounds.get(name, 4.0)
        columns[name] = values if name in bounds else np.where(random.random(rows) < 0.001, np.inf, values)
    if of.hidden:
        columns["draft_hidden"] = list(random.normal(size=(rows, of.hidden)).astype(np.float16))
    return columns


def _completions(random: np.random.Generator, owners: Values, completions: list[Values]) -> Values:
    lengths = [int(places["position"].max()) + 1 for places in completions]
    rounds = [len(places["starts" if "starts" in places else "position"]) for places in completions]
    accepted = [int(np.sum(places.get("of_round", 0))) for places in completions]
    return owners | {
        "prompt_tokens": random.integers(10, 90, len(lengths)),
        "tokens": [random.integers(0, 60, length) for length in lengths],
        "text": [f"text {length} \u20ac" for length in lengths],
        "finish_reason": ["eos"] * len(lengths),
        "emitted": lengths,
        "rounds": rounds,
        "proposed": [len(places["position"]) for places in completions],
        "accepted": accepted,
    }


def _rounds(random: np.random.Generator, owners: Values, completions: list[Values]) -> Values:
    """Returns the columns of the table of rounds, which has no rows along the target."""
    sizes = [len(places.get("starts", ())) for places in completions]
    columns = {name: np.repeat(owners[name], sizes) for name in ("run", "problem", "split")}
    for name, column in (("position", "starts"), ("accepted", "of_round")):
        columns[name] = np.concatenate([places.get(column, ()) for places in completions]).astype(int)
    rows = sum(sizes)
    return columns | {
        "round": np.concatenate([np.arange(size) for size in sizes]),
        "proposed": np.full(rows, 5),
        "batch": np.full(rows, 8),
        "draft_seconds": random.gamma(2, 0.001, rows),
        "verify_seconds": random.gamma(2, 0.002, rows),
    }


def replace_column(name: str, value: Any) -> Callable[[pa.Table], pa.Table]:
    """Returns a function that replaces a column of a table by a constant, whose type its schema may not take."""
    return lambda table: table.set_column(
        table.column_names.index(name), name, pa.array([value] * table.num_rows)
    )  # fmt: skip
