"""Measurement of what a round costs on this device, at a given batch size."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from fsd_calib.engines.round_fit import fit
from fsd_collectors.replay.cost import CostModel
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress, Silent
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.requests import Prompt

_ROUNDS = 200  # timed per draft length
_FEWER, _SECONDS = 50, 15.0  # rounds that suffice after so many seconds
_BATCHES = 100  # batches at most
_SHORT, _SHORT_DRAFT = 4, 4  # rounds at least, unless texts end, and tokens drafted in each: to compare quickly
_RULE, _LOSSLESS = "fsd-coupled", -1.0  # accepts little, which gives many rounds and does not change their cost


@dataclass(frozen=True)
class Costs:
    """Costs of rounds with `rows` rows, in seconds."""

    model: CostModel
    rows: int


class RoundClock:
    """An observer that records the seconds of each round, for calls that start no more prompts than they have rows.

    A round lasts from one observation to the next. The first round of a call is left out, since it includes prefill,
    and so are rounds after rows have finished.

    Args:
        clock: Of the seconds. The draft phase has its share of them by the wall's clock.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: list[float] = []
        self.drafting: list[float] = []  # seconds of the same rounds spent in the draft phase
        self._device, self._clock, self._rows = device, clock, 0
        self._last, self._last_wall = 0.0, 0.0

    def restart(self) -> None:
        """Prepares for a new call."""
        self._rows = 0

    def __call__(self, record: RoundRecord) -> None:
        synchronize(self._device)
        now, wall = self._clock(), time.perf_counter()
        if len(record.requests) == self._rows:
            self.seconds.append(now - self._last)
            self.drafting.append(record.draft_seconds * (now - self._last) / (wall - self._last_wall))
        self._rows, self._last, self._last_wall = self._rows or len(record.requests), now, wall


def undisturbed_clock(device: torch.device) -> Callable[[], float]:
    """Returns the clock by which costs are the same whatever else the machine does, where there is one.

    On one CPU thread that is the thread's own seconds. By the wall's clock, other processes lengthen long rounds more
    than short ones, until a verification seems to cost nothing and no fuzzy setting to be worth a test. Of several
    threads the seconds add up, however well they share the work, so their clock is the wall's.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time if alone else time.perf_counter


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished; on CUDA the host's clock alone would measure kernel launches."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def round_seconds(decoder: SpeculativeDecoder, prompts: Sequence[Prompt], ids: Sequence[int]) -> float:
    """Returns the median seconds of some rounds with a row for each prompt, without the first one, which prefills.

    Where a text ends in the first round, it is what all of them took together.
    """
    clock, began = RoundClock(decoder.device), time.perf_counter()
    decoder.generate(
        prompts, _SHORT * (_SHORT_DRAFT + 1), ids=ids, rule=_RULE, threshold=_LOSSLESS, draft_length=_SHORT_DRAFT,
        batch_size=len(prompts), observer=clock,
    )  # fmt: skip
    return median(clock.seconds) if clock.seconds else time.perf_counter() - began


def measure_costs(
    decoder: SpeculativeDecoder, prompts: Sequence[Prompt], ids: Sequence[int], max_new_tokens: int,
    stop: Sequence[str] = (), *, batch_size: int, draft_lengths: Sequence[int] = (2, 4, 8),
    progress: Progress | None = None,
) -> Costs:  # fmt: skip
    """Times 200 rounds at each draft length with `batch_size` rows, or 50 once 15 s have passed.

    The draft lengths take turns, so that a machine that slows down slows them all, and medians remove outliers. Prompts
    are repeated where they are few.

    Args:
        draft_lengths: At least two; a line over them separates the cost per token from the constant cost of a round.

    Raises:
        UsageError: Fewer than two lengths, or texts that end within one round.
    """
    if len(set(draft_lengths)) < 2:
        raise UsageError(
            f"draft_lengths is {list(draft_lengths)}; costs are fitted over two or more lengths; give at least two"
        )
    clocks = {length: RoundClock(decoder.device, undisturbed_clock(decoder.device)) for length in draft_lengths}

    def decode(batch: Sequence[int], length: int) -> None:
        clocks[length].restart()
        decoder.generate(
            [prompts[i] for i in batch], max_new_tokens, ids=[ids[i] for i in batch], stop=stop,
            rule=_RULE, threshold=_LOSSLESS, draft_length=length,
            batch_size=batch_size, observer=clocks[length],
        )  # fmt: skip

    with (progress or Silent()).step("measuring what a round costs", _ROUNDS) as advance:
        done, started = 0, time.perf_counter()
        for start in range(0, _BATCHES * batch_size, batch_size):
            for length in clocks:
                decode([i % len(prompts) for i in range(start, start + batch_size)], length)
            counted = min(_ROUNDS, *(len(clock.seconds) for clock in clocks.values()))
            advance(counted - done)
            done = counted
            if done >= (_FEWER if time.perf_counter() - started > _SECONDS else _ROUNDS):
                break
    return _costs(clocks, batch_size)


def _costs(clocks: Mapping[int, RoundClock], rows: int) -> Costs:
    for length, clock in clocks.items():
        if not clock.seconds:
            raise UsageError(f"no text took a second round at draft length {length}; give prompts with longer answers")
    drafting = {length: median(clock.drafting) for length, clock in clocks.items()}
    seconds = {length: median(clocks[length].seconds) for length in drafting}
    return Costs(fit(seconds, sum(drafting.values()) / sum(drafting)), rows)
