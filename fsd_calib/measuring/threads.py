"""The number of CPU threads that a calibration decodes with: chosen by timing its own rounds, again when it matters.

How many are fastest depends on the models, the batch and the other work on the machine, so that none of these is
guessed from. Texts do not depend on it, beyond rounding.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
import torch

from fsd_decoding.workers.model_workers import cores

_VARIABLES = "OMP_NUM_THREADS", "MKL_NUM_THREADS"
_SMT = Path("/sys/devices/system/cpu/smt/active")
_TURNS, _FEWEST, _SECONDS = 15, 3, 1.0  # at most; at least, however long they take; after which no other begins
_CLEARLY = 1.1  # times as fast, for more threads to be taken: on a machine with other work they are the first to wait
_UNSURE = 0.25  # share of turns in which more threads may be slower all the same
_LONG, _HOPELESS = 5.0, 2.0  # seconds, and times the best so far: above both, fewer threads are not tried


def counts_to_try() -> list[int]:
    """Returns the numbers of threads to choose among: the cores that this process may use, and halves, down to 1.

    Just one where there is no choice: there is one core, or the user has given the number of threads.
    """
    if any(name in os.environ for name in _VARIABLES) or torch.get_num_threads() not in _torchs_own():
        return [torch.get_num_threads()]
    counts = [cores()]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    return counts


def _torchs_own() -> tuple[int, ...]:
    """The numbers that torch begins with: of logical cores, or of physical ones where it has MKL."""
    try:
        logical = len(os.sched_getaffinity(0))
    except AttributeError:  # neither Linux nor OpenMP of GNU: torch's own number is kept
        return ()
    shared = _SMT.exists() and _SMT.read_text().strip() == "1"
    return (logical, logical // 2) if shared else (logical,)


def fastest_count(
    counts: Sequence[int], seconds: Callable[[int], float], clock: Callable[[], float] = time.perf_counter
) -> int:
    """Returns the number of threads to use: more than the fewest only where they are clearly faster.

    All take turns, and two are compared by their ratios within a turn, by median and lower quartile, so that neither a
    machine that slows down nor moments of other work favour one.

    Args:
        counts: Numbers of threads, the largest first.
        seconds: Times the same work with so many threads.
    """
    began, first = clock(), dict[int, float]()
    for count in counts:
        first[count] = seconds(count)
        if first[count] > max(_LONG, _HOPELESS * min(first.values())):
            del first[count]  # with fewer yet it may be minutes
            break
    turns = [first]
    while len(first) > 1 and len(turns) < _TURNS and (len(turns) < _FEWEST or clock() - began < _SECONDS):
        turns.append({count: seconds(count) for count in first})
    chosen, *others = sorted(first)
    for more in others:
        ratios = [turn[chosen] / turn[more] for turn in turns]
        if median(ratios) >= _CLEARLY and np.quantile(ratios, _UNSURE) > 1:
            chosen = more
    return chosen


class Threads:
    """Sets the threads of this process to the fastest number, for some work and as long as it lasts.

    Args:
        seconds: Times some rounds with this number of rows, with the threads that are set.
        note: Receives a line for each choice that differs from the one before.
    """

    def __init__(self, seconds: Callable[[int], float], note: Callable[[str], None]) -> None:
        self._counts, self._seconds, self._note = counts_to_try(), seconds, note
        self._said = ""

    @contextmanager
    def chosen_for(self, rows: int) -> Iterator[int]:
        """Inside, this process computes with the number of threads that is fastest now, with so many rows at once.

        Yields that number.
        """
        if len(self._counts) == 1:
            yield torch.get_num_threads()
            return
        before = torch.get_num_threads()
        try:
            chosen = fastest_count(self._counts, lambda count: self._seconds_with(count, rows))
            torch.set_num_threads(chosen)
            self._say(f"{chosen} of {self._counts[0]} CPU threads for {rows} at a time, by timing some rounds now")
            yield chosen
        finally:
            torch.set_num_threads(before)

    def _seconds_with(self, count: int, rows: int) -> float:
        torch.set_num_threads(count)
        return self._seconds(rows)

    def _say(self, line: str) -> None:
        if line != self._said:
            self._said = line
            self._note(line)
