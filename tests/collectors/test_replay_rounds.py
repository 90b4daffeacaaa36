"""Rounds under policies with memory, compared with a plain loop, with policies without memory, and with decoding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fsd_decoding.policies.stopping as engine
from fsd_collectors.replay.blocks import blocks
from fsd_collectors.replay.cases import cases, quantiles
from fsd_collectors.replay.counting import LengthPolicy
from fsd_collectors.replay.rounds import (
    RoundPolicy,
    RoundStarts,
    Verified,
    count_with_policy,
    lanes_of,
    simulate_rounds,
)
from fsd_collectors.replay.simulation import replay, sweep
from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.sampling import Sampling
from support.models.tiny_pair import ragged_prompts, tiny_decoder
from support.traces.at_the_limit import is_drafted_as_replayed
from support.traces.memory_traces import MemoryTraces, trace_texts

Row = dict[str, Any]
EXACT = {"sd": "sd_accepts", "fsd-sd": "sd_accepts", "coupled": "same_token", "fsd-coupled": "same_token", "fsd": None}
SCALE = (-1.0, 0.0, 0.25, 0.5, math.inf)
LENGTHS = (1, 2, 3, 7)
EVERYBODY = RoundPolicy((), lambda starts: starts.lanes.most)

a_row = st.fixed_dictionaries(
    {
        "same_token": st.booleans(),
        "sd_accepts": st.booleans(),
        "js": st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 0.9, math.inf, math.nan]),
        "room": st.integers(0, 9),
    }
)
texts = st.lists(st.lists(a_row, min_size=1, max_size=20), min_size=1, max_size=6)


@dataclass(frozen=True)
class ByHand:
    """One round of one text, with the fields of the engine's `Verified`."""

    starts: int
    drafted: int
    accepted: int
    spared: float | None
    refused: float | None
    differs: int


def round_by_hand(completion: Sequence[Row], starts: int, drafted: int, rule: str, threshold: float) -> ByHand:
    accepted = differs = 0
    spared: list[float] = []
    refused = None
    for row in completion[starts : starts + drafted]:
        by = EXACT[rule]
        exact, d = by is not None and row[by], row["js"]
        finite = rule.startswith("fsd") and math.isfinite(d)
        if not exact and not (finite and d <= threshold):
            refused = d if finite else None
            break
        if not exact:
            spared.append(d)
        accepted, differs = accepted + 1, differs + (not exact and not row["same_token"])
    return ByHand(starts, drafted, accepted, max(spared, default=None), refused, differs)


def rounds_by_hand(completion: Sequence[Row], rule: str, threshold: float, most: int) -> list[ByHand]:
    """Drafts one token more than the last two rounds accepted together, if there is room."""
    rounds: list[ByHand] = []
    at = 0
    while at < len(completion):
        wanted = 1 + sum(one.accepted for one in rounds[-2:])
        rounds.append(round_by_hand(completion, at, min(most, completion[at]["room"], wanted), rule, threshold))
        at += rounds[-1].accepted + 1
    return rounds


def _lengths(starts: RoundStarts) -> Any:
    wanted = 1 + starts.memory.sum(1).astype(np.int64)
    return np.minimum(np.minimum(starts.lanes.most, starts.columns["room"][starts.rows]), wanted)


def _remember(memory: Any, verified: Verified) -> Any:
    return np.column_stack([verified.accepted, memory[:, 0]])


REMEMBERING = RoundPolicy(("room",), _lengths, (0.0, 0.0), _remember)


def none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value


@given(texts, st.sampled_from(sorted(EXACT)), st.sampled_from(SCALE), st.sampled_from(LENGTHS))
def test_simulated_rounds_equal_a_plain_loop(
    completions: list[list[Row]], rule: str, threshold: float, most: int
) -> None:
    traces = MemoryTraces(completions)
    (case,) = cases(traces, [rule], ["js"], [threshold], None)
    (block,) = blocks(traces, [*case.columns, "room"])
    actual: list[list[ByHand]] = [[] for _ in completions]
    for laid in simulate_rounds(case, block, lanes_of(block, np.array([threshold]), np.array([most])), REMEMBERING):
        starts, verified = laid.starts.rows - laid.starts.lanes.starts, laid.verified
        columns = (
            starts,
            verified.drafted,
            verified.accepted,
            verified.largest_accepted,
            verified.smallest_rejected,
            laid.differs,
        )
        for lane, begin, drafted, accepted, spared, refused, differs in zip(
            laid.lanes.tolist(), *(column.tolist() for column in columns), strict=True
        ):
            actual[lane].append(ByHand(begin, drafted, accepted, none_if_nan(spared), none_if_nan(refused), differs))
    assert actual == [rounds_by_hand(completion, rule, threshold, most) for completion in completions]


@given(texts, st.sampled_from(sorted(EXACT)), st.sampled_from(SCALE), st.sampled_from(LENGTHS))
def test_replay_counts_the_simulated_rounds(
    completions: list[list[Row]], rule: str, threshold: float, most: int
) -> None:
    actual = replay(MemoryTraces(completions), rule, "js", threshold, most, REMEMBERING)
    rounds = [one for completion in completions for one in rounds_by_hand(completion, rule, threshold, most)]
    assert actual.rounds == len(rounds)
    assert actual.drafted == sum(one.drafted for one in rounds)
    assert actual.substitutions == sum(one.differs for one in rounds)


