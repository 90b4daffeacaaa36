"""How long a round takes, seen from an observer, and what it costs to record it.

Knows rounds, observers and clocks. Knows nothing of transformers' side.
"""

from __future__ import annotations

import time
from typing import Any

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.divergence import DIVERGENCES
from fsd_decoding.observers.recorder import Recorder
from fsd_decoding.observers.round_record import RoundRecord, together
from lib.common.timing import Run, rates, speed_up, take_turns
from lib.decoding.pairs import Pair


class RoundClock:
    """Times the rounds of one call of `generate`: from one look at a round to the next.

    Whatever a round does lies between two looks. Where prompts were read in between, the time is kept apart.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []  # of every round: a batch shrinks towards the end of a stream
        self.seconds: list[float] = []  # of the rounds before which no prompt was read
        self.rows_timed: list[int] = []  # of them, as are the next
        self.drafting: list[float] = []
        self.with_prompts: list[float] = []  # rounds together with the prompts read before them
        self.first = self.last = 0.0  # when the first and the last look was
        self._seen: set[int] = set()  # requests

    def __call__(self, record: RoundRecord) -> None:
        now = time.perf_counter()
        known = self._seen | {request.index for request in record.requests if request}
        if not self.rows:
            self.first = now
        elif known != self._seen:
            self.with_prompts.append(now - self.last)
        else:
            self.seconds.append(now - self.last)
            self.rows_timed.append(len(record.requests))
            self.drafting.append(record.draft_seconds)
        self.rows.append(len(record.requests))
        self.last, self._seen = now, known


def recording(pair: Pair, draft_length: int, batch_size: int, repeats: int) -> dict[str, Any]:
    """Seconds a round of `sd` with all divergences recorded, over those without; prompts are not in them."""
    decoder = SpeculativeDecoder(pair.target, pair.draft, pair.tokenizer, rule="sd", draft_length=draft_length)

    def timed(prompts: list[list[int]], recorder: Recorder | None = None) -> Run:
        clock = RoundClock()
        watch = together(clock, recorder) if recorder else clock
        decoder.generate(prompts, pair.max_new_tokens, batch_size=batch_size, observer=watch)
        began = time.perf_counter()
        if recorder is not None:  # what it held back is worked off here, and is part of the price
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
        "seconds_a_round": {name: 1 / rates(taken).median for name, taken in runs.items()},
        "ratio": speed_up(runs["silent"], runs["recording"]),
    }
