"""What workers would make of a job of real models: a projection from assumed times of rounds, not a measurement.

Batches are those that `batch_sizes` hands out, each worker decodes its own with rows that are refilled, and the parent
handles one result at a time. One worker is the process itself, which decodes each call's problems with rows that are
refilled until the last. The baseline is taken as one call, and so is each trial; in truth they are several.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

from fsd_calib.certification.holdout import PORTIONS
from fsd_decoding.workers.batches import batch_sizes


@dataclass(frozen=True)
class RealPair:
    """Assumed seconds of a pair of models on one device, and lengths of texts.

    The times are twice what reading the target's weights once takes on a GPU of 3 TB/s, and more than that for the
    draft, whose steps are short; small batches take no less.
    """

    target_step: float = 0.010  # of a target of 7B in bf16, for a token of each row
    draft_step: float = 0.0015  # of a draft of 0.5B
    draft_length: int = 8
    tokens_per_round: float = 6.0
    tokens: int = 200  # of a text, on average
    spread: float = 0.4  # standard deviation of its logarithm

    def text_seconds(self, fuzzy: bool) -> float:
        """Seconds of a text of average length in one row."""
        if not fuzzy:
            return self.tokens * self.target_step
        rounds = self.tokens / self.tokens_per_round
        return rounds * (self.target_step + self.draft_length * self.draft_step)


@dataclass(frozen=True)
class Counts:
    """Decodings of a calibration by step.

    Args:
        timed: decodings that are timed, one at a time and in one process.
    """

    baseline: int
    search: int
    trials: int
    certification: int
    timed: int

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> Counts:
        """Those of a run of `benchmarks/command.py`."""
        work = {name: one["decoded"] for name, one in run["work"].items()}
        return cls(**work, trials=run["trials"], timed=run["planned"]["timing"]["decodings"])

    def calls(self) -> Iterator[tuple[str, int, bool]]:
        """Yields name, decodings, and whether a fuzzy setting decodes, of what workers share at a time."""
        yield "baseline", self.baseline, False
        for trial in range(self.trials):
            yield "search", (self.search + trial) // self.trials, True
        each = self.certification // 2  # problems, of the target and of one setting
        for portion in range(PORTIONS):
            problems = each * (portion + 1) // PORTIONS - each * portion // PORTIONS
            yield "certification", problems, False
            yield "certification", problems, True


@dataclass(frozen=True)
class Overheads:
    """Measured seconds of the process that hands out work."""

    batch: float
    result: float
    start: float


def project(pair: RealPair, counts: Counts, costs: Overheads, workers: int, rows: int) -> dict[str, Any]:
    """Returns seconds by step."""
    lengths = Random(0)
    seconds = {"start": costs.start if workers > 1 else 0.0}
    for name, problems, fuzzy in counts.calls():
        mean = pair.text_seconds(fuzzy)
        texts = [mean * lengths.lognormvariate(-(pair.spread**2) / 2, pair.spread) for _ in range(problems)]
        seconds[name] = seconds.get(name, 0.0) + _call(texts, costs, workers, rows)
    seconds["timing"] = counts.timed * (pair.text_seconds(False) + pair.text_seconds(True)) / 2
    return {"workers": workers, "seconds": seconds, "total": sum(seconds.values())}


def _call(texts: Sequence[float], costs: Overheads, workers: int, rows: int) -> float:
    """Seconds until workers have decoded texts and the parent has the results."""
    if workers == 1:
        return _batch(texts, rows) + len(texts) * costs.result
    free, parent, rest = [0.0] * workers, 0.0, iter(texts)
    for size in batch_sizes(len(texts), rows, workers):
        begins = heapq.heappop(free) + costs.batch
        ends = begins + _batch(islice(rest, size), rows)
        parent = max(parent, ends) + size * costs.result
        heapq.heappush(free, ends)
    return parent


def _batch(texts: Iterable[float], rows: int) -> float:
    """Seconds of a batch in one worker, whose rows are refilled."""
    ends = [0.0] * rows
    for text in texts:
        heapq.heappush(ends, heapq.heappop(ends) + text)
    return max(ends)
