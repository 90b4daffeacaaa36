"""Tokens per second through the cache, of one process and of several, taking turns; and what starting them takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from fsd_calib.engines.configuration import Configuration
from fsd_calib.engines.own.engine import OwnEngine
from fsd_calib.engines.own.source import source_of
from fsd_calib.engines.workers import EngineWorkers
from fsd_calib.measuring.evaluator import CachedDecoder
from fsd_calib.measuring.result_cache import ResultCache
from fsd_calib.tasks.base import Problem
from fsd_decoding.workers.model_workers import ModelWorkers, open_workers
from fsd_decoding.workers.planning import Capacity
from lib.common.timing import Run, Spread, rates, speed_up, take_turns
from lib.workers.pairs_on_disk import PairOnDisk

SETTING = Configuration("fsd-coupled", "js", 5, 0.1)
BATCH = 32


def decode_with(pair: PairOnDisk, workers: ModelWorkers | None, problems: Sequence[Problem]) -> Run:
    """Decodes problems into an empty cache, as a calibration does."""
    over = None if workers is None else EngineWorkers(workers, source_of(pair.decoder, pair.task, pair.sources))
    with ResultCache(None) as store:
        decode = CachedDecoder(OwnEngine(pair.decoder, pair.task), pair.task, store, BATCH, workers=over)
        began = time.perf_counter()
        decode(SETTING, problems)
        return Run(decode.decoded_tokens, time.perf_counter() - began)


def speeds(pair: PairOnDisk, counts: Sequence[int], piece: int, repeats: int) -> dict[str, Any]:
    """Returns tokens/s by number of workers (1: this process, with all threads), and their ratios to one.

    Args:
        piece: problems decoded by one call.
    """
    problems = pair.task.problems
    work = [problems[at : at + piece] for at in range(0, len(problems) - piece + 1, piece)]
    with ExitStack() as opened:
        contenders: dict[str, Callable[[Sequence[Problem]], Run]] = {}
        for count in counts:
            workers = opened.enter_context(open_workers(count, None, pair.sources, Capacity(len(problems), BATCH)))
            contenders[str(count)] = lambda some, workers=workers: decode_with(pair, workers, some)  # type: ignore[misc]
        for warm_up in contenders.values():
            warm_up(problems[:BATCH])
        runs = take_turns(contenders, work, repeats)
    one = runs[str(counts[0])]
    return {
        "pair": pair.name, "problems": len(problems), "piece": piece, "repeats": repeats,
        "tokens_per_second": {name: rates(run) for name, run in runs.items()},
        "ratio_to_one": {name: speed_up(run, one) for name, run in runs.items()},
    }  # fmt: skip


def starting(pair: PairOnDisk, workers: int, repeats: int) -> dict[str, Any]:
    """Returns the seconds from an order to all workers until all have decoded their first batch, and their second."""
    first, second = [], []
    for _ in range(repeats):
        with open_workers(workers, None, pair.sources, Capacity(1000, BATCH)) as opened:
            some = pair.task.problems[: BATCH * workers]
            first.append(decode_with(pair, opened, some).seconds)
            second.append(decode_with(pair, opened, some).seconds)
    return {"workers": workers, "first_batch_seconds": Spread.of(first), "second_batch_seconds": Spread.of(second)}
