"""Whether a calibration calls its rounds as graphs: where what they save is more than capturing them takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

from fsd_common.formatting import duration, percent
from fsd_common.progress.base import Progress
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.cache_pool import CAPTURES
from fsd_decoding.profile.fields import COMPILE, Rounds

Clock = Callable[[], float]

_TIMED = 2  # batches that are timed before graphs, and after them; with them, as many as both
_BATCHES = 1 + 4 * _TIMED
_PLAUSIBLE = 0.3  # share of the time that graphs may save at best
_CALLS = 0.02  # seconds of a round that they may save at best: of Python, not of the models' arithmetic
_LEAST_CAPTURED, _LEAST_TRACED = 0.2, 8.0  # seconds per shape: by the device, or by PyTorch's tracing on the host


@dataclass(frozen=True)
class PlannedWork:
    """The decoding that is expected to follow.

    Args:
        seconds: time it takes all processes together where rounds are called directly.
        shapes: how many shapes of rounds occur in it, each of which every process captures once, all at the same time.
        batch, round: seconds of what is timed to find out, and of a round in it.
    """

    seconds: float
    shapes: int
    batch: float
    round: float

    def repays(self, saved: float, capture: float) -> bool:
        """Whether saving a share of the time is more than capturing every shape takes, in seconds of one shape."""
        return self.seconds * saved > self.shapes * capture

    def may_repay(self, least: float) -> bool:
        """Whether a plausible gain would be more than the captures and finding out take, at least `least` a shape."""
        plausible = min(_PLAUSIBLE, _CALLS / self.round)
        return self.seconds * plausible > self.shapes * least + _BATCHES * self.batch


def what_pays(
    decoder: SpeculativeDecoder, decode: Callable[[], object], planned: PlannedWork, progress: Progress,
    clock: Clock = time.perf_counter,
) -> Rounds:  # fmt: skip
    """Returns "capture" where graphs of PyTorch's own kernels pay within the planned work, else "off".

    Compiled kernels are not tried: their texts differ by rounding, so what was decoded otherwise could not be reused.
    Where even a plausible gain would not repay the captures, nothing is. A note says what was measured.

    Args:
        decoder: calls rounds directly, and does so afterwards.
        decode: decodes a batch with it.
    """
    if not planned.may_repay(_least(decoder)):
        return "off"
    capture, saved = _measure(decoder, partial(seconds_of, decode, clock))
    pays = planned.repays(saved, capture)
    progress.note(
        f"graphs would save {percent(saved)} of {duration(planned.seconds)} of decoding, and capturing them takes "
        f"about {duration(planned.shapes * capture)} ({planned.shapes} shapes): rounds are "
        f"{'captured' if pays else 'called directly'} (--compile auto)"
    )
    return "capture" if pays else "off"


def seconds_of(work: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """Returns how long the work takes."""
    began = clock()
    work()
    return clock() - began


def _least(decoder: SpeculativeDecoder) -> float:
    return _LEAST_CAPTURED if decoder.device.type in CAPTURES else _LEAST_TRACED


def _measure(decoder: SpeculativeDecoder, seconds: Clock) -> tuple[float, float]:
    """Returns the seconds of capturing a shape, and the share of the time of a batch that its graphs save.

    Rounds are called directly before and after, so that a machine that slows down slows both ways.

    Args:
        seconds: decodes a batch, and returns how long that took.
    """
    plain = [seconds() for _ in range(_TIMED)]
    decoder.compile = COMPILE["capture"]
    first, *captured = (seconds() for _ in range(1 + 2 * _TIMED))
    decoder.compile = COMPILE["off"]
    plain += [seconds() for _ in range(_TIMED)]
    return max(first - median(captured), 0.0), 1 - median(captured) / median(plain)
