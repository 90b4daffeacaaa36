"""Worker processes that load a pair of models: from what, how many help and fit, and when they are worth starting."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.drafters.named import NamedDrafter
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.drafters.vllm_draft import VllmDraft
from fsd_decoding.loading import ModelSource, default_device, is_source
from fsd_decoding.model_options import USUAL_LOADING, Loading
from fsd_decoding.workers.backends import LocalWorkers, RayWorkers, cluster_nodes, connected
from fsd_decoding.workers.pool import WorkerPool

AnyDraft = ModelSource | Eagle | NGram | NamedDrafter | VllmDraft
"""A draft that other processes can load."""


@dataclass(frozen=True)
class Sources:
    """Where the target and its drafts are loaded from, as arguments of `SpeculativeDecoder.from_pretrained`."""

    target: ModelSource
    drafts: tuple[AnyDraft, ...]
    device: str | None = None
    dtype: str | None = None
    loading: Loading = USUAL_LOADING

    @property
    def loadable(self) -> bool:
        """Whether another process can load all models: none of them is a loaded one."""
        return not any(True for _ in self._loaded())

    @property
    def spread(self) -> bool:
        """Whether a device map, and not `device`, says where a model is."""
        return any(options.device_map is not None for options in (self.loading.target, self.loading.draft))

    def draft_named(self, name: ModelSource | None) -> AnyDraft:
        """Returns the draft of this name; models are named by what they are loaded from. None: the first."""
        if name is None:
            return self.drafts[0]
        others = (draft for draft in self.drafts if isinstance(draft, Eagle | NGram | NamedDrafter))
        return next((draft for draft in others if draft.name == name), name)

    def check_loadable(self, setting: str, process: str, way_out: str) -> None:
        """Raises UsageError where a model cannot be loaded by another process.

        Args:
            setting: what asks for other processes, in words.
            process: such a process, in words.
            way_out: what to do instead of giving a path or hub id.
        """
        for role, model in self._loaded():
            raise UsageError(
                f"{setting}, and the {role} is a loaded {type(model).__name__}, which {process} cannot load: give its "
                f"path or hub id, or {way_out}"
            )

    def _loaded(self) -> Iterator[tuple[str, object]]:
        models = (("target", self.target), *(("draft", draft) for draft in self.drafts))
        return (
            (role, model)
            for role, model in models
            if not isinstance(model, NGram | Eagle | NamedDrafter | VllmDraft) and not is_source(model)
        )


RUNTIME = 600 << 20
"""Bytes of a worker besides models and what they compute: Python, torch and transformers, or a CUDA context."""


@dataclass(frozen=True)
class Capacity:
    """What limits the number of workers on this machine.

    Args:
        problems: all that there is to decode.
        rows: problems decoded at once by each.
        needed: bytes that one process needs of the device for that; None: unknown.
        free: bytes that the device has; None: unknown.
        gpus_each: GPUs that each process has to itself, the one that starts workers too; 0: processes share them.
    """

    problems: int
    rows: int
    needed: int | None = None
    free: int | None = None
    gpus_each: int = 0

    def fits(self, workers: int, gpus: int) -> bool:
        """Returns whether so many workers fit into memory, beside the process that starts them."""
        if self.needed is None or self.free is None:
            return True
        on_one_device = math.ceil(workers / max(gpus, 1))
        return self.needed + on_one_device * (self.needed + RUNTIME) <= self.free


def workers_for(given: int | None, sources: Sources, capacity: Capacity) -> int:
    """Returns the number of workers on this machine: those given, else as many as help; 1: no process is started.

    On a CPU a core decodes more in a process of its own than as one of a process's threads
    (docs/scaling.md has the figures), so there is one for each core; on GPUs one for each. There are no more than
    have their rows filled, or fit into memory. Beside models under a device map, which may fill all devices, and where
    it is unknown what they need, there is none by default.

    Raises:
        UsageError: several are given, and the models are loaded ones or do not fit into memory so often.
    """
    doubtful = sources.spread or not sources.loadable or capacity.needed is None
    if given == 1 or (given is None and doubtful):
        return 1
    gpus = len(gpu_ids(sources))
    if given is not None:
        sources.check_loadable(f"workers is {given}", "a worker process", "leave workers out")
        each = capacity.gpus_each
        if gpus and each and given > (left := len(worker_gpus(sources, capacity))):
            raise UsageError(
                f"workers is {given}, and each process takes {each} of the {gpus} GPUs for itself, this one too, which "
                f"leaves room for {left}; {f'give {left}' if left > 1 else 'leave workers out, as one is no faster'}"
            )
        if not capacity.fits(given, gpus):
            most = _most_that_fit(given, capacity, gpus)
            fit = f"at most {most} fit" if most > 1 else "fewer than two fit"
            raise UsageError(
                f"workers is {given}, and besides this process {fit} into memory; "
                f"{f'give {most}' if most > 1 else 'leave workers out'}, or a smaller batch size"
            )
        return given
    helpful = gpus if _device(sources.device) == "cuda" else cores()
    return max(_most_that_fit(min(helpful, capacity.problems // capacity.rows), capacity, gpus), 1)


def cluster_share(
    given: int | None, nodes: Sequence[tuple[int, int]], device: str | None, gpus_each: int = 1
) -> tuple[int, int, int]:
    """Returns the number of workers on a cluster, and how many CPUs and GPUs each requests.

    There are as many as are given, else as its GPUs, or CPUs where models are on CPUs, give. On GPUs each requests
    `gpus_each` of them and a CPU, else as many CPUs as let all of them find a place at once.

    Args:
        nodes: CPUs and GPUs of each machine.
        device: where all processes are to have the models; None: on GPUs, where this process has one.

    Raises:
        UsageError: more are given than find a place, or either the cluster or this process alone has GPUs.
    """
    cpus, gpus = (sum(node[kind] for node in nodes) for kind in (0, 1))
    on_gpus = _device(device) == "cuda"
    if on_gpus and not gpus:
        raise UsageError(
            f"the device is {device or 'cuda'}, and the Ray cluster has no GPUs; give {named('device')} cpu"
        )
    if device is None and gpus and not on_gpus:
        raise UsageError(
            f"the Ray cluster has {gpus} GPUs and this process none, though it decodes and measures speeds, too: start "
            f"it on a machine with a GPU, or give {named('device')} cpu"
        )
    places = sum(node // gpus_each for _, node in nodes) if on_gpus else cpus
    count = given or places
    if not 1 <= count <= places:
        kind = "CPUs" if not on_gpus else "GPUs" if gpus_each == 1 else f"times {gpus_each} GPUs on one machine"
        raise UsageError(f"workers is {count}, and the Ray cluster has {places} {kind}; give at most as many workers")
    if on_gpus:
        return count, 1, gpus_each
    most = max(size for size in range(1, cpus + 1) if sum(node // size for node, _ in nodes) >= count)
    return count, most, 0


def cores() -> int:
    """Returns the number of CPU cores that this process may use, also by the quota of a container."""
    from joblib import cpu_count  # imported late, as in `backends`: a program without workers does not need it

    count: int = cpu_count()
    return count


def gpu_ids(sources: Sources) -> tuple[str, ...]:
    """Returns the ids of the GPUs that workers are spread over, as CUDA_VISIBLE_DEVICES takes them; none where the
    device is not "cuda", such as "cpu" or one GPU alone, or a device map needs all GPUs in each worker."""
    if sources.spread or (sources.device or default_device()) != "cuda":
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(visible.split(",")) if visible else tuple(map(str, range(torch.cuda.device_count())))


def worker_gpus(sources: Sources, capacity: Capacity) -> tuple[str, ...]:
    """Returns the GPUs of each place that workers are spread over, as CUDA_VISIBLE_DEVICES takes them.

    Where processes do not share GPUs, the first place is that of the process that starts them, and is left out.
    """
    ids, each = gpu_ids(sources), capacity.gpus_each
    if not each:
        return ids
    return tuple(",".join(ids[first : first + each]) for first in range(each, len(ids) - each + 1, each))


def _device(device: str | None) -> str:
    return torch.device(device or default_device()).type


def _most_that_fit(workers: int, capacity: Capacity, gpus: int) -> int:
    """Returns the largest number up to `workers` that fits; 1 where no second process does."""
    return next((count for count in range(workers, 1, -1) if capacity.fits(count, gpus)), 1)


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
        count, cpus, gpus = cluster_share(given, cluster_nodes(module), sources.device, max(capacity.gpus_each, 1))
        with WorkerPool(count, RayWorkers(module, cpus, gpus), note) as pool:
            yield ModelWorkers(pool, sources, gpus=count * gpus)
