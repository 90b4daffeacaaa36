"""How many tokens a server should draft: ways to start it, timed under loads until the fastest is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fsd_calib.measuring.interleaved import pieces
from fsd_calib.measuring.speed import Interval, TimedRun, TimedSpeeds
from fsd_calib.options.server import LENGTH, Body, Launches, with_value
from fsd_calib.servers.client import Client
from fsd_calib.servers.load import Load, Seen, send
from fsd_calib.servers.process import ServerProcess
from fsd_calib.servers.prompting import bodies_of
from fsd_calib.servers.served import Way
from fsd_calib.tasks.base import Task
from fsd_common.progress.base import Progress
from fsd_decoding.sampling import Sampling

ROUNDS = 3
"""How often a way is started at most."""
_PIECES = 8  # that a way answers each time: enough for an interval
_CONFIDENCE = 0.95
_OF_A_START = 0.05  # by which two starts of one command may differ, which pieces of one start do not show


class Launch(NamedTuple):
    """A way to start the server: by a command, with so many drafted tokens; None: the command has no place for it."""

    name: str
    length: int | None

    def __str__(self) -> str:
        return self.name if self.length is None else f"{self.name}, K = {self.length}"

    def command(self, launches: Launches) -> str:
        written = launches.commands[self.name]
        return written if self.length is None else str(with_value(written, self.length, LENGTH))


def launches_of(launches: Launches) -> list[Launch]:
    """Returns all ways that are described."""
    return [
        Launch(name, length)
        for name, command in launches.commands.items()
        for length in (sorted(set(launches.lengths)) if LENGTH in command else (None,))
    ]


class Cell(NamedTuple):
    """What the fastest way is wanted of: a load, and requests that are lossless or have fields of a setting."""

    load: Load
    mode: str

    def __str__(self) -> str:
        return f"{self.load}, {self.mode}"


@dataclass
class Found:
    """What was timed of one cell.

    Attributes:
        rates: Tokens/s of a stream by way, of one piece after the other.
        seen: By way.
        left: The ways that may be the fastest: those that were started each time.
    """

    rates: dict[Launch, list[float]] = field(default_factory=dict)
    seen: dict[Launch, Seen] = field(default_factory=dict)
    left: list[Launch] = field(default_factory=list)

    def speeds(self) -> TimedSpeeds[Launch]:
        """Speeds of all ways by the pieces that each has had."""
        whole = max(map(len, self.rates.values()))
        tokens = {way: np.array([*rates, *[np.nan] * (whole - len(rates))]) for way, rates in self.rates.items()}
        seconds = {way: np.ones(whole) for way in tokens}
        return TimedSpeeds([TimedRun(np.arange(whole), tokens, {"wall": seconds})], whole, _CONFIDENCE, looks=ROUNDS)

    def best(self) -> Launch:
        speeds = self.speeds()
        return max(self.left, key=lambda way: speeds.of(way).value)

    def times_best(self) -> dict[Launch, Interval]:
        """How many times as fast as the fastest each way is, on the same pieces."""
        speeds, best = self.speeds(), self.best()
        return {way: speeds.ratio(way, best) for way in self.rates}

    def drop_slower(self) -> None:
        """Leaves the ways that were not shown to be slower than the fastest; after one start, much slower."""
        against = self.times_best()
        limit = {way: 1.0 if len(rates) > _PIECES else 1 - _OF_A_START for way, rates in self.rates.items()}
        self.left = [way for way in self.left if against[way].high >= limit[way]]


@dataclass(frozen=True)
class Tuning:
    """A comparison of ways to start a server.

    Args:
        modes: Fields of requests by the name of the mode.
        log: Where the server writes.
    """

    launches: Launches
    client: Client
    task: Task
    sampling: Sampling
    loads: Sequence[Load]
    modes: Mapping[str, Body]
    log: Path
    progress: Progress

    def run(self) -> dict[Cell, Found]:
        """Times all ways, those that may be the fastest again, until each cell has one, at most three times.

        UsageError: a way does not start, or there are too few problems.
        """
        ways = launches_of(self.launches)
        cells = {Cell(load, mode): Found(left=list(ways)) for load in self.loads for mode in self.modes}
        process = ServerProcess(
            self.launches.health, self.launches.seconds, self.client, self.log, self.progress
        )  # fmt: skip
        try:
            for number in range(ROUNDS):
                open_cells = {cell: found for cell, found in cells.items() if len(found.left) > 1 or not number}
                needed = [way for way in ways if any(way in found.left for found in open_cells.values())]
                for way in needed if number % 2 == 0 else reversed(needed):
                    process.start(way.command(self.launches), str(way))
                    for cell, found in open_cells.items():
                        if way in found.left:
                            self._time(cell, found, way)
                for found in open_cells.values():
                    found.drop_slower()
        finally:
            process.stop()
        return cells

    def _time(self, cell: Cell, found: Found, way: Launch) -> None:
        load = cell.load
        warm_up, *work = pieces(self.task.problems, load.at_once)
        through = Way(self.client, self.modes[cell.mode])
        send(through, bodies_of(self.client.server, self.task, self.sampling, warm_up), load, 0)
        rates, seen = found.rates.setdefault(way, []), found.seen.setdefault(way, Seen())
        with self.progress.step(f"timing {way}, {cell}", _PIECES) as advance:
            for number in range(len(rates), len(rates) + _PIECES):
                bodies = bodies_of(self.client.server, self.task, self.sampling, work[number % len(work)])
                done = send(through, bodies, load, number)
                rates.append(done.rate(load))
                seen.add(done)
                advance(1)


def rows_of(cells: Mapping[Cell, Found]) -> Iterator[tuple[Cell, Launch, Interval, Interval, Seen, bool]]:
    """Yields of each cell its ways, the fastest first: speed, speed over the fastest's, what was seen, and whether it
    may be the fastest."""
    for cell, found in cells.items():
        speeds, against = found.speeds(), found.times_best()
        for way in sorted(found.rates, key=lambda each: -against[each].value):
            yield cell, way, speeds.of(way), against[way], found.seen[way], way in found.left
