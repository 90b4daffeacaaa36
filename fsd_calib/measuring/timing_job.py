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
    """Where the target and its drafts are loaded from, as arguments of `SpeculativeDecoder.from_pretrained`."""

    target: ModelSource
    drafts: tuple[ModelSource, ...]
    device: str | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class TimingJob:
    """All that a process needs to time what another one chose.

    Attributes:
        keys: Cache keys of the configurations where they were chosen.
        early_stop: A predictor's folder, and its costs.
        threads: Number of torch threads.
        order: Seed of the order of turns.
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
    threads: int
    order: int = 0


def time_in_fresh_processes(
    job: TimingJob, processes: int, models: Sequence[Any], progress: Progress
) -> TimedSpeeds[Configuration]:
    """Runs the whole job in each of several processes, with the turns in another order.

    Args:
        models: This process's own models, moved off the GPU meanwhile.

    Raises:
        UsageError: A process died or failed; the others are discarded.
    """
    measurements = []
    with _models_on_cpu(models), progress.step(f"timing in {processes} fresh processes", processes) as advance:
        for order in range(processes):
            try:
                measurements.append(in_fresh_process(run_job, replace(job, order=order)))
            except UsageError as error:
                raise UsageError(
                    f"timing in fresh process {order + 1} of {processes} failed: {error}; repeat the command, which "
                    "reuses what was decoded, or time in this process with --timing run"
                ) from error
            advance(1)
    return pool_processes(measurements)


def run_job(job: TimingJob) -> TimedSpeeds[Configuration]:
    """Runs the job; called in a fresh process."""
    torch.set_num_threads(job.threads)
    with ResultCache(None) as store:
        decode = _decode(job, store)
        if [decode.key(configuration).json for configuration in job.configurations] != list(job.keys):
            raise UsageError("the models or library versions have changed since the calibration")

        def emitted(configuration: Configuration, problems: Sequence[Problem]) -> int:
            return decode.emitted(configuration, problems, job.streams)

        return measure_speeds(
            emitted, job.configurations, job.problems, streams=job.streams, confidence=job.confidence, seed=job.order
        )


def _decode(job: TimingJob, store: ResultCache) -> CachedDecoder:
    decoder = _decoder(job, job.sources.target, job.sources.drafts[0])
    draft_names = {c.draft for c in job.configurations} - {None}  # a draft's name is what it is loaded from
    drafts = {name: _decoder(job, decoder.target, name, decoder.tokenizer) for name in draft_names if name is not None}
    task = Task("timed", tuple(job.problems), job.max_new_tokens, job.stop, "", grader=_ungraded)
    decode = CachedDecoder(decoder, task, store, drafts=drafts)
    if job.early_stop is None:
        return decode
    from fsd_predictors.from_profile import stop_policy

    folder, info = job.early_stop
    return decode.stopping_early(
        {name: stop_policy(folder, info, name, decoder.draft, decoder.tokenizer) for name in info.rates}
    )


def _decoder(job: TimingJob, target: Any, draft: ModelSource, tokenizer: Any = None) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(
        target, draft, device=job.sources.device, dtype=job.sources.dtype, seed=job.seed, tokenizer=tokenizer,
        sampling=job.sampling, on=job.criterion.on, within_support=job.criterion.within_support,
    )  # fmt: skip


def _ungraded(reference: str, text: str) -> bool:
    raise AssertionError("timed decodings are not graded")


@contextmanager
def _models_on_cpu(models: Sequence[Any]) -> Iterator[None]:
    """Moves models off the GPU, which may have room for one pair only, and back again."""
    moved = [(model, model.device) for model in models if model.device.type != "cpu"]
    for model, _ in moved:
        model.to("cpu")
    if moved and torch.cuda.is_available():
        torch.cuda.empty_cache()
    try:
        yield
    finally:
        for model, device in moved:
            model.to(device)
