"""What fits: the problems that the models' context takes, and the memory of decoding them, told before models load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fsd_calib.options.run_config import MOST_AT_ONCE, RunConfig
from fsd_calib.tasks.base import Problem, Task
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.formatting import gigabytes
from fsd_decoding.beams.settings import BeamSettings
from fsd_decoding.free_memory import available
from fsd_decoding.loading import check_device, default_device, is_source, load_config
from fsd_decoding.memory import LOADED, ModelSize, UnknownSizeError, Workload, need
from fsd_decoding.model_options import ModelOptions
from fsd_decoding.models.runner import context_length
from fsd_decoding.requests import requests_for
from fsd_decoding.sampling import Sampling
from fsd_decoding.text import prompt_tokens
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
        beams: how many a problem is decoded to; None: to a single text.
        reserved, slots: KV slots behind a prompt that its beams have at first, and the most that were in use so far.
    """

    need: dict[str, int]
    batch_size: int
    rows: int
    device: str
    free: int | None
    beams: int | None = None
    reserved: int = 0
    slots: int = 0

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
    target: Any, drafts: Sequence[Any], tokenizer: Any, tasks: Sequence[Task], sampling: Sampling,
    draft_length: int, serve_batch: int, config: RunConfig, beams: BeamSettings | None = None,
) -> MemoryPlan | None:  # fmt: skip
    """Returns the memory plan with its batch size: `config`'s, else the largest of `SIZES` that fits.

    Args:
        target, drafts: hub ids, paths or loaded models.
        tasks: with the problems that may be decoded.
        draft_length: the longest, or what trees take behind a text.
        beams: the widest; None: single texts are decoded.

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
    if beams is not None:
        _check_attention(sizes)
    work = _work(sizes, tokenizer, tasks, draft_length, sampling.greedy, beams)
    work = replace(work, graphs=config.compile != "off" and beams is None)
    of_beams = {} if beams is None else {"beams": beams.beams, "reserved": work.longest - work.prompt}
    problems = sum(len(task.problems) for task in tasks)
    free = available(device)

    def at(batch_size: int) -> MemoryPlan:
        rows = max(min(batch_size, problems), serve_batch)
        needed = need(sizes[0], sizes[1:], work, rows, device)
        if config.timing == "careful":  # its processes load the models again
            needed |= {name: 2 * needed[name] for name in LOADED}
        return MemoryPlan(needed, batch_size, rows, device, free, **of_beams)

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


def _check_attention(sizes: Sequence[ModelSize]) -> None:
    """Raises UsageError where the target, which is the first, or a draft keeps a state, which beams do not share."""
    for number, size in enumerate(sizes):
        if size.state:
            raise UsageError(
                f"{named('beams')} is given, and the {'draft' if number else 'target'} has recurrent layers, whose "
                "state is that of one text; give models with attention alone"
            )


def _work(
    sizes: Sequence[ModelSize], tokenizer: Any, tasks: Sequence[Task], length: int, greedy: bool,
    beams: BeamSettings | None,
) -> Workload:  # fmt: skip
    """UsageError: a prompt is too long for the models, or holds a token that they do not have."""
    context = sizes[0].context  # the target's; a draft ends drafting where its own does
    vocabulary = min(size.logits for size in sizes if size.logits)
    requests = [
        request
        for task in tasks
        for request in requests_for(
            tokenizer, context, vocabulary, [p.prompt for p in task.problems], None, 0.0, 1, task.max_new_tokens
        )
    ]
    prompt = max(len(request.prompt) for request in requests)
    if beams is not None:
        new_tokens = max(request.max_new_tokens for request in requests)
        return Workload.of_beams(beams, prompt, new_tokens, length, greedy)
    longest = max(len(request.prompt) + request.max_new_tokens for request in requests)
    return Workload(longest + length + 1, prompt, length, greedy)


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


_SHOWN = 5  # ids in a line
_ADDED = 8  # tokens that a tokenizer may add to those of a text, such as its start


def context_of(model: Any, options: ModelOptions) -> int | None:
    """Returns the most tokens of a prompt and its text together that a model takes; None: no limit is known.

    Reads the configuration alone, as engines of others run what ours does not.
    """
    config = load_config(model, options) if is_source(model) else getattr(model, "config", None)
    return None if config is None else context_length(config)


def usable(task: Task, tokenizer: Any, context: int | None, note: Callable[[str], None]) -> Task:
    """Returns a task without the problems whose prompts are as long as the models' context, or longer.

    They are left out of both sides of every comparison, since no model can answer them. Problems whose texts the
    context may cut short stay and get their `room`. Those whose reference is wrong by the task's own grader stay too:
    both sides fail on them.

    Args:
        context: See `context_of`.
        note: Receives a line where there are such problems.

    Raises:
        UsageError: All prompts are too long.
    """
    long = [] if context is None else [p for p in task.problems if _fills(p.prompt, tokenizer, context)]
    if long:
        note(
            f"{len(long)} of {len(task.problems)} prompts fill the models' context of {context} tokens and are left "
            f"out (ids {_ids(long)})"
        )
        left = set(map(id, long))
        task = replace(task, problems=tuple(p for p in task.problems if id(p) not in left))
        if not task.problems:
            raise UsageError(
                f"all prompts of task {task.name} fill the models' context of {context} tokens; shorten them"
            )
    rooms = {} if context is None else _rooms(task, tokenizer, context)
    if rooms:
        near = [p for p in task.problems if p.id in rooms]
        task = replace(task, problems=tuple(replace(p, room=rooms.get(p.id)) for p in task.problems))
        note(
            f"{len(near)} of {len(task.problems)} prompts leave less than {task.max_new_tokens} tokens of the models' "
            f"context of {context}, which may cut their texts short (ids {_ids(near)})"
        )
    wrong = [p for p in task.problems if task.keys_are_texts and not task.grader(p, p.reference)]
    if wrong:
        note(
            f"{len(wrong)} of {len(task.problems)} references are wrong by the task's own grader, so, if they are "
            f"answers, no text is right there (ids {_ids(wrong)}); fsd-tasks check names them"
        )
    return task


def _rooms(task: Task, tokenizer: Any, context: int) -> dict[int, int]:
    """Returns the tokens left for an answer, by id, where they are fewer than the task allows."""
    near = [p for p in task.problems if _fills(p.prompt, tokenizer, context - task.max_new_tokens + 1)]
    return {p.id: context - len(prompt_tokens(tokenizer, p.prompt)) for p in near}


def _fills(prompt: str, tokenizer: Any, context: int) -> bool:
    if len(prompt.encode()) + _ADDED < context:  # a token has at least a byte
        return False
    return len(prompt_tokens(tokenizer, prompt)) >= context


def _ids(problems: Sequence[Problem]) -> str:
    more = f" and {len(problems) - _SHOWN} others" if len(problems) > _SHOWN else ""
    return ", ".join(str(problem.id) for problem in problems[:_SHOWN]) + more
