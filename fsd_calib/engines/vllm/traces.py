"""What vLLM measures along texts of the target: traces, and whole rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsd_calib.engines.base import Engine, KeyedPrompt, WantedTraces
from fsd_collectors.collection.measures import Measures
from fsd_collectors.collection.portions import Completions
from fsd_collectors.collection.run import task_info, versions
from fsd_collectors.manifest import Manifest
from fsd_collectors.replay.walks import Walked, Walks
from fsd_collectors.store.reading import Traces, load_traces
from fsd_collectors.store.writing import TraceWriter
from fsd_common.progress.base import Progress
from fsd_decoding.engine.result import Result
from fsd_decoding.profile.parts import SamplingInfo
from fsd_decoding.sampling import Sampling
from fsd_decoding.scores import score_named

Array = NDArray[Any]

_PORTION = 64  # texts of a shard


class Traced(NamedTuple):
    """A text of the target, with what the plugin measured along it."""

    result: Result
    facts: dict[str, Any]


def manifest_of(wanted: WantedTraces, engine: Engine, identity: str) -> Manifest:
    """Returns the manifest that such traces have; `identity` is of what they depend on beside models and settings."""
    pair = engine.pair
    return Manifest(
        way="along-target", policy=None, target=pair.target, draft=pair.draft, tokenizer=pair.tokenizer, eos=(),
        task=task_info(wanted.task, wanted.task.problems),
        sampling=SamplingInfo.model_validate(engine.decoding.sampling, from_attributes=True), seed=engine.decoding.seed,
        scores=tuple(wanted.scores), on=engine.decoding.on, hidden=0, projected=False,
        batch_size=wanted.batch_size, portion=_PORTION, device=engine.device,
        versions=versions(identity),
    )  # fmt: skip


def collect(
    wanted: WantedTraces, manifest: Manifest, trace: Callable[[Sequence[KeyedPrompt]], Sequence[Traced]], folder: Path,
    progress: Progress,
) -> Traces:  # fmt: skip
    """Collects traces into a folder, or continues what was begun there.

    The first token of a text comes from the prompt's own step, without a draft. Rows begin at the second, and so does
    their count of positions.
    """
    problems, task = wanted.task.problems, wanted.task
    with TraceWriter(folder, manifest) as writer, progress.step("collecting", len(problems)) as advance:
        portion = writer.manifest.portion
        advance(min(writer.finished * portion, len(problems)))
        for number in range(writer.finished, writer.manifest.portions):
            part = problems[number * portion : (number + 1) * portion]
            prompts = [KeyedPrompt(problem.id, problem.prompt) for problem in part]
            traced = trace(prompts)
            correct = [task.grade(problem, one.result.text) for problem, one in zip(part, traced, strict=True)]
            done = Completions(
                writer.manifest, [problem.id for problem in part], ["tuning"] * len(part),
                [one.facts["prompt"] for one in traced], [one.result for one in traced], correct,
            )  # fmt: skip
            owner, position, measured = _rows(traced, Measures(wanted.scores, "raw", Sampling()).columns)
            writer.write(
                number, {"tokens": done.along_target(owner, position, measured, None), "completions": done.table()}
            )
            advance(len(part))
    return load_traces(folder)


def _rows(traced: Sequence[Traced], names: Sequence[str]) -> tuple[Array, Array, dict[str, Array]]:
    """Returns the texts that the rows are of (N,), their positions in them (N,), and the columns (N,) by name."""
    owners: list[int] = []
    positions: list[int] = []
    columns: list[list[float]] = []
    for owner, one in enumerate(traced):
        rows = _one_a_token(one.facts)
        owners += [owner] * len(rows)
        positions += range(len(rows))
        columns += rows
    table = np.array(columns, np.float64).reshape(len(columns), len(names))
    return np.array(owners, np.int64), np.array(positions, np.int64), dict(zip(names, table.T, strict=True))


def _one_a_token(facts: dict[str, Any]) -> list[list[float]]:
    """Returns the columns for each token but the first; where a step had no draft, those of the step before."""
    known = {begin: columns[0] for begin, columns in zip(facts["begins"], facts["columns"], strict=True)}
    rows: list[list[float]] = []
    for place in range(1, len(facts["tokens"])):
        if place in known or rows:
            rows.append(known.get(place, rows[-1] if rows else []))
    return rows


def walked(traced: Sequence[Traced], scores: Sequence[str]) -> Walked:
    """Returns the rounds of texts that were decoded losslessly, with what was measured of each drafted token.

    With sampling the exact rule decides by noise of its own, as vLLM's is not known.
    """
    names = Measures(scores, "raw", Sampling()).columns
    rounds = [np.array(columns) for one in traced for columns in one.facts["columns"]]  # (n, columns) each
    width = max(map(len, rounds))
    exact, drafted = np.zeros((2, len(rounds), width + 1), np.int64)
    found = {name: np.full((len(rounds), width + 1), np.inf) for name in scores}
    for at, measured in enumerate(rounds):
        count = len(measured)
        drafted[at, :count] = range(1, count + 1)
        kept = measured[:, names.index("sd_accepts")] > 0
        exact[at, :count] = np.where(kept, drafted[at, :count], 0)
        for name, values in found.items():
            values[at, :count] = measured[:, names.index(name)]
            if window := score_named(name).window:
                followed = [count > i + window and bool(kept[i + 1 : i + 1 + window].all()) for i in range(count)]
                values[at, :count][~np.array(followed)] = np.inf
    results = [one.result for one in traced]
    tokens, taken = sum(each.emitted for each in results), sum(each.rounds for each in results)
    return Walked(Walks(exact, drafted, found, chains=True), tokens, taken)