def random_texts(count: int, longest: int) -> list[list[Row]]:
    rng = np.random.default_rng(0)
    return [
        [
            {"same_token": bool(same), "sd_accepts": bool(sd), "js": float(d), "room": int(room)}
            for same, sd, d, room in zip(
                rng.random(n) < 0.6, rng.random(n) < 0.5, rng.lognormal(-2, 2, n), rng.integers(0, 10, n), strict=True
            )
        ]
        for n in rng.integers(1, longest + 1, count)
    ]


def test_a_policy_that_never_stops_counts_as_fixed_lengths() -> None:
    traces = MemoryTraces(random_texts(60, 50))
    assert sweep(traces, list(EXACT), stops=EVERYBODY).equals(sweep(traces, list(EXACT)))
    assert replay(traces, stops=EVERYBODY) == replay(traces)


def test_a_policy_without_memory_counts_as_a_length_policy() -> None:
    traces = MemoryTraces(random_texts(60, 50))
    by_rounds = RoundPolicy(("room",), lambda of: np.minimum(of.columns["room"][of.rows], of.lanes.most))
    by_rows = LengthPolicy(("room",), lambda of, most: np.minimum(of["room"], most))
    assert sweep(traces, list(EXACT), stops=by_rounds).equals(sweep(traces, list(EXACT), stops=by_rows))
    assert replay(traces, stops=by_rounds) == replay(traces, stops=by_rows)


def test_counting_lanes_in_parts_gives_the_same_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = MemoryTraces(random_texts(20, 30))
    (case,) = cases(traces, ["fsd-coupled"], ["js"], [0.1, 0.2, 0.4], None)
    (block,) = blocks(traces, [*case.columns, "room"])
    arguments = (case, block, REMEMBERING, np.array([2, 0]), np.array([1, 4, 6]))
    whole = count_with_policy(*arguments)
    monkeypatch.setattr("fsd_collectors.replay.rounds._LANES", 7)
    parts = count_with_policy(*arguments)
    assert np.array_equal(whole, parts)
    assert whole.shape == (3, 2, 3, 20)


def test_a_policy_receives_each_lanes_threshold_and_draft_length() -> None:
    """Drafts two tokens where T < .3, else as many as allowed."""
    traces = MemoryTraces(random_texts(20, 30))
    bold = RoundPolicy((), lambda of: np.where(of.lanes.thresholds < 0.3, 2, of.lanes.most))
    actual = sweep(traces, thresholds=[0.1, 0.4], draft_lengths=[2, 5], stops=bold)["drafted"]
    assert actual.tolist() == [
        replay(traces, threshold=threshold, draft_length=length).drafted
        for threshold, length in ((0.1, 2), (0.1, 2), (0.4, 2), (0.4, 5))
    ]


@pytest.mark.parametrize(
    ("lengths", "complaint"),
    [
        (
            lambda of: of.lanes.most + 1,
            r"returned int64 of shape \(3,\); it must return a whole number for each draft, from 0",
        ),
        (lambda of: of.lanes.most - 9, "a whole number for each draft"),
        (lambda of: of.lanes.most / 2, "returned float64"),
        (lambda of: 3, r"of shape \(\)"),
    ],
)
def test_invalid_lengths_are_refused_in_one_line(lengths: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as refused:
        replay(MemoryTraces(random_texts(3, 5)), stops=RoundPolicy((), lengths))
    assert "\n" not in str(refused.value)


# Real decoding: tiny models in float64.

NEW = 24


class Growing(engine.StopPolicy):
    """The same policy for the engine: one token more than the last two rounds accepted together."""

    def goes_on(self, state: engine.DraftState) -> list[bool]:
        return [row is not None and len(state.logits) < 1 + sum(row.memory or (0, 0)) for row in state.rows]

    def remember(self, memory: Any, verified: engine.Verified) -> tuple[int, int]:
        return verified.accepted, (memory or (0, 0))[0]


GROWING = RoundPolicy(
    (), lambda of: np.minimum(of.lanes.most, 1 + of.memory.sum(1).astype(np.int64)), (0.0, 0.0), _remember
)


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return tiny_decoder()


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("rule", ["coupled", "fsd-coupled", "fsd"])
def test_decoding_under_a_policy_with_memory_takes_the_replayed_rounds(decoder: SpeculativeDecoder, rule: str) -> None:
    prompts = ragged_prompts(40)
    alone = decoder.generate(prompts, NEW, rule="target")
    traces = trace_texts(decoder, prompts, alone, Sampling())
    (threshold,) = quantiles(traces, "js", [0.6]).tolist()
    decoded = decoder.generate(prompts, NEW, rule=rule, threshold=threshold, draft_length=6, stop_policy=Growing())
    untouched = 0
    for own, real, text in zip(alone, decoded, traces.completions, strict=True):
        actual = replay(MemoryTraces([text]), rule, "js", threshold, 6, GROWING)
        if real.tokens == own.tokens:
            untouched += 1
            assert real.rounds == actual.rounds
            assert is_drafted_as_replayed(real, actual.drafted, 6, NEW)
    assert untouched == 40 if rule == "coupled" else 5 < untouched < 40
