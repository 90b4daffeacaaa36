"""A server under load: streams that never rest, or requests that arrive by themselves, and what users then wait for."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from fsd_calib.options.server import merged
from fsd_calib.servers.answers import Acceptance, Timed
from fsd_calib.servers.client import NoAnswerError, side_by_side
from fsd_calib.servers.counters import between, counted
from fsd_calib.servers.served import Way

PERCENTILES: Final = (50, 90, 99)
_FEWEST_ARRIVALS = 16  # of a piece, at high rates


@dataclass(frozen=True)
class Load:
    """How requests come: `streams` at once, each after the one before it, or `rate` a second, as a Poisson process."""

    streams: int
    rate: float | None = None

    def __str__(self) -> str:
        if self.rate is None:
            return f"{self.streams} stream{'s' * (self.streams > 1)}"
        return f"{self.rate:g} requests/s (Poisson arrivals)"

    @property
    def at_once(self) -> int:
        """How many requests a piece has at least, so that the load is what it is called."""
        return self.streams if self.rate is None else min(math.ceil(self.rate), _FEWEST_ARRIVALS)


@dataclass(frozen=True)
class Slo:
    """What users may wait for: seconds to the first token, and from one to the next; None: as long as they like."""

    ttft: float | None = None
    itl: float | None = None

    def met_by(self, timed: Timed) -> bool:
        between = timed.between or 0.0
        return timed.first <= (self.ttft or math.inf) and between <= (self.itl or math.inf)


class Piece(NamedTuple):
    """What came of some requests.

    Attributes:
        timed: Of those that were answered.
        failed: How many were not.
        seconds: From the first request to the last answer.
        counted: What the server counted meanwhile, of all that asked it.
    """

    timed: Sequence[Timed]
    failed: int
    seconds: float
    counted: Acceptance | None = None

    @property
    def acceptance(self) -> Acceptance | None:
        """Of all texts together, by the answers or else by the server's counters; None: neither tells."""
        told = [each.acceptance for each in self.timed if each.acceptance is not None]
        return Acceptance.sum(told) if told else self.counted

    def tokens(self, load: Load) -> float:
        """Tokens of a stream; at a rate, of all requests. NaN: there are none."""
        return sum(each.tokens for each in self.timed) / (load.streams if load.rate is None else 1) or math.nan

    def taken(self, load: Load) -> float:
        """Seconds of a stream; at a rate, of all requests together, each of which is timed for itself."""
        return self.seconds if load.rate is None else math.fsum(each.whole for each in self.timed)

    def rate(self, load: Load) -> float:
        """Tokens/s of a stream; at a rate, of a request. NaN: there are no tokens."""
        return self.tokens(load) / self.taken(load) if self.timed else math.nan


def send(way: Way, bodies: Sequence[Mapping[str, Any]], load: Load, seed: int) -> Piece:
    """Sends requests as a load has them, and returns what came. `seed`: of arrivals."""
    return way.client.run(_send(way, bodies, load, seed))


async def _send(way: Way, bodies: Sequence[Mapping[str, Any]], load: Load, seed: int) -> Piece:
    timed, failed = list[Timed](), 0

    async def ask(body: Mapping[str, Any]) -> None:
        nonlocal failed
        try:
            timed.append(await way.client.time(merged(body, way.fields)))
        except NoAnswerError:
            failed += 1

    async def later(body: Mapping[str, Any], seconds: float) -> None:
        await asyncio.sleep(seconds)
        await ask(body)

    async def stream() -> None:
        for body in left:
            await ask(body)

    before = await counted(way.client)
    left, began = iter(bodies), time.perf_counter()
    if load.rate is None:
        await side_by_side(stream() for _ in range(load.streams))
    else:
        await side_by_side(map(later, bodies, _arrivals(len(bodies), load.rate, seed)))
    seconds = time.perf_counter() - began
    return Piece(timed, failed, seconds, between(before, await counted(way.client)))


def _arrivals(number: int, rate: float, seed: int) -> list[float]:
    """Seconds at which requests arrive, the first at once."""
    drawn = random.Random(seed)
    between = [0.0, *(drawn.expovariate(rate) for _ in range(number - 1))]
    return [float(at) for at in np.cumsum(between)]


@dataclass
class Seen:
    """What was seen of one setting under a load.

    Attributes:
        busy: Seconds in which its requests were under way.
        acceptance: Of all texts together; None: the server does not tell.
    """

    timed: list[Timed] = field(default_factory=list)
    failed: int = 0
    busy: float = 0.0
    acceptance: Acceptance | None = None

    def add(self, piece: Piece) -> None:
        self.timed += piece.timed
        self.failed += piece.failed
        self.busy += piece.seconds
        self.acceptance = Acceptance.sum(filter(None, (self.acceptance, piece.acceptance)))

    @property
    def tokens_per_second(self) -> float:
        """Output tokens/s of the whole server."""
        return sum(each.tokens for each in self.timed) / self.busy

    @property
    def first(self) -> list[float]:
        """Seconds to the first token, by percentile."""
        return _percentiles([each.first for each in self.timed])

    @property
    def between(self) -> list[float]:
        """Mean seconds from one token to the next of a request, by percentile."""
        return _percentiles([each.between for each in self.timed if each.between is not None])

    def goodput(self, slo: Slo) -> float:
        """Requests/s that were answered as the service level has it."""
        return sum(map(slo.met_by, self.timed)) / self.busy


def _percentiles(values: Sequence[float]) -> list[float]:
    return [float(each) for each in np.percentile(values, PERCENTILES)] if values else []
