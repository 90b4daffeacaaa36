"""Threshold policies in the engine: thresholds, errors and hooks. `test_adaptive_policies.py` tests particular ones."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from conformance.threshold_policies import DRAFTS, NEW, PROMPTS, counted, decode, decoder
from fsd_common.errors import ThresholdError, UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.policies.threshold import NewRequests, RoundOutcome, RoundState, ScalePolicy, ThresholdPolicy
from support.models.tiny_models import EOS

FUZZY = ("fsd", "fsd-sd", "fsd-coupled")


class Fixed(ThresholdPolicy):
    """A single T, set by a policy."""

    threshold = 0.1

    def thresholds(self, state: RoundState) -> Tensor:
        return torch.full_like(state.base, self.threshold)


class Tightening(ScalePolicy):
    """Stricter with every round of a text and every substituted token."""

    threshold = 0.4

    def scales(self, state: RoundState) -> Tensor:
        used: Tensor = state.memory.column("rounds") / 2 + state.memory.column("substituted")
        return used.add(1.0).reciprocal()

    def observe(self, outcome: RoundOutcome) -> None:
        outcome.state.memory.column("rounds").add_((outcome.kept > 0).double())
        outcome.state.memory.column("substituted").add_(outcome.substituted.sum(1))

    def traced(self, columns: Mapping[str, Any]) -> Any:
        raise UsageError("Tightening cannot be replayed; decode instead")


class Returning(ThresholdPolicy):
    """Returns whatever its function does."""

    def __init__(self, answer: Callable[[RoundState], object]) -> None:
        self._answer = answer

    def thresholds(self, state: RoundState) -> Tensor:
        return cast(Tensor, self._answer(state))


class Scaling(ScalePolicy):
    threshold = 0.1

    def __init__(self, answer: Callable[[RoundState], Tensor]) -> None:
        self._answer = answer

    def scales(self, state: RoundState) -> Tensor:
        return self._answer(state)


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("rule", FUZZY)
def test_a_policy_of_one_threshold_is_that_threshold(rule: str) -> None:
    found, plain = (decode(policy, rule=rule) for policy in (Fixed(), 0.1))
    assert counted(found) == counted(plain)
    assert {r.interval for r in found} == {(0.1, 0.1)}  # empty: T was the policy's, not .1


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("rule", FUZZY)
def test_a_policy_of_scale_one_is_that_threshold_with_its_interval(rule: str) -> None:
    assert decode(Scaling(lambda state: torch.ones_like(state.base)), rule=rule) == decode(0.1, rule=rule)


def test_thresholds_hold_token_by_token() -> None:
    """The first drafted token of a round under a strict T, all others under a loose one."""
    strict, loose = 0.02, 0.4

    def by_place(state: RoundState) -> Tensor:
        return torch.tensor([strict, *[loose] * (DRAFTS - 1)], dtype=torch.float64).expand(state.proposal.drafted.shape)

    records: list[RoundRecord] = []
    decoder().generate(PROMPTS[:1], NEW, 0.9, rule="fsd", threshold=Returning(by_place), observer=records.append)
    assert records
    for record in records:
        assert record.thresholds.tolist() == [[strict] + [loose] * (DRAFTS - 1)]
        assert torch.equal(record.verdict.accepted, record.proposal.scores <= record.thresholds)


@pytest.mark.parametrize("rule", ["sd", "coupled", "target"])
def test_rules_without_a_threshold_on_a_score_refuse_one(rule: str) -> None:
    with pytest.raises(UsageError, match=f"rule '{rule}' has no threshold on a score that Fixed could move"):
        decode(Fixed(), rule=rule)
    pair = decoder()
    with pytest.raises(UsageError, match=f"rule '{rule}' has no threshold on a score that Fixed could move"):
        SpeculativeDecoder(pair.target, pair.draft, pair.tokenizer, rule=rule, threshold=Fixed())


class ByThreshold(StopPolicy):
    reads_threshold = True


@pytest.mark.parametrize("policy", [Fixed(), Tightening()])
def test_a_stop_policy_that_reads_the_threshold_refuses_one_that_moves(policy: ThresholdPolicy) -> None:
    message = f"ByThreshold ends drafts by a T that stays, and {type(policy).__name__} moves it; give T as a number"
    with pytest.raises(UsageError, match=message):
        decode(policy, stop_policy=ByThreshold())


# Invalid thresholds


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (lambda state: torch.zeros(len(state.base) + 1), r"a torch.float32 tensor of shape \(25,\)"),
        (lambda state: torch.zeros(len(state.base), 1), r"tensor of shape \(24, 1\)"),
        (lambda state: torch.zeros(()), r"tensor of shape \(\)"),
        (lambda state: torch.zeros(len(state.base), dtype=torch.int64), "a torch.int64 tensor"),
        (lambda state: state.base > 0, "a torch.bool tensor"),
        (lambda state: [0.1] * len(state.base), r"\[0.1, 0.1"),
        (lambda state: state.base[:, None].numpy().repeat(2, 1), r"array\(\[\["),
        (lambda state: 0.1, "0.1;"),
        (lambda state: None, "None;"),
    ],
)
@pytest.mark.parametrize("kind", [Returning, Scaling])
def test_thresholds_of_another_shape_or_type_are_refused(
    kind: type[ThresholdPolicy], answer: Callable[[RoundState], object], shown: str
) -> None:
    with pytest.raises(UsageError, match=f"the threshold policy {kind.__name__} returned .*{shown}") as caught:
        decode(kind(answer))  # type: ignore[call-arg]
    assert "\n" not in str(caught.value)
    assert "it must return a float tensor of shape (24,), one per row, or (24, 3), one per drafted token" in str(
        caught.value
    )


def late(value: float) -> Callable[[RoundState], Tensor]:
    """Returns 0.1, and `value` for texts of 9 tokens or more."""
    return lambda state: torch.where(state.emitted >= 9, value, 0.1).double()


@pytest.mark.parametrize("policy", [Returning(late(math.nan)), Scaling(late(math.nan)), Scaling(late(-1.0))])
def test_a_nan_threshold_names_policy_and_prompt_and_keeps_finished_results(policy: Any) -> None:
    name = type(policy).__name__
    wanted = rf"prompt (\d+) got a threshold that is NaN, or a negative scale, from {name} in round \d+"
    with pytest.raises(ThresholdError, match=wanted) as caught:
        decode(policy, batch_size=2)
    named = re.match(wanted, str(caught.value))
    assert named is not None
    finished = caught.value.finished
    assert int(named[1]) not in finished
    assert finished
    assert all(len(result.tokens) <= 9 + DRAFTS for result in finished.values())


def test_thresholds_of_padding_do_not_matter() -> None:
    """Policies return L values for rows that draft less than others and for empty rows, too."""
    lengths = [1 + i % DRAFTS for i in range(len(PROMPTS))]

    def nan_in_padding(state: RoundState) -> Tensor:
        return torch.where(state.proposed, 0.1, math.nan).double()

    for policy in (Returning(nan_in_padding), Scaling(lambda state: nan_in_padding(state) * 10)):
        found = decode(policy, draft_length=lengths, batch_size=4)
        assert counted(found) == counted(decode(0.1, draft_length=lengths, batch_size=4))


def test_negative_and_infinite_thresholds_are_lossless_and_boundless() -> None:
    alone = decoder().generate(PROMPTS, NEW, 0.9, rule="target")
    lossless = decode(Returning(lambda state: torch.full_like(state.base, -1.0)))
    assert [r.tokens for r in lossless] == [r.tokens for r in alone]
    assert counted(decode(Returning(lambda state: torch.full_like(state.base, math.inf)))) == counted(decode(math.inf))


def test_a_scale_of_zero_accepts_no_score() -> None:
    alone = decoder().generate(PROMPTS, NEW, 0.9, rule="target")
    assert [r.tokens for r in decode(Scaling(lambda state: torch.zeros_like(state.base)))] == [r.tokens for r in alone]


# Hooks


class Recording(Tightening):
    """Keeps the arguments of all hooks."""

    def __init__(self) -> None:
        self.started: list[NewRequests] = []
        self.observed: list[RoundOutcome] = []
        self.decided: list[Tensor] = []  # (B, L) each
        self.checked: list[tuple[int, str, str]] = []

    def start(self, new: NewRequests) -> None:
        self.started.append(new)

    def observe(self, outcome: RoundOutcome) -> None:
        super().observe(outcome)
        self.observed.append(outcome)
        self.decided.append(outcome.decided)

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, score: str) -> None:
        self.checked.append((len(models), rule, score))


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("batch_size", [1, 7, 24])
def test_hooks_receive_every_text_and_every_token(batch_size: int) -> None:
    policy = Recording()
    found = decode(policy, batch_size=batch_size, rule="fsd-sd")
    assert policy.checked == [(2, "fsd-sd", "js")]
    assert [new.first for new in policy.started] == [True] + [False] * (len(policy.started) - 1)
    started = [request.index for new in policy.started for request in new.requests]
    assert sorted(started) == list(range(len(PROMPTS)))
    kept = sum(int(outcome.kept.sum()) for outcome in policy.observed)
    assert kept == sum(r.emitted for r in found)
    assert sum(int((outcome.kept > 0).sum()) for outcome in policy.observed) == sum(r.rounds for r in found)


def test_decided_tokens_are_the_accepted_ones_and_the_first_rejected() -> None:
    policy = Recording()
    decode(policy, batch_size=7)
    for outcome, decided in zip(policy.observed, policy.decided, strict=True):
        drafted = outcome.state.drafted
        counts = torch.where(outcome.kept > 0, torch.minimum(outcome.accepted + 1, drafted), 0)
        assert drafted.max() == decided.shape[1] <= DRAFTS
        assert torch.equal(decided, torch.arange(decided.shape[1]) < counts[:, None])


def test_substituted_tokens_have_a_score_within_the_threshold() -> None:
    policy = Recording()
    decode(policy, batch_size=7)
    assert sum(int(outcome.substituted.sum()) for outcome in policy.observed) >= 10
    for outcome in policy.observed:
        assert (outcome.scores <= outcome.thresholds)[outcome.substituted].all()
    lossless = Recording()
    lossless.threshold = -1.0
    decode(lossless, batch_size=7)
    assert not any(outcome.substituted.any() for outcome in lossless.observed)


def test_places_count_the_completions_tokens() -> None:
    places: list[list[int]] = []

    def record_places(state: RoundState) -> Tensor:
        places.append(state.places[0].tolist())
        assert state.emitted.tolist() == [places[-1][0]]
        return state.base

    (found,) = decoder().generate([[5, 6, 7, 8]], NEW, 0.9, threshold=Returning(record_places), draft_length=DRAFTS)
    assert len(places) == found.rounds
    assert places[0] == list(range(DRAFTS))
    assert all(now[0] > before[0] for before, now in pairwise(places))


# Batches, streams, graphs


def test_memory_follows_its_row_through_refills_and_batches_that_shrink() -> None:
    alone = [decoder().generate([p], NEW, 0.9, threshold=Tightening(), ids=[i])[0] for i, p in enumerate(PROMPTS)]
    assert counted(alone) != counted(decode(0.4))
    for batch_size in (2, 7, 24):
        assert counted(decode(Tightening(), batch_size=batch_size)) == counted(alone)


def test_a_stream_is_what_generate_gives() -> None:
    for i, prompt in enumerate(PROMPTS[:3]):
        pieces = decoder().stream(prompt, NEW, 0.9, threshold=Tightening(), id=i)
        assert "".join(pieces) == decode(Tightening())[i].text


@pytest.mark.slow
def test_captured_graphs_change_nothing() -> None:
    plain = decoder()
    captured = SpeculativeDecoder(plain.target, plain.draft, plain.tokenizer, draft_length=DRAFTS, compile="capture")
    found = captured.generate(PROMPTS, NEW, 0.9, threshold=Tightening(), batch_size=4)
    assert counted(found) == counted(decode(Tightening()))


def test_an_observer_changes_nothing_and_receives_the_thresholds() -> None:
    seen: list[Tensor] = []
    policy = Recording()
    found = decode(policy, batch_size=4, observer=lambda record: seen.append(record.thresholds))
    assert found == decode(Tightening(), batch_size=4)
    for thresholds, outcome in zip(seen, policy.observed, strict=True):
        assert torch.equal(thresholds, outcome.thresholds.expand(thresholds.shape))


def test_a_decoders_own_policy_is_that_of_its_calls_unless_they_say_otherwise() -> None:
    plain = decoder()
    own = SpeculativeDecoder(plain.target, plain.draft, plain.tokenizer, threshold=Tightening(), draft_length=DRAFTS)
    assert own.threshold == Tightening.threshold
    assert own.generate(PROMPTS, NEW, 0.9) == decode(Tightening())
    assert own.generate(PROMPTS, NEW, 0.9, threshold=0.1) == decode(0.1)
    assert own.generate(PROMPTS, NEW, 0.9, threshold=Fixed()) == decode(Fixed())
    assert own.generate(PROMPTS, NEW, 0.9, rule="sd") == plain.generate(PROMPTS, NEW, 0.9, rule="sd")


def test_doubts_of_a_policy_are_warned_of_at_the_callers_line() -> None:
    class Doubtful(Fixed):
        def doubts(self) -> list[str]:
            return ["this cannot be held"]

    with pytest.warns(UserWarning, match="this cannot be held") as caught:
        decoder().generate(PROMPTS[:1], 4, threshold=Doubtful())
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match="this cannot be held") as caught:
        [*decoder().stream(PROMPTS[0], 4, threshold=Doubtful())]
    assert [warning.filename for warning in caught] == [__file__]


def test_texts_end_in_all_ways_under_a_policy() -> None:
    """So the tests above cover texts cut by EOS and by length, also within a drafted block."""
    reasons = [r.finish_reason for r in decode(Tightening())]
    assert {"eos", "length"} == set(reasons)
    assert decoder().eos == set(EOS)
