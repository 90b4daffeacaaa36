"""Worker processes that load a pair of models, and when they are worth starting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from fsd_common.errors import UsageError
from fsd_decoding.workers.backends import LocalWorkers, RayWorkers
from fsd_decoding.workers.planning import Capacity, cluster_share, cores, worker_gpus, workers_for
from fsd_decoding.workers.pool import WorkerPool
from fsd_decoding.workers.ray_cluster import cluster_nodes, connected
from fsd_decoding.workers.sources import Sources

_STARTING = 5.0  # seconds that it takes to start workers: imports, and loading small models


@dataclass
class ModelWorkers:
    """A pool whose workers load the models of some sources.

    Attributes:
        after: seconds that the process that hands out work decodes itself before it starts workers. Starting them
            takes about as long: what decodes for less does not wait for them, and what decodes for longer takes at
            most twice the time of either choice made in advance.
        spent: seconds that it has decoded so far.
        threads: CPU threads of a worker on this machine; None: as many as this process has.
        gpus: how many GPUs they have, all together; 0: they are on the CPU, or where the models of this process are.
    """

    pool: WorkerPool
    sources: Sources
    after: float = 0.0
    spent: float = 0.0
    threads: int | None = None
    gpus: int = 0

    @property
    def due(self) -> bool:
        """Whether workers are to decode what comes next."""
        return self.spent >= self.after

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """Inside, this process computes with as many threads as a worker has."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    @contextmanager
    def decoding_here(self) -> Iterator[Callable[[], bool]]:
        """Counts the time in which this process decodes itself; yields a function that says when workers are due."""
        began = time.perf_counter()
        try:
            yield lambda: self.spent + time.perf_counter() - began >= self.after
        finally:
            self.spent += time.perf_counter() - began


@contextmanager
def open_workers(
    given: int | None,
    ray: str | None,
    sources: Sources,
    capacity: Capacity,
    note: Callable[[str], None] = lambda line: None,
) -> Iterator[ModelWorkers | None]:
    """Yields workers that are started when they are due, and ends them afterwards; None: this process decodes alone.

    Args:
        given: how many; None: as many as help, see `workers_for` and `cluster_share`.
        ray: address of a Ray cluster to run them on.
        note: receives a line where a worker has died.

    Raises:
        UsageError: they cannot be had; see `workers_for`, `cluster_share` and `connected`.
    """
    opened = (
        _on_this_machine(given, sources, capacity, note)
        if ray is None
        else _on_cluster(given, ray, sources, capacity, note)
    )
    with opened as workers:
        yield workers


@contextmanager
def _on_this_machine(
    given: int | None, sources: Sources, capacity: Capacity, note: Callable[[str], None]
) -> Iterator[ModelWorkers | None]:
    count = workers_for(given, sources, capacity)
    if count == 1:
        yield None
        return
    threads, places = max(cores() // count, 1), worker_gpus(sources, capacity)
    with WorkerPool(count, LocalWorkers(threads, places), note) as pool:
        gpus = min(count, len(places)) * max(capacity.gpus_each, 1)
        yield ModelWorkers(pool, sources, 0.0 if given else _STARTING, threads=threads, gpus=gpus)


@contextmanager
def _on_cluster(
    given: int | None, ray: str, sources: Sources, capacity: Capacity, note: Callable[[str], None]
) -> Iterator[ModelWorkers]:
    sources.check_loadable(f"ray is {ray!r}", "a worker process", "leave ray out")
    if sources.spread:
        raise UsageError(
            f"ray is {ray!r}, and a device map spreads a model over GPUs, of which a worker on a cluster is given one: "
            "leave one of the two out"
        )
    with connected(ray) as module:
        share = cluster_share(given, cluster_nodes(module), sources.device, max(capacity.gpus_each, 1))
        with WorkerPool(share.workers, RayWorkers(module, share.cpus, share.gpus), note) as pool:
            yield ModelWorkers(pool, sources, gpus=share.workers * share.gpus)
