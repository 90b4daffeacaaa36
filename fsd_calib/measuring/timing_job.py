"""Timing in fresh processes, one after the other, each of which loads the models anew."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from fsd_calib.engines.base import DecodingRequest, EngineSource, KeyedPrompt
from fsd_calib.measuring.fresh_process import in_fresh_process
from fsd_calib.measuring.interleaved import WALL, WALL_AND_CPU, Until, measure_speeds
from fsd_calib.measuring.speed import TimedSpeeds, pool_processes
from fsd_calib.tasks.base import Problem
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress
from fsd_decoding.graphs.callers import Compile
from fsd_decoding.loading import is_placed
from fsd_decoding.profile.setting import Setting


@dataclass(frozen=True)
class TimingJob:
    """All that a process needs to time what another one chose.

    Attributes:
        source: What a process makes its engines of.
        keys: Cache keys of the settings where they were chosen.
        seed: Of the texts.
        threads: Number of torch threads.
        compile: How rounds are called.
        order: Seed of the order of turns.
        seconds: Planned for each process, which times as long whatever it finds: its error is its own.
    """

    source: EngineSource
    problems: Sequence[Problem]
    settings: Sequence[Setting]
    keys: list[str]
    seed: int
    streams: int
    confidence: float
    threads: int
    compile: Compile = False
    order: int = 0
    seconds: float = math.inf


def time_in_fresh_processes(
    job: TimingJob, processes: int, models: Sequence[Any], progress: Progress
) -> TimedSpeeds[Setting]:
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
                    f"reuses what was decoded, or time in this process with {named('timing')} run"
                ) from error
            advance(1)
    return pool_processes(measurements)


def run_job(job: TimingJob) -> TimedSpeeds[Setting]:
    """Runs the job; called in a fresh process."""
    torch.set_num_threads(job.threads)
    engines = {setting: job.source.engine(setting.draft) for setting in job.settings}
    for engine in engines.values():
        engine.call_rounds(job.compile)
    if [engines[setting].key(setting, job.seed).json for setting in job.settings] != job.keys:
        raise UsageError("the models or library versions have changed since the calibration")

    def emitted(setting: Setting, problems: Sequence[Problem]) -> int:
        prompts = [KeyedPrompt(problem.id, problem.prompt) for problem in problems]
        return engines[setting].emitted(DecodingRequest(setting, job.seed, prompts, job.streams))

    own_cpu = all(engine.on_own_cpu for engine in engines.values())
    return measure_speeds(
        emitted, job.settings, job.problems, streams=job.streams, confidence=job.confidence,
        until=Until(job.seconds), briefly=alone_among(job.settings),
        clocks=WALL_AND_CPU if own_cpu else WALL, seed=job.order,
    )  # fmt: skip


def alone_among(settings: Sequence[Setting]) -> list[Setting]:
    """Returns the target alone where it is one of several: it is the slowest, and no choice depends on its speed."""
    return [c for c in settings if c.rule == "target"] if len(settings) > 1 else []


@contextmanager
def _models_on_cpu(models: Sequence[Any]) -> Iterator[None]:
    """Moves models off the GPU, which may have room for one pair only, and back again; placed ones stay."""
    places = [(model, next(model.parameters()).device) for model in models]
    moved = [(model, device) for model, device in places if device.type != "cpu" and not is_placed(model)]
    for model, _ in moved:
        model.to("cpu")
    if moved and torch.cuda.is_available():
        torch.cuda.empty_cache()
    try:
        yield
    finally:
        for model, device in moved:
            model.to(device)
