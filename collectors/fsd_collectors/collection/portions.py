"""Portions: what both models say about the texts of some problems, read here or in a worker, and made into tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fsd_collectors.collection.along_target import Completion, Finished, TracedPositions, trace_completions
from fsd_collectors.collection.measures import HiddenStates, Measures, Width
from fsd_collectors.collection.on_policy import DraftedTokens, Drafts, OnPolicy, Rounds
from fsd_collectors.manifest import Manifest
from fsd_collectors.schema import ROUNDS_BACK, Column
from fsd_common.errors import UnfinishedError
from fsd_common.progress.base import Advance
from fsd_decoding.config import DecodingConfig
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result, attach_finished
from fsd_decoding.loading import ModelSource
from fsd_decoding.observers.round_record import Observer
from fsd_decoding.workers.model_workers import Sources
from fsd_decoding.workers.models import check_identity, decoder_of
from fsd_decoding.workers.pool import WorkerPool


@dataclass(frozen=True)
class Portion:
    """Problems that are written together: their ids and encoded prompts."""

    number: int
    ids: Sequence[int]
    prompts: Sequence[list[int]]

    def __str__(self) -> str:
        return f"portion {self.number} of {len(self.ids)} problems"


@dataclass(frozen=True)
class ReadPortion:
    """The texts of a portion, with its measured positions along the target, or its rounds and drafted tokens."""

    results: Sequence[Result]
    along_target: TracedPositions | None = None
    on_policy: tuple[Rounds, DraftedTokens] | None = None


@dataclass(frozen=True)
class Reading:
    """How portions are read.

    Args:
        drafting: whether texts are decoded under a rule that drafts, and measured on-policy.
        max_new_tokens, stop: the task's.
        batch_size: completions decoded at once.
    """

    measures: Measures
    drafting: bool
    max_new_tokens: int
    stop: tuple[str, ...]
    batch_size: int

    def read(
        self, decoder: SpeculativeDecoder, states: HiddenStates | None, advance: Advance, portion: Portion
    ) -> ReadPortion:
        """Decodes a portion's problems and measures what both models say.

        Args:
            states: hidden states of the draft to keep; entered as a context manager.

        Raises:
            UnfinishedError: see `SpeculativeDecoder.generate`.
        """
        with attach_finished({}, self.batch_size):
            if self.drafting:
                observer = OnPolicy(self.measures, states)
                results = self._decode(decoder, portion, advance, observer)
                return ReadPortion(results, on_policy=observer.collect())
            results = self._decode(decoder, portion, advance)
            texts = [Completion.of(*each) for each in zip(portion.ids, portion.prompts, results, strict=True)]
            return ReadPortion(results, trace_completions(decoder, texts, self.measures, self.batch_size, states))

    def _decode(
        self, decoder: SpeculativeDecoder, portion: Portion, advance: Advance, observer: Observer | None = None
    ) -> list[Result]:
        return decoder.generate(
            portion.prompts, self.max_new_tokens, batch_size=self.batch_size, ids=portion.ids, stop=self.stop,
            on_finish=lambda index, result: advance(1), observer=observer,
        )  # fmt: skip


@dataclass(frozen=True)
class PortionJob:
    """What a worker needs to read portions as this process does.

    Args:
        draft: which of the sources' drafts.
        identity: of the models, see `texts_identity`.
        hidden: width of the hidden states to keep, see `HiddenStates`.
        calls: forward passes whose hidden states are kept.
    """

    sources: Sources
    draft: ModelSource | None
    identity: str
    decoding: DecodingConfig
    reading: Reading
    hidden: Width | None
    calls: int


def read_in_worker(job: PortionJob, portion: Portion) -> ReadPortion | UnfinishedError:
    """Reads a portion; called in a worker."""
    loaded = decoder_of(job.sources, job.draft)
    check_identity(loaded, job.identity)
    decoder = loaded.reconfigured(job.decoding)
    states = None if job.hidden is None else HiddenStates(decoder.draft, job.hidden, decoder.seed, job.calls)
    try:
        with states or nullcontext():
            return job.reading.read(decoder, states, lambda done: None, portion)
    except UnfinishedError as error:
        return error


def read_in_workers(
    pool: WorkerPool, job: PortionJob, portions: Sequence[Portion]
) -> Iterator[tuple[Portion, ReadPortion]]:
    """Yields portions as workers have read them, in their order.

    At most two for each worker are begun beyond those that were yielded: what is read ahead of a slow one takes
    memory, and is lost with this process.

    Raises:
        UnfinishedError: in the place of the portion that could not be read to its end.
    """
    early: dict[int, ReadPortion | UnfinishedError] = {}
    yielded, ahead = 0, 2 * pool.workers

    def begun() -> Iterator[Portion | None]:
        for place, portion in enumerate(portions):
            while place >= yielded + ahead:
                yield None
            yield portion

    for read, outcome in pool.run(partial(read_in_worker, job), begun()):
        early[read.number] = outcome
        while yielded < len(portions) and (following := portions[yielded]).number in early:
            if isinstance(found := early.pop(following.number), UnfinishedError):
                raise found
            yield following, found
            yielded += 1


Array = NDArray[Any]


@dataclass(frozen=True)
class Completions:
    """A portion's problems and their completions; all sequences have one entry for each."""

    manifest: Manifest
    problems: Sequence[int]  # ids
    splits: Sequence[str]
    prompts: Sequence[Sequence[int]]
    results: Sequence[Finished]
    correct: Sequence[bool | None]

    def table(self, **more: Sequence[int]) -> pa.Table:
        """Returns the table of completions.

        Args:
            more: further columns of it.
        """
        results = self.results
        each = {name: [getattr(r, name) for r in results] for name in ("tokens", "text", "finish_reason", "emitted")}
        counts = {
            "rounds": [r.rounds for r in results],
            "proposed": [r.drafted for r in results],
            "accepted": [r.accepted for r in results],
            "prompt_tokens": [len(prompt) for prompt in self.prompts],
        }
        return _table(self._columns["completions"], self._repeat(np.arange(len(results))) | each | counts | more)

    def along_target(self, owner: Array, position: Array, measured: dict[str, Array], states: Array | None) -> pa.Table:
        """Returns the table of tokens of traces along the target.

        Args:
            owner: (N,) index of the completion.
            position: (N,) position in the completion, from 0.
            measured: (N,) each, by column.
            states: (N, width) hidden states.
        """
        always = np.ones(len(owner), dtype=np.bool_)
        facts = {"position": position, "decided": always, "in_text": always, "draft_hidden": states}
        return _table(self._columns["tokens"], self._repeat(owner) | facts | measured)

    def rounds(self, rounds: Rounds) -> pa.Table:
        """Returns the table of rounds."""
        place = {"round": rounds.number, "position": self._in_completion(rounds)}
        copied = ("proposed", "accepted", "batch", "draft_seconds", "verify_seconds")
        return _table(
            self._columns["rounds"],
            self._repeat(rounds.owner) | place | {name: getattr(rounds, name) for name in copied},
        )

    def on_policy(self, rounds: Drafts, drafted: DraftedTokens, measured: dict[str, Array]) -> pa.Table:
        """Returns the table of tokens drafted in decoding; `measured` is `drafted.measured` by column."""
        at = drafted.round_
        position = self._in_completion(rounds)[at] + drafted.place
        accepted = rounds.accepted[at]
        history = {f"accepted_{back}_back": rounds.accepted_back(back)[at] for back in range(1, ROUNDS_BACK + 1)}
        place = {
            "position": position,
            "round": rounds.number[at],
            "draft_position": drafted.place,
            "accepted": drafted.place < accepted,
            "decided": drafted.place <= accepted,
            "in_text": position < np.array([r.emitted for r in self.results])[rounds.owner[at]],
            "draft_hidden": drafted.states,
        }
        return _table(self._columns["tokens"], self._repeat(rounds.owner[at]) | place | history | measured)

    @cached_property
    def _columns(self) -> dict[str, tuple[Column, ...]]:
        return self.manifest.tables

    def _in_completion(self, rounds: Drafts) -> Array:
        """Returns the positions in their completions where rounds begin."""
        lengths = np.array([len(prompt) for prompt in self.prompts])
        places: Array = rounds.position - lengths[rounds.owner]
        return places

    def _repeat(self, owner: Array) -> dict[str, Any]:
        """Returns the columns that all rows of a completion share, for rows of the completions `owner`."""
        indices = pa.array(owner)
        run = pa.repeat(self.manifest.run, len(owner))
        return {"run": run} | {name: values.take(indices) for name, values in self._shared.items()}

    @cached_property
    def _shared(self) -> dict[str, pa.Array]:
        return {
            "problem": pa.array(self.problems, pa.int64()),
            "split": pa.array(self.splits, pa.string()),
            "correct": pa.array(self.correct, pa.bool_()),
        }


def _table(columns: Sequence[Column], values: Mapping[str, Any]) -> pa.Table:
    """Builds a table; columns that `values` lacks are null."""
    count = len(values["problem"])
    arrays = [_array(c, values[c.name]) if c.name in values else pa.nulls(count, c.type) for c in columns]
    return pa.Table.from_arrays(arrays, names=[c.name for c in columns])


def _array(column: Column, values: Any) -> pa.Array:
    if not isinstance(values, np.ndarray):
        return values if isinstance(values, pa.Array) else pa.array(values, column.type)
    if values.ndim == 2:
        kind = column.type.value_type
        return pa.FixedSizeListArray.from_arrays(
            pa.array(values.ravel().astype(kind.to_pandas_dtype())), values.shape[1]
        )
    whole = np.ma.getdata(values).astype(column.type.to_pandas_dtype())
    return pa.array(whole, column.type, mask=np.ma.getmaskarray(values) if np.ma.is_masked(values) else None)
