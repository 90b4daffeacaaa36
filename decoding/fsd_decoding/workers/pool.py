"""A pool of worker processes that do pieces of work, of which none is lost when a worker dies, and their sizes."""

from __future__ import annotations

import math
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_decoding.workers.backends import Backend, Worker
from fsd_decoding.workers.serving import Served

_LONGEST = 4  # batches of `rows` problems at most: what a killed worker costs, and how often results come back


def batch_sizes(problems: int, rows: int, workers: int) -> list[int]:
    """Returns the sizes of the batches that problems are handed out in, the largest first.

    "Factoring" (Hummel, Schonberg and Flynn, 1992): each round gives every worker a batch of the same size, together
    half of what is left, so that the last batches are small and end at about the same time. A batch has at least
    `rows` problems, as fewer leave rows empty, and the last round is even. It has at most four times as many: rows
    are refilled, and a finished batch is what progress and a killed worker are counted in.

    Args:
        rows: problems that a worker decodes at once.
    """
    sizes: list[int] = []
    while left := problems - sum(sizes):
        share = math.ceil(left / workers)
        longest = min(share if share < 2 * rows else math.ceil(share / 2), _LONGEST * rows)
        now = min(left, longest * workers)
        sizes += [-(-(now - worker) // workers) for worker in range(workers) if worker < now]
    return sizes


Piece = TypeVar("Piece")
Returned = TypeVar("Returned")

_DEATHS = 3  # in a row, of the worker that has the same piece of work
_LOOK = 5.0  # seconds between looks at workers that do not answer
_PATIENCE = 10.0  # times the longest piece so far, after which a worker is taken for stopped
_LEAST = 60.0  # seconds that it has in any case
_LENGTH = 200  # characters of a library's error that are shown: Ray's may be a paragraph


@dataclass
class _Handed(Generic[Piece]):
    """A piece of work, how many workers have died of it, how the last of them did, and for how many seconds its worker
    has had it."""

    piece: Piece
    request: bytes
    deaths: int = 0
    death: BaseException | None = None
    seconds: float = 0.0


class _Waiting(Generic[Piece]):
    """Pieces of work that no worker has: those whose worker has died, then those that were not drawn yet."""

    def __init__(self, work: Callable[[Piece], Any], pieces: Iterable[Piece | None]) -> None:
        self._work, self._pieces = work, iter(pieces)
        self.again = deque[_Handed[Piece]]()

    def next(self) -> _Handed[Piece] | None:
        """Returns the next piece, pickled; None: there is no more, or none now."""
        if self.again:
            return self.again.popleft()
        piece = next(self._pieces, None)
        return None if piece is None else _Handed(piece, pickle.dumps((self._work, piece)))

    @property
    def hopeless(self) -> list[_Handed[Piece]]:
        """Pieces that too many workers have died of."""
        return [handed for handed in self.again if handed.deaths == _DEATHS]

    def check(self) -> None:
        """Raises UsageError where there is such a piece."""
        for handed in self.hopeless:
            raise UsageError(
                f"{handed.piece} ended {_DEATHS} worker processes in a row, which were killed (out of memory, for "
                f"instance) or could not start ({_reason(handed.death)}); what is finished is kept: free memory, or "
                f"use fewer {named('workers')} or a smaller {named('batch_size')}"
            ) from handed.death


def _reason(death: BaseException | None) -> str:
    """The line that says why a worker has died: loky's about exit codes, else the last one, as in tracebacks."""
    lines = str(death).splitlines() or [type(death).__name__]
    return next((line for line in lines if line.startswith("The exit codes")), lines[-1]).strip()[:_LENGTH]


class WorkerPool:
    """Worker processes that are started by the first work; a context manager that ends them.

    A worker that does not answer for much longer than any piece has taken is stopped, perhaps by a debugger: it is
    ended, and its piece goes to another.

    Args:
        workers: how many.
        backend: where they run.
        note: receives a line where a worker has died, or does not answer.
    """

    def __init__(self, workers: int, backend: Backend, note: Callable[[str], None] = lambda line: None) -> None:
        self.workers, self._backend, self._note = workers, backend, note
        self._started: dict[int, Worker] = {}
        self._longest = 0.0  # seconds that a piece has taken

    def run(
        self, work: Callable[[Piece], Returned], pieces: Iterable[Piece | None]
    ) -> Iterator[tuple[Piece, Returned]]:
        """Yields each piece with what `work` returned for it, in the order in which they are done.

        A piece is drawn when a worker is free for it, and handed out again where its worker has died. Whatever ends
        the iteration early ends the workers that are at work, and no other.

        Args:
            work: a module's function, or a `partial` of one; it is pickled, as pieces and what is returned are.
            pieces: what to work on; None where there is nothing before the caller has taken more of what is yielded.

        Raises:
            UsageError: three workers in a row have died of one piece, which `str` names.
            Exception: `work` raised it.
        """
        waiting, running = _Waiting(work, pieces), dict[Future[Served], tuple[int, _Handed[Piece]]]()
        try:
            self._hand_out(waiting, running)
            while running:
                done = self._first_done(running, waiting)
                finished, failed = [], None
                for future in done:
                    number, handed = running.pop(future)
                    if isinstance(death := future.exception(), self._backend.deaths):
                        self._bury(number, handed, death, "a worker process was killed")
                        waiting.again.append(handed)
                    elif (served := future.result()).error is not None:
                        failed = served.error
                    else:
                        finished.append((handed.piece, served.returned))
                if failed is None and not waiting.hopeless:
                    self._hand_out(waiting, running)  # before what is finished is looked at: no worker waits for that
                yield from finished
                if failed is not None:
                    raise failed
                waiting.check()
                self._hand_out(waiting, running)  # what there was not before
        finally:
            for number, _ in running.values():
                if number in self._started:  # or `close` was first: a generator may end after the pool
                    self._started.pop(number).stop()

    def _first_done(
        self, running: dict[Future[Served], tuple[int, _Handed[Piece]]], waiting: _Waiting[Piece]
    ) -> set[Future[Served]]:
        """Waits for work that is done, and returns it; none, where a worker that does not answer was ended."""
        while True:
            began = time.monotonic()
            done, _ = wait(running, timeout=_LOOK, return_when=FIRST_COMPLETED)
            passed = min(time.monotonic() - began, 2 * _LOOK)  # this process may have been stopped, too
            for future, (_, handed) in running.items():
                handed.seconds += passed
                if future in done:
                    self._longest = max(self._longest, handed.seconds)
            patience = max(_LEAST, _PATIENCE * self._longest) if self._longest else math.inf
            stopped = [future for future, (_, handed) in running.items() if handed.seconds > patience]
            for future in stopped if not done else ():
                number, handed = running.pop(future)
                why = f"a worker process has not answered for {handed.seconds:.0f} s"
                self._bury(number, handed, TimeoutError(why), why)
                waiting.again.append(handed)
            if done or stopped:
                return done

    def close(self) -> None:
        """Ends all workers."""
        while self._started:
            self._started.popitem()[1].stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _hand_out(self, waiting: _Waiting[Piece], running: dict[Future[Served], tuple[int, _Handed[Piece]]]) -> None:
        """Sends work to all workers that have none."""
        busy = {number for number, _ in running.values()}
        for number in range(self.workers):
            if number not in busy and (handed := waiting.next()) is not None:
                running[self._send(number, handed.request)] = number, handed

    def _send(self, number: int, request: bytes) -> Future[Served]:
        if number not in self._started:
            self._started[number] = self._backend.worker(number)
        try:
            return self._started[number].send(request)
        except self._backend.deaths:  # it was killed while it had nothing to do
            self._started.pop(number).stop()
            return self._send(number, request)

    def _bury(self, number: int, handed: _Handed[Piece], death: BaseException, why: str) -> None:
        """Ends what is left of a worker, and forgets it."""
        self._started.pop(number).stop()
        handed.deaths, handed.death, handed.seconds = handed.deaths + 1, death, 0.0
        if handed.deaths < _DEATHS:
            self._note(f"{why}; {handed.piece} begins again in another")
