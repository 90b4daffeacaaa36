"""Seconds of rounds, as an observer sees them, and the cost of recording every divergence."""

from __future__ import annotations

import time
from typing import Any

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.divergence import DIVERGENCES
from fsd_decoding.observers.round_log import Recorder
from fsd_decoding.observers.round_record import RoundRecord, together
from lib.common.timing import Run, rates, speed_up, take_turns
from lib.decoding.pairs import Pair


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


def recording(pair: Pair, draft_length: int, batch_size: int, repeats: int) -> dict[str, Any]:
    """Returns seconds per round of `sd` with all divergences recorded and without, prefill excluded."""
    decoder = SpeculativeDecoder(pair.target, pair.draft, pair.tokenizer, rule="sd", draft_length=draft_length)

    def timed(prompts: list[list[int]], recorder: Recorder | None = None) -> Run:
        clock = RoundClock()
        observer = together(clock, recorder) if recorder else clock
        decoder.generate(prompts, pair.max_new_tokens, batch_size=batch_size, observer=observer)
        began = time.perf_counter()
        if recorder is not None:  # it computes its columns only here, which is part of its cost
            assert len(recorder.columns()["js"]) > 0
        return Run(len(clock.seconds), sum(clock.seconds) + time.perf_counter() - began)

    contenders = {
        "silent": timed,
        "recording": lambda prompts: timed(prompts, Recorder(list(DIVERGENCES))),
    }
    work = [pair.prompts[i : i + batch_size] for i in range(0, len(pair.prompts), batch_size)]
    take_turns(contenders, work[:1], 2)  # warms up
    runs = take_turns(contenders, work, repeats)
    return {
        "pair": pair.name,
        "batch": batch_size,
        "divergences": list(DIVERGENCES),
        "seconds_a_round": {name: 1 / rates(counted).median for name, counted in runs.items()},
        "ratio": speed_up(runs["silent"], runs["recording"]),
    }
