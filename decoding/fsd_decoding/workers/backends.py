"""Where workers run: processes of this machine, by joblib's loky, or actors of a Ray cluster.

Each worker has an executor or actor of its own, so that the death of one is the loss of its own batch alone. joblib's
`Parallel` hands out work through one executor for all, which loky breaks as a whole; its Ray backend can return no
result before the last one, and deals work out in turn, to busy workers too.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import resource_tracker
from typing import Any, Protocol

from fsd_common.errors import UsageError
from fsd_common.interrupts import held_back, kept_from_children
from fsd_decoding.workers.serving import Served, open_standard_streams, prepare, serve

_OWN = "local"  # the address of a cluster that is started for this process
_ANY = "auto"  # the address of whichever cluster there is
_CLIENT = "ray://"  # before the address of a cluster that is reached through Ray's client
_ANSWER = 5.0  # seconds to wait for one


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Yields the module `ray`, connected to a cluster. A connection that was not there before is closed afterwards.

    Args:
        address: where the cluster is, as `ray.init` takes it.

    Raises:
        UsageError: Ray is not installed, there is no cluster at the address, or this process is connected to another.
    """
    if address == _OWN:
        _keep_to_itself()
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise UsageError(f"ray is {address!r}, and Ray is not installed; pip install 'ray>=2.60'") from error
    if ray.is_initialized():
        _check_address(ray, address)
        yield ray
        return
    check_answers(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=True)
    except Exception as error:  # bare where a node does not start within half a minute, as on a busy machine
        reason = " ".join(str(error).split())
        raise UsageError(f"ray is {address!r}, and no cluster can be used there: {reason}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _keep_to_itself() -> None:
    """Has a cluster that this process starts listen on this machine alone, and serve whoever has its token, which its
    own processes inherit.

    Whoever may use a cluster can run commands as its user. Ray reads these variables when it is imported; what the
    user has set is kept. Without clusters of several machines, as by default on Windows and macOS, the node's address
    is 127.0.0.1, and each server listens there.
    """
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def check_answers(address: str) -> None:
    """Raises UsageError where nothing listens at HOST:PORT, for which Ray itself looks for half a minute."""
    host, colon, port = address.removeprefix(_CLIENT).rpartition(":")
    if not colon:
        return  # such as "auto"
    try:
        socket.create_connection((host, int(port)), _ANSWER).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(
            f"ray is {address!r}, and no cluster answers there ({error}); start one with `ray start --head`, or give "
            "'local' for one on this machine"
        ) from error


def _check_address(ray: Any, address: str) -> None:
    own = ray.get_runtime_context().gcs_address
    if address != _ANY and _resolved(address.removeprefix(_CLIENT)) != own:
        raise UsageError(
            f"ray is {address!r}, and this process is connected to the cluster at {own} already; give {_ANY!r} to use "
            "that one, or call ray.shutdown() first"
        )


def _resolved(address: str) -> str:
    """HOST:PORT with the number of the host, where it has one."""
    host, _, port = address.rpartition(":")
    try:
        return f"{socket.gethostbyname(host)}:{port}" if host else address
    except OSError:
        return address


def cluster_nodes(ray: Any) -> list[tuple[int, int]]:
    """Returns the CPUs and GPUs of each machine of a cluster.

    Args:
        ray: the module, see `connected`.
    """
    alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
    return [(int(node.get("CPU", 0)), int(node.get("GPU", 0))) for node in alive]


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
        ray: the module, see `connected`.
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
