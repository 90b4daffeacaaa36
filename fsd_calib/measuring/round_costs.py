"""What a round costs on this device, at so many rows.

Knows one decoder, its prompts and the clock. Knows nothing of accuracy, or of how many rounds a text will take.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from scipy.optimize import nnls

from fsd_calib.progress import Progress, Silent
from fsd_collectors.replay.cost import CostModel
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.errors import UsageError
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.requests import Prompt

_ROUNDS = 200  # timed of every kind; or
_FEWER, _SECONDS = 50, 15.0  # rounds that do, once so much time has gone
_BATCHES = 100  # decoded to get them, at most
_RULE, _LOSSLESS = "fsd-coupled", -1.0  # a round takes as long whatever it accepts; accepting little makes many
_LEAST = 1e-9  # seconds; a verification takes time


@dataclass(frozen=True)
class Costs:
    """Of rounds with so many rows, seconds."""

    model: CostModel
    rows: int


class RoundClock:
    """An observer of calls that start no more prompts than they have rows: each round's seconds.

    A round lasts from one look to the next, so whatever it does lies in between. Left out are the first of a
    call, which reads the prompts, and those that come after rows were given up.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: list[float] = []
        self.drafting: list[float] = []  # of them, in the draft phase
        self._device, self._rows, self._last = device, 0, 0.0

    def restart(self) -> None:
        """A new call begins."""
        self._rows = 0

    def __call__(self, record: RoundRecord) -> None:
        wait_for(self._device)
        now = time.perf_counter()
        if len(record.requests) == self._rows:
            self.seconds.append(now - self._last)
            self.drafting.append(record.draft_seconds)
        self._rows, self._last = self._rows or len(record.requests), now


def wait_for(device: torch.device) -> None:
    """Returns when the device has done all that it was told; on CUDA the host's clock sees launches alone."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_costs(
    decoder: SpeculativeDecoder, prompts: Sequence[Prompt], ids: Sequence[int], max_new_tokens: int,
    stop: Sequence[str] = (), *, batch_size: int, draft_lengths: Sequence[int] = (2, 4, 8),
    progress: Progress | None = None,
) -> Costs:  # fmt: skip
    """Times 200 rounds at each draft length, with `batch_size` rows; from 15 s on 50 do.

    The lengths take turns, so that a machine that slows down slows them all, and medians keep hiccups out.
    Prompts are used again where they are few.

    Args:
        draft_lengths: at least two; a line over them tells what a token adds from what a round takes anyway.

    Raises:
        UsageError: fewer than two lengths, or texts that end within a round.
    """
    if len(set(draft_lengths)) < 2:
        raise UsageError(f"draft_lengths is {list(draft_lengths)}; costs are a line over at least two lengths")
    clocks = {length: RoundClock(decoder.device) for length in draft_lengths}

    def decode(batch: Sequence[int], length: int) -> None:
        clocks[length].restart()
        decoder.generate(
            [prompts[i] for i in batch], max_new_tokens, ids=[ids[i] for i in batch], stop=stop,
            rule=_RULE, threshold=_LOSSLESS, draft_length=length,
            batch_size=batch_size, observer=clocks[length],
        )  # fmt: skip

    with (progress or Silent()).step("measuring what a round costs", _ROUNDS) as advance:
        done, began = 0, time.perf_counter()
        for start in range(0, _BATCHES * batch_size, batch_size):
            for length in clocks:
                decode([i % len(prompts) for i in range(start, start + batch_size)], length)
            timed = min(_ROUNDS, *(len(clock.seconds) for clock in clocks.values()))
            advance(timed - done)
            done = timed
            if done >= (_FEWER if time.perf_counter() - began > _SECONDS else _ROUNDS):
                break
    return _costs(clocks, batch_size)


def _costs(clocks: Mapping[int, RoundClock], rows: int) -> Costs:
    for length, clock in clocks.items():
        if not clock.seconds:
            raise UsageError(f"no text took a second round at draft length {length}; costs need longer texts")
    drafting = {length: median(clock.drafting) for length, clock in clocks.items()}
    seconds = {length: median(clocks[length].seconds) for length in drafting}
    return Costs(fit(seconds, sum(drafting.values()) / sum(drafting)), rows)


def fit(seconds: Mapping[int, float], draft_step: float) -> CostModel:
    """The line L (c + Δv) + (v + Δv) through a round's seconds by draft length L, nearest in relative terms.

    Rounds give the two sums; the draft phase's own clock splits them. On CUDA that clock sees launches, so the
    split is rough there, and the sums, which all speeds follow from, are not. Nothing comes out negative.
    """
    lengths, taken = np.array(list(seconds), np.float64), np.array(list(seconds.values()))
    rows = np.stack([lengths, np.ones_like(lengths)], 1) / taken[:, None]
    token, constant = (float(x) for x in nnls(rows, np.ones_like(taken))[0])
    constant = max(constant, _LEAST)
    position = min(max(token - draft_step, 0.0), constant)
    return CostModel(draft_step=token - position, verify=constant - position, position=position)
