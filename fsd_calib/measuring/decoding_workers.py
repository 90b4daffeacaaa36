"""Decoding of a task's problems in worker processes, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from fsd_calib.measuring.decoding_job import DecodingJob
from fsd_calib.measuring.evaluator import CachedDecoder, Setting
from fsd_calib.measuring.result_cache import CacheQuery, ResultCache
from fsd_decoding.engine.result import Result
from fsd_decoding.errors import UnfinishedError, UsageError
from fsd_decoding.workers.batches import batch_sizes
from fsd_decoding.workers.model_workers import ModelWorkers
from fsd_decoding.workers.models import OTHER_MODELS


@dataclass(frozen=True)
class Batch:
    """Prompts for one worker, by their places in the list of all."""

    setting: Setting
    queries: dict[int, CacheQuery]
    batch_size: int

    def __str__(self) -> str:
        first, *others = (query.id for query in self.queries.values())
        and_others = f" and {len(others)} others" if others else ""
        return f"the batch of problem {first}{and_others} under {self.setting.configuration}"


@dataclass(frozen=True)
class DecodedBatch:
    """The results of a batch by place, and the error that ended it early, if one did."""

    results: dict[int, Result]
    error: UnfinishedError | None = None


class DecodingWorkers:
    """Decodes in worker processes what one calibration asks for.

    Args:
        decode: what a worker is called with, a module's function; None: `decode_batch`.
    """

    def __init__(
        self, models: ModelWorkers, job: DecodingJob,
        decode: Callable[[DecodingJob, Batch], DecodedBatch] | None = None,
    ) -> None:  # fmt: skip
        self.models, self._job, self._decode = models, job, decode or decode_batch

    def with_job(self, **changes: object) -> DecodingWorkers:
        """Returns the same workers with another job."""
        return DecodingWorkers(self.models, replace(self._job, **changes), self._decode)  # type: ignore[arg-type]

    def results(
        self, setting: Setting, queries: Sequence[CacheQuery], claimed: Iterator[int], batch_size: int
    ) -> Iterator[tuple[int, Result]]:
        """Yields places with their results, batch by batch as they are done.

        Args:
            claimed: places in `queries` to decode; drawn when a worker is free for them.
            batch_size: prompts that a worker decodes at once.

        Raises:
            UsageError: see `SpeculativeDecoder.generate` and `WorkerPool.run`.
        """
        sizes = batch_sizes(len(queries), batch_size, self.models.pool.workers)  # as if all were claimed
        batches = (Batch(setting, {i: queries[i] for i in islice(claimed, size)}, batch_size) for size in sizes)
        some = (batch for batch in batches if batch.queries)
        for _, decoded in self.models.pool.run(partial(self._decode, self._job), some):
            yield from decoded.results.items()
            if decoded.error is not None:
                raise decoded.error


_latest: tuple[DecodingJob, CachedDecoder] | None = None  # of this process, if it is a worker


def decode_batch(job: DecodingJob, batch: Batch) -> DecodedBatch:
    """Decodes a batch; called in a worker."""
    decode, setting, places = _decoder(job), batch.setting, list(batch.queries)
    decode.call_rounds(setting.compile)
    if decode.key(setting.configuration, setting.seed) != setting.key:
        raise UsageError(OTHER_MODELS)
    finished: dict[int, Result] = {}

    def keep(index: int, result: Result) -> None:
        finished[places[index]] = result

    try:
        decode.generate(
            setting.configuration, setting.seed, list(batch.queries.values()), batch.batch_size, on_finish=keep
        )
    except UnfinishedError as error:
        return DecodedBatch(finished, error)
    return DecodedBatch(finished)


def _decoder(job: DecodingJob) -> CachedDecoder:
    """The job's decoder, made anew where the last batch was of another job; models stay loaded."""
    global _latest
    if _latest is None or _latest[0] != job:
        _latest = job, job.decoder(ResultCache(None))
    return _latest[1]
