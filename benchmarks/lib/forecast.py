"""Accuracy of predicted tokens per second: costs are measured on some prompts, speeds predicted and timed on others.

By the cost model, a round that drafts L tokens in B rows takes L c + v(B) seconds, where c is one draft step and v,
which is linear in B, everything else. Both are measured at each L and do not depend on T. A call takes an opening, its
rounds, and the prefill of each later prompt. Rounds, their rows and their tokens are counted, not predicted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from statistics import median
from typing import Any

import numpy as np

from fsd_calib import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from fsd_decoding.observers.round_record import Observer, RoundRecord
from lib.common.timing import Run, rates
from lib.pairs import Pair

_COSTS_THRESHOLD = -1.0  # costs are measured at a threshold that no speed is predicted for


class RoundClock:
    """An observer that times the rounds of one call of `generate`, from one record to the next.

    All work of a round lies between two records. Rounds with a prefill in between are kept apart.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []  # of every round: a batch shrinks towards the end of a stream
        self.seconds: list[float] = []  # of the rounds without a prefill before them
        self.rows_timed: list[int] = []  # rows of those rounds
        self.drafting: list[float] = []  # seconds of drafting in those rounds
        self.with_prompts: list[float] = []  # seconds of the other rounds, prefill included
        self.first = self.last = 0.0  # times of the first and the last record
        self._requests: set[int] = set()  # indices of all requests so far

    def __call__(self, record: RoundRecord) -> None:
        now = time.perf_counter()
        requests = self._requests | {request.index for request in record.requests if request}
        if not self.rows:
            self.first = now
        elif requests != self._requests:
            self.with_prompts.append(now - self.last)
        else:
            self.seconds.append(now - self.last)
            self.rows_timed.append(len(record.requests))
            self.drafting.append(record.draft_seconds)
        self.rows.append(len(record.requests))
        self.last, self._requests = now, requests


@dataclass(frozen=True)
class Costs:
    """The cost model's seconds."""

    draft_step: float  # c
    verify: float  # v without rows
    verify_row: float  # what every row adds to v
    prefill: float  # of a prompt that takes a finished one's slot
    opening: float  # prefill of the first prompts, and other work done once per call

    def round(self, setting: Setting, rows: int) -> float:
        return setting.draft_length * self.draft_step + self.verify + self.verify_row * rows

    @classmethod
    def typical(cls, measured: Sequence[Costs]) -> Costs:
        return cls(*(median(getattr(costs, field.name) for costs in measured) for field in fields(cls)))


@dataclass(frozen=True)
class Setting:
    """How prompts are decoded, apart from T."""

    draft_length: int
    batch: int


class Forecaster:
    """Decodes one pair's prompts: the first `known` to measure costs, the others to predict and time."""

    def __init__(self, pair: Pair, known: int) -> None:
        self._decoder = SpeculativeDecoder(pair.target, pair.draft, pair.tokenizer, rule="fsd-coupled")
        self._pair, self._known, self._predicted = pair, pair.prompts[:known], pair.prompts[known:]

    def costs(self, setting: Setting) -> Costs:
        clock = RoundClock()
        began = time.perf_counter()
        self._decode(self._known, setting, _COSTS_THRESHOLD, clock)
        around = clock.first - began + time.perf_counter() - clock.last
        step = median(clock.drafting) / setting.draft_length
        constant, slope = _line(clock.rows_timed, clock.seconds)
        costs = Costs(step, constant - setting.draft_length * step, slope, 0.0, 0.0)
        full = costs.round(setting, setting.batch)
        reading = sum(clock.with_prompts) - len(clock.with_prompts) * full
        prefill = reading / max(1, len(self._known) - setting.batch)
        return replace(costs, prefill=prefill, opening=around - full)

    def time(self, setting: Setting, threshold: float) -> Run:
        began = time.perf_counter()
        results = self._decode(self._predicted, setting, threshold)
        return Run(sum(r.emitted for r in results), time.perf_counter() - began)

    def predict(self, setting: Setting, threshold: float, costs: Costs) -> tuple[float, float]:
        """Returns tokens per round of the whole batch, which are counted, and tokens per second, prompts included."""
        clock = RoundClock()
        tokens = sum(r.emitted for r in self._decode(self._predicted, setting, threshold, clock))
        rounds = sum(costs.round(setting, rows) for rows in clock.rows)
        prompts = costs.opening + max(0, len(self._predicted) - setting.batch) * costs.prefill
        return tokens / len(clock.rows), tokens / (rounds + prompts)

    def _decode(
        self, prompts: list[list[int]], setting: Setting, threshold: float, observer: Observer | None = None
    ) -> list[Result]:
        return self._decoder.generate(
            prompts, self._pair.max_new_tokens, threshold=threshold, draft_length=setting.draft_length,
            batch_size=setting.batch, observer=observer,
        )  # fmt: skip


def _line(rows: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Fits seconds per round = constant + slope · rows to the median at every number of rows, weighted by its count."""
    counts = Counter(rows)
    medians = [median(s for r, s in zip(rows, seconds, strict=True) if r == row) for row in counts]
    weights = np.sqrt(list(counts.values()))
    *slope, constant = np.polyfit(list(counts), medians, deg=min(1, len(counts) - 1), w=weights)
    return float(constant), float(sum(slope))


def forecasts(pair: Pair, known: int, lengths: Sequence[int], batches: Sequence[int], repeats: int) -> dict[str, Any]:
    """Predicts speeds at the pair's thresholds.

    Measuring costs and timing speeds take turns, so that both see the same load of the machine.
    """
    forecaster = Forecaster(pair, known)
    settings = [Setting(*of) for of in product(lengths, batches)]
    cells = list(product(settings, pair.thresholds))
    for setting in settings:
        forecaster.costs(setting)  # warms up
    costs: dict[Setting, list[Costs]] = {setting: [] for setting in settings}
    runs: dict[tuple[Setting, float], list[Run]] = {cell: [] for cell in cells}
    for _, setting in product(range(repeats), settings):
        costs[setting].append(forecaster.costs(setting))
        for threshold in pair.thresholds:
            runs[setting, threshold].append(forecaster.time(setting, threshold))
    typical = {setting: Costs.typical(measured) for setting, measured in costs.items()}
    made = []
    for setting, threshold in cells:
        tokens_a_round, predicted = forecaster.predict(setting, threshold, typical[setting])
        measured = rates(runs[setting, threshold]).median
        made.append({
            "setting": asdict(setting), "threshold": threshold, "tokens_a_round": tokens_a_round,
            "predicted": predicted, "measured": measured, "error": abs(predicted / measured - 1),
        })  # fmt: skip
    return {
        "pair": pair.name,
        "costs": [asdict(setting) | asdict(seconds) for setting, seconds in typical.items()],
        "forecasts": made,
    }
