"""Costs of a round: the line through measured seconds, and which rounds are measured."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.engines.base import fit
from fsd_calib.engines.own import RoundClock, measure_costs, undisturbed_clock
from fsd_common.errors import UsageError
from fsd_decoding.observers.round_record import RoundRecord
from support.models.tiny_pair import ragged_prompts, tiny_decoder

SECONDS = st.floats(1e-5, 1.0)


@given(SECONDS, SECONDS, SECONDS)
def test_the_fit_recovers_the_costs_of_exact_rounds(c: float, v: float, position: float) -> None:
    found = fit({length: length * c + v + (length + 1) * position for length in (2, 4, 8)}, c)
    assert found.seconds(1, 12) == pytest.approx(12 * c + v + 13 * position, rel=1e-6)
    assert found.seconds(1, 0) == pytest.approx(v + position, rel=1e-5, abs=1e-8)
    assert found.draft_step == pytest.approx(c if position <= v + position else 0, rel=1e-4, abs=1e-7)


def test_the_clock_excludes_prefill_and_smaller_batches() -> None:
    decoder, records = tiny_decoder(), list[RoundRecord]()
    clock = RoundClock(decoder.device)

    def look(record: RoundRecord) -> None:
        clock(record)
        records.append(record)

    for _ in range(2):  # calls of `generate`
        clock.restart()
        decoder.generate(ragged_prompts(4), 30, batch_size=4, stop=["w7"], observer=look)
    full = [record for record in records if len(record.requests) == 4]
    assert len(full) < len(records)
    assert len(clock.seconds) == len(clock.drafting) == len(full) - 2
    assert all(drafting < whole for drafting, whole in zip(clock.drafting, clock.seconds, strict=True))


def test_on_one_thread_a_round_costs_no_more_where_others_have_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeping takes the core away as other processes do: 50 ms in each round of a few."""
    decoder = tiny_decoder()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    own, wall = RoundClock(decoder.device, undisturbed_clock(decoder.device)), RoundClock(decoder.device)

    def look(record: RoundRecord) -> None:
        own(record)
        wall(record)
        time.sleep(0.05)

    decoder.generate(ragged_prompts(2), 20, batch_size=2, observer=look)
    assert max(own.seconds) < 0.05 < min(wall.seconds)
    assert all(drafting < whole for drafting, whole in zip(own.drafting, own.seconds, strict=True))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert undisturbed_clock(decoder.device) is time.perf_counter
    assert undisturbed_clock(torch.device("cuda")) is time.perf_counter


@pytest.mark.slow
def test_costs_are_measured_at_the_given_batch_size() -> None:
    costs = measure_costs(tiny_decoder(), ragged_prompts(3), [5, 6, 7], 40, batch_size=4, draft_lengths=(1, 5))
    assert costs.rows == 4
    assert costs.model.draft_step > 0
    assert costs.model.seconds(1, 5) > costs.model.seconds(1, 1) > 0


def test_a_single_draft_length_is_refused() -> None:
    with pytest.raises(UsageError, match=r"draft_lengths is \[3, 3\]"):
        measure_costs(tiny_decoder(), [[1]], [0], 40, batch_size=1, draft_lengths=(3, 3))


@pytest.mark.slow
def test_texts_of_one_round_are_refused() -> None:
    with pytest.raises(UsageError, match="no text took a second round"):
        measure_costs(tiny_decoder(), [[1]], [0], 1, batch_size=1)


@given(st.dictionaries(st.integers(0, 32), SECONDS, min_size=2, max_size=6), st.floats(0.0, 10.0))
def test_no_cost_is_negative(seconds: dict[int, float], draft_step: float) -> None:
    """Not even where a longer draft took less time, as it may where only its length has a graph."""
    costs = fit(seconds, draft_step)
    assert min(costs.draft_step, costs.verify, costs.position) >= 0
    assert costs.verify + costs.position > 0
    assert costs.seconds(1, 4) > 0


@given(SECONDS, SECONDS, st.floats(0.0, 1.0))
def test_seconds_on_a_line_come_back(token: float, constant: float, draft_step: float) -> None:
    costs = fit({length: length * token + constant for length in (1, 4, 8)}, draft_step)
    assert costs.draft_step + costs.position == pytest.approx(token, rel=1e-3, abs=1e-6)
    assert costs.verify + costs.position == pytest.approx(constant, rel=1e-3, abs=1e-6)
