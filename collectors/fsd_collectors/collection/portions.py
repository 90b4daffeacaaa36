"""Portions: what both models say about the texts of some problems, read here or in a worker process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from fsd_collectors.collection.along_target import Completion, TracedPositions, trace_completions
from fsd_collectors.collection.hidden_states import HiddenStates, Width
from fsd_collectors.collection.measures import Measures
from fsd_collectors.collection.on_policy import DraftedTokens, OnPolicy, Rounds
from fsd_collectors.collection.protocols import Advance
from fsd_common.errors import UnfinishedError
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
        self, decoder: SpeculativeDecoder, states: HiddenStates | None, portion: Portion, advance: Advance
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
            return job.reading.read(decoder, states, portion, lambda done: None)
    except UnfinishedError as error:
        return error


def read_in_workers(
    pool: WorkerPool, job: PortionJob, portions: Sequence[Portion]
) -> Iterator[tuple[Portion, ReadPortion | UnfinishedError]]:
    """Yields portions as workers have read them, in their order.

    At most two for each worker are begun beyond those that were yielded: what is read ahead of a slow one takes
    memory, and is lost with this process.
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
            yield following, early.pop(following.number)
            yielded += 1
