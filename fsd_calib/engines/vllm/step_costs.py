"""What a round costs in vLLM: the seconds of its steps, at several draft lengths."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle
from statistics import median

from fsd_calib.engines.round_fit import fit
from fsd_calib.engines.vllm.requests import Requests
from fsd_collectors.replay.cost import CostModel
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress

_STEPS = 200  # timed per draft length
_FEWER, _SECONDS = 50, 15.0  # steps that suffice after so many seconds
_TURN = 40  # steps of a length before the next one takes its turn
_TURNS = 40  # at most


def measure_costs(requests: Callable[[int], Requests], prompts: int, longest: int, progress: Progress) -> CostModel:
    """Times steps in which all rows decode, at two or three draft lengths that take turns.

    The step that reads a prompt is left out, and so is one in which a text ends. The time of drafting and that of
    verifying a longer draft are not told apart: all is in `draft_step`.

    Args:
        requests: Starts decoding exactly at a draft length, with a row for each stream.
        prompts: How many each start has; they are repeated.
        longest: The largest draft length that the engine was loaded for.

    Raises:
        UsageError: No text took a second round.
    """
    lengths = sorted({max(1, longest // 4), max(1, longest // 2), longest})
    lengths = [0, 1] if lengths == [1] else lengths
    seconds: dict[int, list[float]] = {length: [] for length in lengths}
    with progress.step("measuring what a round costs", _STEPS) as advance:
        began, done = time.perf_counter(), 0
        for _ in range(_TURNS):
            for length in lengths:
                seconds[length] += _steady_steps(requests(length), prompts)
            counted = min(_STEPS, *map(len, seconds.values()))
            advance(counted - done)
            done = counted
            if done >= (_FEWER if time.perf_counter() - began > _SECONDS else _STEPS):
                break
    if short := [length for length, taken in seconds.items() if not taken]:
        raise UsageError(f"no text took a second round at draft length {short[0]}; give prompts with longer answers")
    medians = {length: median(taken) for length, taken in seconds.items()}
    slope = (medians[lengths[-1]] - medians[lengths[0]]) / (lengths[-1] - lengths[0])
    return fit(medians, max(slope, 0.0))  # a length that has a graph may take less time than a shorter one without


def _steady_steps(requests: Requests, prompts: int) -> list[float]:
    """Returns the seconds of some steps in which every row decodes: nothing is read, and nothing ends."""
    places, seconds = cycle(range(prompts)), []
    with requests.aborting():
        for _ in range(_TURN):
            added = requests.fill(places)
            began = time.perf_counter()
            ended = requests.step()
            taken = time.perf_counter() - began
            if not added and not ended:
                seconds.append(taken)
    return seconds
