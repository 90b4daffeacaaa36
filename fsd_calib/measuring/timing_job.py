"""Timing in fresh processes, one after the other, each of which loads the models anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.evaluator import CachedDecoder
from fsd_calib.measuring.fresh_process import in_fresh_process
from fsd_calib.measuring.interleaved import measure_speeds
from fsd_calib.measuring.result_cache import ResultCache
from fsd_calib.measuring.speed import TimedSpeeds, pool_processes
from fsd_calib.progress import Progress
from fsd_calib.tasks.base import Problem, Task
from fsd_decoding.acceptance.proposal import Criterion
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.errors import UsageError
from fsd_decoding.loading import ModelSource
from fsd_decoding.profile.parts import EarlyStopInfo
from fsd_decoding.sampling import Sampling


@dataclass(frozen=True)
class Sources:
    """Where a target and its drafts are loaded from, and how, as `SpeculativeDecoder.from_pretrained` takes it."""

    target: ModelSource
    drafts: tuple[ModelSource, ...]
    device: str | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class Job:
    """All that a process must be told to time what another one chose.

    keys: what decides the configurations' texts where they were chosen. early_stop: a predictor's folder, and what it
    weighs. order: of the turns.
    """

    sources: Sources
    sampling: Sampling
    criterion: Criterion
    seed: int
    problems: Sequence[Problem]
    max_new_tokens: int
    stop: tuple[str, ...]
    configurations: Sequence[Configuration]
    keys: Sequence[str]
    early_stop: tuple[Path, EarlyStopInfo] | None
    streams: int
    confidence: float
    threads: int  # of torch
    order: int = 0


def time_in_fresh_processes(
    job: Job, processes: int, models: Sequence[Any], progress: Progress
) -> TimedSpeeds[Configuration]:
    """All of the job in each of so many processes, with the turns in another order.

    Args:
        models: this process's own, which make room for those of the others.

    Raises:
        UsageError: a process died or could not do it; then nothing is averaged.
    """
    measured = []
    with _making_room(models), progress.step(f"timing in {processes} fresh processes", processes) as advance:
        for order in range(processes):
            try:
                measured.append(in_fresh_process(timed, replace(job, order=order)))
            except UsageError as error:
                raise UsageError(
                    f"timing in fresh process {order + 1} of {processes} failed: {error}; the same command goes on "
                    "from what was decoded, and --timing run times without fresh processes"
                ) from error
            advance(1)
    return pool_processes(measured)


def timed(job: Job) -> TimedSpeeds[Configuration]:
    """What a fresh process does."""
    torch.set_num_threads(job.threads)
    with ResultCache(None) as store:
        decode = _decode(job, store)
        if [decode.key(configuration).json for configuration in job.configurations] != list(job.keys):
            raise UsageError("the models or versions here are no longer those that were calibrated")

        def emitted(configuration: Configuration, problems: Sequence[Problem]) -> int:
            return decode.emitted(configuration, problems, job.streams)

        return measure_speeds(
            emitted, job.configurations, job.problems, streams=job.streams, confidence=job.confidence, seed=job.order
        )


def _decode(job: Job, store: ResultCache) -> CachedDecoder:
    decoder = _decoder(job, job.sources.target, job.sources.drafts[0])
    named = {c.draft for c in job.configurations} - {None}  # by what they are loaded from
    drafts = {name: _decoder(job, decoder.target, name, decoder.tokenizer) for name in named if name is not None}
    task = Task("timed", tuple(job.problems), job.max_new_tokens, job.stop, "", grader=_ungraded)
    decode = CachedDecoder(decoder, task, store, drafts=drafts)
    if job.early_stop is None:
        return decode
    from fsd_predictors.from_profile import stop_policy

    folder, info = job.early_stop
    return decode.stopping_early(
        {name: stop_policy(folder, info, name, decoder.draft, decoder.tokenizer) for name in info.rates}
    )


def _decoder(job: Job, target: Any, draft: ModelSource, tokenizer: Any = None) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(
        target, draft, device=job.sources.device, dtype=job.sources.dtype, seed=job.seed, tokenizer=tokenizer,
        sampling=job.sampling, on=job.criterion.on, within_support=job.criterion.within_support,
    )  # fmt: skip


def _ungraded(reference: str, text: str) -> bool:
    raise AssertionError("what is timed is not graded")


@contextmanager
def _making_room(models: Sequence[Any]) -> Iterator[None]:
    """Off a GPU, which may have room for one pair alone, and back again."""
    away = [(model, model.device) for model in models if model.device.type != "cpu"]
    for model, _ in away:
        model.to("cpu")
    if away and torch.cuda.is_available():
        torch.cuda.empty_cache()
    try:
        yield
    finally:
        for model, place in away:
            model.to(place)
