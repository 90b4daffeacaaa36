"""Memory that a task takes, compared with what the device has before the models load; it decides the batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fsd_calib.config import MOST_AT_ONCE, RunConfig
from fsd_calib.tasks.base import Problem, Task
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.formatting import gigabytes
from fsd_decoding.loading import check_device, default_device, is_source
from fsd_decoding.memory import LOADED, ModelSize, UnknownSizeError, Workload, available, need
from fsd_decoding.requests import requests_for
from fsd_decoding.sampling import Sampling
from fsd_decoding.workers.model_workers import Capacity

SIZES = tuple(MOST_AT_ONCE >> halvings for halvings in range(MOST_AT_ONCE.bit_length()))
"""Batch sizes to choose from: 32, 16, … 1."""


@dataclass(frozen=True)
class MemoryPlan:
    """What a calibration, or a collection of traces, needs of its device.

    Args:
        need: bytes by what takes them, in words.
        rows: problems decoded at once at most: the batch size, or --serve-batch where that is larger.
        free: bytes that the device has; None: unknown.
    """

    need: dict[str, int]
    batch_size: int
    rows: int
    device: str
    free: int | None

    @property
    def total(self) -> int:
        """Bytes that are needed in all."""
        return sum(self.need.values())

    @property
    def arithmetic(self) -> str:
        """The sum in words."""
        parts = " + ".join(f"{name} {gigabytes(size)}" for name, size in self.need.items() if size)
        return f"{parts} = {gigabytes(self.total)}"


def plan_memory(
    target: Any, drafts: Sequence[Any], tokenizer: Any, task: Task, problems: Sequence[Problem], sampling: Sampling,
    draft_length: int, serve_batch: int, config: RunConfig,
) -> MemoryPlan | None:  # fmt: skip
    """Returns the memory plan with its batch size: `config`'s, else the largest of `SIZES` that fits.

    Args:
        target, drafts: hub ids, paths or loaded models.
        problems: all that may be decoded.
        draft_length: the longest, or what trees take behind a text.

    Returns:
        None: the models' memory cannot be estimated, which the progress report says.

    Raises:
        UsageError: the models cannot be run, a prompt is too long, or the device has too little memory.
    """
    try:
        device = _device([target, *drafts], config)
        sizes = [ModelSize.of(target, config.dtype, config.loading.target)]
        sizes += [ModelSize.of(draft, config.dtype, config.loading.draft) for draft in drafts]
    except UnknownSizeError as error:
        config.reporter.note(f"memory is not estimated: {error}")
        return None
    work = _work(sizes, tokenizer, task, problems, draft_length, sampling.greedy)
    free = available(device)

    def at(batch_size: int) -> MemoryPlan:
        rows = max(min(batch_size, len(problems)), serve_batch)
        needed = need(sizes[0], sizes[1:], work, rows, device)
        if config.timing == "careful":  # its processes load the models again
            needed |= {name: 2 * needed[name] for name in LOADED}
        return MemoryPlan(needed, batch_size, rows, device, free)

    return _fitting(at, config.batch_size)


def capacity_of(problems: Sequence[Problem], memory: MemoryPlan | None, batch_size: int) -> Capacity:
    """Returns what limits the number of workers. memory None: it cannot be estimated."""
    if memory is None:
        return Capacity(len(problems), batch_size)
    return Capacity(len(problems), memory.batch_size, memory.total, memory.free)


def _device(models: Sequence[Any], config: RunConfig) -> str:
    place = config.device or default_device()
    check_device(place)
    places = {place if is_source(m) else str(getattr(m, "device", "")) for m in models}
    places.discard("")  # of a draft that is no model
    if len(places) != 1:
        raise UnknownSizeError(f"the models are on {len(places)} devices")
    return places.pop()


def _work(
    sizes: Sequence[ModelSize], tokenizer: Any, task: Task, problems: Sequence[Problem], length: int, greedy: bool
) -> Workload:
    """UsageError: a prompt is too long for the models, or holds a token that they do not have."""
    context = min((size.context for size in sizes if size.context is not None), default=None)
    vocabulary = min(size.logits for size in sizes if size.logits)
    requests = requests_for(
        tokenizer, context, vocabulary, [p.prompt for p in problems], None, 0.0, 1, task.max_new_tokens
    )
    longest = max(len(request.prompt) + request.max_new_tokens for request in requests)
    return Workload(longest + length + 1, max(len(request.prompt) for request in requests), length, greedy)


def _fitting(at: Callable[[int], MemoryPlan], given: int | None) -> MemoryPlan:
    """The plan of the given batch size, else of the largest that fits. UsageError: it does not fit, or none does."""
    found = _first_that_fits(at, SIZES if given is None else (given,))
    if found is not None:
        return found
    smaller = None if given is None else _first_that_fits(at, [size for size in SIZES if size < given])
    refused = at(1) if smaller is None or given is None else at(given)
    raise UsageError(
        f"decoding {refused.rows} at a time takes about {refused.arithmetic}, and {refused.device} has "
        f"{gigabytes(refused.free or 0)} free: {_way_out(refused, smaller)}"
    )


def _way_out(refused: MemoryPlan, smaller: MemoryPlan | None) -> str:
    if smaller is not None:
        return f"the largest {named('batch_size')} that fits is {smaller.batch_size}"
    others = f"smaller models, a shorter {named('dtype')} or another {named('device')}"
    if refused.rows > 1:
        return f"{named('serve_batch')} {refused.rows} needs that; use a smaller one, {others}"
    return f"even one problem at a time does not fit; use {others}"


def _first_that_fits(at: Callable[[int], MemoryPlan], sizes: Sequence[int]) -> MemoryPlan | None:
    plans = (at(size) for size in sizes)
    return next((plan for plan in plans if plan.free is None or plan.total <= plan.free), None)
