"""Where workers run: processes of this machine, by joblib's loky, or actors of a Ray cluster.

Each worker has an executor or actor of its own, so that the death of one is the loss of its own batch alone. joblib's
`Parallel` hands out work through one executor for all, which loky breaks as a whole; its Ray backend can return no
result before the last one, and deals work out in turn, to busy workers too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from typing import Any, Protocol

from fsd_common.interrupts import held_back, kept_from_children
from fsd_decoding.workers.serving import Served, open_standard_streams, prepare, serve

_REMOVED = "ignore:resource_tracker:UserWarning"
_TAKING = 2.0  # seconds that loky's thread has to take work: it takes milliseconds


class Worker(Protocol):
    """One process, which is started by the first work that it is sent."""

    def send(self, request: bytes) -> Future[Served]:
        """Sends work, see `serve`. The future fails only if the process dies, or cannot be started."""
        ...

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        ...


class Backend(Protocol):
    """Starts workers."""

    @property
    def deaths(self) -> tuple[type[Exception], ...]:
        """Exceptions of a future whose worker has died."""
        ...

    def worker(self, number: int) -> Worker:
        """Returns worker `number`, counted from 0."""
        ...


class LocalWorkers:
    """Workers on this machine.

    Args:
        threads: CPU threads of each.
        gpus: the ids of the GPUs that they are spread over; none: they see what this process sees.
    """

    deaths = (BrokenProcessPool,)

    def __init__(self, threads: int, gpus: tuple[str, ...] = ()) -> None:
        self._threads, self._gpus = threads, gpus

    def worker(self, number: int) -> Worker:
        environment = {"OMP_NUM_THREADS": str(self._threads)}
        if self._gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self._gpus[number % len(self._gpus)]
        return _Process(environment)


class _Process:
    """A process of joblib's loky, whose children do not run the caller's script again.

    Ctrl-C waits while loky starts it: a process without its instructions prints a traceback, and an executor that is
    half made cannot end it. The process itself would print one if Ctrl-C came before its first instruction.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._latest: Future[Served] | None = None
        open_standard_streams()  # loky flushes them, and would give their numbers to its pipes, see `prepare`
        with held_back():
            from joblib.externals.loky import ProcessPoolExecutor

            _start_trackers()  # which would let Ctrl-C through again if they began in `send`
            self._executor = ProcessPoolExecutor(
                max_workers=1, env=dict(environment), initializer=prepare, initargs=(os.getpid(),)
            )

    def send(self, request: bytes) -> Future[Served]:
        with held_back(), kept_from_children():
            self._latest = self._executor.submit(serve, request)
        return self._latest

    def stop(self) -> None:
        self._wait_until_taken()
        self._executor.shutdown(kill_workers=True)

    def _wait_until_taken(self) -> None:
        """Waits for loky's thread to take the latest work: it ends in a traceback where that is dropped before."""
        deadline = time.monotonic() + _TAKING
        while self._latest and not (self._latest.running() or self._latest.done()) and time.monotonic() < deadline:
            time.sleep(0.001)


def _start_trackers() -> None:
    """Starts the processes that remove the semaphores of a killed process. They need not warn that they do."""
    from joblib.externals.loky.backend import resource_tracker as of_loky

    sys.warnoptions.append(_REMOVED)
    try:
        of_loky.ensure_running()
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove(_REMOVED)


class RayWorkers:
    """Workers on a Ray cluster.

    Args:
        ray: the module, see `ray_cluster.connected`.
        threads: CPUs that each requests, and its threads.
        gpus: GPUs that each requests.
    """

    def __init__(self, ray: Any, threads: int, gpus: int) -> None:
        self._ray = ray
        self._options = {"num_cpus": threads, "num_gpus": gpus}
        errors = ray.exceptions
        self.deaths = (
            errors.RayActorError,
            errors.OutOfMemoryError,  # the machine ran low on memory, and Ray killed the actor before the system would
            errors.NodeDiedError,
            errors.ObjectLostError,  # the machine was lost between the end of the work and the fetching of its result
        )

    def worker(self, number: int) -> Worker:
        return _Actor(self._ray, self._options)


class _Actor:
    """An actor of Ray, with a process of its own. Ray ends it with the process that started it."""

    def __init__(self, ray: Any, options: Mapping[str, int]) -> None:
        self._ray, self._actor = ray, ray.remote(RayServer).options(**options).remote()

    def send(self, request: bytes) -> Future[Served]:
        future: Future[Served] = self._actor.serve.remote(request).future()
        return future

    def stop(self) -> None:
        self._ray.kill(self._actor)


class RayServer:
    """The class of Ray's actors."""

    def serve(self, request: bytes) -> Served:
        return serve(request)
