"""Decoding in worker processes, each with an engine of its own, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from fsd_calib.engines.base import DecodingRequest, EngineSource
from fsd_calib.engines.cache_key import CacheKey
from fsd_common.errors import UnfinishedError, UsageError
from fsd_decoding.engine.result import Result
from fsd_decoding.graphs.callers import Compile
from fsd_decoding.workers.model_workers import ModelWorkers
from fsd_decoding.workers.models import OTHER_MODELS
from fsd_decoding.workers.pool import batch_sizes


@dataclass(frozen=True)
class Batch:
    """Prompts for one worker.

    Attributes:
        request: The prompts, with their setting.
        places: Of the prompts in the list of all.
        key: Of their texts, in the process that hands them out.
        compile: How that process calls rounds.
    """

    request: DecodingRequest
    places: tuple[int, ...]
    key: CacheKey
    compile: Compile = False

    def __str__(self) -> str:
        first, *others = (prompt.id for prompt in self.request.prompts)
        and_others = f" and {len(others)} others" if others else ""
        return f"the batch of problem {first}{and_others} under {self.request.setting}"


Decoded = tuple[dict[int, Result], UnfinishedError | None]
"""The results of a batch by place, and the error that ended it early, if one did."""


class EngineWorkers:
    """Decodes in worker processes what one calibration asks for.

    Args:
        models: the processes.
        source: what they make their engines of.
        decode: what a worker is called with, a module's function; None: `decode_batch`.
    """

    def __init__(
        self, models: ModelWorkers, source: EngineSource,
        decode: Callable[[EngineSource, Batch], Decoded] | None = None,
    ) -> None:  # fmt: skip
        self.models, self._source, self._decode = models, source, decode or decode_batch

    def with_source(self, **changes: object) -> EngineWorkers:
        """Returns the same workers with another source."""
        return EngineWorkers(self.models, replace(self._source, **changes), self._decode)  # type: ignore[type-var]

    @property
    def due(self) -> bool:
        """Whether workers are to decode what comes next."""
        return self.models.due

    def decoding_here(self) -> AbstractContextManager[Callable[[], bool]]:
        """See `ModelWorkers.decoding_here`."""
        return self.models.decoding_here()

    def results(
        self, request: DecodingRequest, key: CacheKey, compile: Compile, claimed: Iterator[int]
    ) -> Iterator[tuple[int, Result]]:
        """Yields places of prompts with their results, batch by batch as they are done.

        Args:
            request: The prompts, and how many a worker decodes at once.
            key, compile: See `Batch`.
            claimed: Places of the prompts to decode; drawn when a worker is free for them.

        Raises:
            UsageError: see `Engine.decode` and `WorkerPool.run`.
        """
        prompts = request.prompts
        sizes = batch_sizes(len(prompts), request.batch_size, self.models.pool.workers)  # as if all were claimed
        cut = (tuple(islice(claimed, size)) for size in sizes)
        batches = (
            Batch(request._replace(prompts=[prompts[place] for place in places]), places, key, compile)
            for places in cut if places
        )  # fmt: skip
        for _, (results, error) in self.models.pool.run(partial(self._decode, self._source), batches):
            yield from results.items()
            if error is not None:
                raise error


def decode_batch(source: EngineSource, batch: Batch) -> Decoded:
    """Decodes a batch; called in a worker."""
    request = batch.request
    engine = source.engine(request.setting.draft)
    engine.call_rounds(batch.compile)
    if engine.key(request.setting, request.seed) != batch.key:
        raise UsageError(OTHER_MODELS)
    finished: dict[int, Result] = {}

    def keep(index: int, result: Result) -> None:
        finished[batch.places[index]] = result

    try:
        engine.decode(request, on_finish=keep)
    except UnfinishedError as error:
        return finished, error
    return finished, None
