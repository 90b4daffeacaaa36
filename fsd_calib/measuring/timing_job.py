"""Timing in fresh processes, one after the other, each of which loads the models anew."""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch

from fsd_calib.engines.base import DecodingRequest, EngineSource, KeyedPrompt
from fsd_calib.measuring.interleaved import WALL, WALL_AND_CPU, Until, measure_speeds
from fsd_calib.measuring.speed import TimedSpeeds, pool_processes
from fsd_calib.tasks.base import Problem
from fsd_common.errors import UsageError
from fsd_common.files import naming
from fsd_common.progress.base import Progress
from fsd_decoding.graphs.callers import Compile
from fsd_decoding.loading import is_placed
from fsd_decoding.profile.setting import Setting

Argument = TypeVar("Argument")
Returned = TypeVar("Returned")

_SERVE = f"from {__name__} import serve; serve()"


def in_fresh_process(work: Callable[[Argument], Returned], argument: Argument) -> Returned:
    """Returns `work(argument)`, computed in a new interpreter.

    `multiprocessing` is not used, since it starts a process by running the caller's script again, and with it a whole
    calibration where the script is not guarded by `if __name__ == "__main__"`.

    Args:
        work: A module's function; its argument and its result are pickled.

    Raises:
        UsageError: `work` raised an exception, or the process died.
    """
    with TemporaryDirectory() as folder:
        request, response = Path(folder, "request"), Path(folder, "response")
        with naming("the temporary file", request):
            request.write_bytes(pickle.dumps((work, argument)))
        command = [sys.executable, "-P", "-c", _SERVE, str(request), str(response)]
        process = subprocess.run(
            command, env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace",
        )  # fmt: skip
        if process.returncode:
            raise UsageError(_reason(process.returncode, process.stdout))
        returned: Returned = pickle.loads(response.read_bytes())
        return returned


def serve() -> None:
    """Runs in the fresh process: reads the request, and writes the response."""
    request, response = map(Path, sys.argv[1:])
    work, argument = pickle.loads(request.read_bytes())
    try:
        returned = work(argument)
    except UsageError as error:
        sys.exit(" ".join(str(error).split()))
    response.write_bytes(pickle.dumps(returned))


def _environment() -> dict[str, str]:
    """Returns an environment with this process's module path, and no other: hence `-P` too."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def _reason(code: int, output: str) -> str:
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name} (out of memory, for instance)"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with exit code {code}"


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
                    "reuses what was decoded, or time in this process with --timing run"
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
