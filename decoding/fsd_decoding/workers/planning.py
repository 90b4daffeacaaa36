"""How many workers help, and how many fit."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from fsd_common.errors import UsageError
from fsd_decoding.loading import default_device
from fsd_decoding.workers.sources import Sources

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
        _check_gpus_left(given, sources, capacity)
        if not capacity.fits(given, gpus):
            most = _most_that_fit(given, capacity, gpus)
            raise UsageError(
                f"workers is {given}, and besides this process at most {most if most > 1 else 'none'} fit into memory; "
                f"the way out is {most if most > 1 else 1}, or a smaller batch size"
            )
        return given
    helpful = gpus if _device(sources.device) == "cuda" else cores()
    return max(_most_that_fit(min(helpful, capacity.problems // capacity.rows), capacity, gpus), 1)


def _check_gpus_left(given: int, sources: Sources, capacity: Capacity) -> None:
    """UsageError: processes do not share GPUs, and fewer are left than so many workers take."""
    gpus, each = len(gpu_ids(sources)), capacity.gpus_each
    if gpus and each and given > (left := len(worker_gpus(sources, capacity))):
        raise UsageError(
            f"workers is {given}, and each process takes {each} of the {gpus} GPUs for itself, this one too, which "
            f"leaves room for {left}; {f'give {left}' if left > 1 else 'leave workers out, as one is no faster'}"
        )


class ClusterShare(NamedTuple):
    """The workers on a cluster, and what each requests."""

    workers: int
    cpus: int
    gpus: int


def cluster_share(
    given: int | None, nodes: Sequence[tuple[int, int]], device: str | None, gpus_each: int = 1
) -> ClusterShare:
    """Returns the workers on a cluster: those given, else as many as its GPUs, or CPUs where models are on CPUs, give.

    On GPUs each requests `gpus_each` of them and a CPU, else as many CPUs as let all of them find a place at once.

    Args:
        nodes: CPUs and GPUs of each machine.
        device: where all processes are to have the models; None: on GPUs, where this process has one.

    Raises:
        UsageError: more are given than find a place, or either the cluster or this process alone has GPUs.
    """
    cpus, gpus = (sum(node[kind] for node in nodes) for kind in (0, 1))
    on_gpus = _device(device) == "cuda"
    if on_gpus and not gpus:
        raise UsageError(f"the device is {device or 'cuda'}, and the Ray cluster has no GPUs; give --device cpu")
    if device is None and gpus and not on_gpus:
        raise UsageError(
            f"the Ray cluster has {gpus} GPUs and this process none, though it decodes and measures speeds, too: start "
            "it on a machine with a GPU, or give --device cpu"
        )
    places = sum(node // gpus_each for _, node in nodes) if on_gpus else cpus
    count = given or places
    if not 1 <= count <= places:
        kind = "CPUs" if not on_gpus else "GPUs" if gpus_each == 1 else f"times {gpus_each} GPUs on one machine"
        raise UsageError(f"workers is {count}, and the Ray cluster has {places} {kind}; give at most as many workers")
    if on_gpus:
        return ClusterShare(count, 1, gpus_each)
    most = max(size for size in range(1, cpus + 1) if sum(node // size for node, _ in nodes) >= count)
    return ClusterShare(count, most, 0)


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
