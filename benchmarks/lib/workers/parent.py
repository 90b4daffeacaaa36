"""Where the process that hands out work becomes the limit: workers that return results and decode nothing."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fsd_calib.engines.own.engine import OwnEngine
from fsd_calib.engines.own.source import OwnEngineSource, source_of
from fsd_calib.engines.workers import Batch, DecodedBatch, EngineWorkers
from fsd_calib.measuring.evaluator import CachedDecoder
from fsd_calib.measuring.result_cache import ResultCache
from fsd_decoding.engine.result import Result
from fsd_decoding.workers.backends import LocalWorkers
from fsd_decoding.workers.model_workers import ModelWorkers
from fsd_decoding.workers.pool import WorkerPool
from lib.workers.pairs_on_disk import PairOnDisk
from lib.workers.speeds import BATCH, SETTING

_TEXT = "Tom has 24 apples and buys 18 more, so he has 24 + 18 = 42 apples. The answer is 42."
_RESULT = Result(_TEXT, list(range(60)), 12, 55, 48, 9, (0.05, 0.15), "eos")


def sleep(seconds: float, job: OwnEngineSource, batch: Batch) -> DecodedBatch:
    """Returns a result for every problem of a batch, after some seconds; called in a worker."""
    time.sleep(seconds)
    return DecodedBatch(dict.fromkeys(batch.places, _RESULT))


def results_per_second(pair: PairOnDisk, workers: int, seconds: float) -> dict[str, Any]:
    """Returns how many results a second are claimed, added to a cache on disk, and graded.

    Args:
        seconds: that a worker sleeps for a batch.
    """
    problems = pair.task.problems
    with TemporaryDirectory() as folder, WorkerPool(workers, LocalWorkers(1)) as pool:
        models = ModelWorkers(pool, pair.sources)
        over = EngineWorkers(models, source_of(pair.decoder, pair.task, pair.sources), partial(sleep, seconds))
        with ResultCache(Path(folder) / "cache") as store:
            decode = CachedDecoder(OwnEngine(pair.decoder, pair.task), pair.task, store, BATCH, workers=over)
            decode(SETTING, problems[: 4 * workers])  # starts them
            began = time.perf_counter()
            decode(SETTING, problems[4 * workers :])
            taken = time.perf_counter() - began
    count = len(problems) - 4 * workers
    return {"workers": workers, "sleep_seconds": seconds, "results": count, "results_per_second": count / taken}


def seconds_per_batch(workers: int, batches: int) -> float:
    """Returns the parent's seconds for a batch of no problems: sent, returned, and no more."""
    with WorkerPool(workers, LocalWorkers(1)) as pool:
        list(pool.run(abs, range(workers)))
        began = time.perf_counter()
        list(pool.run(abs, range(batches)))
        return (time.perf_counter() - began) / batches
