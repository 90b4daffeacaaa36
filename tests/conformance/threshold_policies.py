"""Conformance tests of threshold policies, as test classes to derive from.

A derived class is parametrised with `make`, a function that returns a new instance of the policy under test.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding.adaptive import Schedule, policy_named
from fsd_decoding.batch import Request
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.policies.threshold import (
    NewRequests,
    RoundOutcome,
    RoundState,
    RowMemory,
    ScalePolicy,
    ThresholdPolicy,
    check_output,
)
from fsd_decoding.proposal import Criterion, Proposal, Verdict
from fsd_decoding.sampling import Sampling
from support.models.tiny_models import VOCABULARY, word_tokenizer
from support.models.tiny_pair import ragged_prompts, related

DRAFTS, ROUNDS, SLOTS, NEW = 3, 4, 64, 14
FULL_STOPS = range(4, VOCABULARY, 4)  # tokens that end a sentence
ROUNDING = 1e-9
PROMPTS = ragged_prompts(24)

Make = Callable[[], ThresholdPolicy]
MakeScale = Callable[[], ScalePolicy]


@cache
def decoder() -> SpeculativeDecoder:
    """Returns a decoder of the tiny pair, with tokens that end a sentence."""
    tokenizer = word_tokenizer(others={token: f"w{token}." for token in FULL_STOPS})
    return SpeculativeDecoder(*related(seed=1, spread=0.05), tokenizer, draft_length=DRAFTS)


def ready(policy: ThresholdPolicy) -> ThresholdPolicy:
    """Returns the policy, checked as at the beginning of a call of the decoder."""
    pair = decoder()
    policy.check([pair.target, pair.draft], pair.tokenizer, pair.rule, pair.score)
    return policy


def decode(threshold: Any, **settings: Any) -> list[Result]:
    """Returns texts sampled from the tiny pair."""
    return decoder().generate(PROMPTS, NEW, 0.9, threshold=threshold, **settings)


def counted(results: Sequence[Result]) -> list[tuple[list[int], int, int, int]]:
    """Returns what results hold, except for their intervals."""
    return [(r.tokens, r.rounds, r.drafted, r.accepted) for r in results]


class Plain(ThresholdPolicy):
    """A user's policy that is not a scale policy."""

    threshold = 0.15

    def thresholds(self, state: RoundState) -> Tensor:
        return torch.where(state.target_entropy > 1, 0.1, 0.3).double()


class Own(ScalePolicy):
    """A user's scale policy without an identity: half of T from the second token on."""

    threshold = 0.2

    def scales(self, state: RoundState) -> Tensor:
        return torch.where(state.places > 0, 0.5, 1.0).double()

    least, columns = 0.5, ("position",)

    def traced(self, columns: Mapping[str, Any]) -> Any:
        return 1.0 - 0.5 * (columns["position"] > 0)


def rise() -> Schedule:
    return Schedule(0.05, 0.3, over=6)


class Texts:
    """Texts that grow by random rounds. A text's rounds depend on its number alone, not on the other texts."""

    def __init__(self, numbers: Sequence[int], threshold: float, spread: float = 3.0) -> None:
        self._random = [torch.Generator().manual_seed(number) for number in numbers]
        self._spread = spread
        self.requests = [Request(n, [5] * (1 + n % 4), n, threshold, DRAFTS, SLOTS) for n in numbers]
        self.begins = torch.tensor([len(r.prompt) for r in self.requests])
        self.lengths = self.begins.clone()
        self.tokens = torch.zeros((len(numbers), SLOTS), dtype=torch.int64)
        self.memory = RowMemory(len(numbers), self.tokens.device)

    def round(self) -> RoundState:
        positions = self.lengths[:, None] + torch.arange(DRAFTS + 1)
        target, draft = self._normal(DRAFTS + 1, VOCABULARY), self._normal(DRAFTS, VOCABULARY)
        drafted = draft.argmax(-1)
        self.tokens.scatter_(1, positions[:, :-1], drafted)
        base = torch.tensor([r.threshold for r in self.requests], dtype=torch.float64)
        keys = torch.zeros((len(base), 2), dtype=torch.int64)
        proposal = Proposal(target, draft, drafted, positions, self.tokens, keys, base, Criterion(), Sampling())
        return RoundState(proposal, torch.full_like(self.lengths, DRAFTS), self.begins, self.memory)

    def outcome(self, state: RoundState, thresholds: Tensor) -> RoundOutcome:
        accepted = torch.cat([torch.randint(DRAFTS + 1, (1,), generator=g) for g in self._random])
        agreed = torch.arange(DRAFTS) < accepted[:, None]
        y = state.proposal.target_logits.argmax(-1)
        emitted = torch.where(
            torch.arange(DRAFTS + 1) < accepted[:, None], self.tokens.gather(1, positions_of(state)), y
        )
        self.tokens.scatter_(1, positions_of(state), emitted)
        self.lengths = self.lengths + accepted + 1
        verdict = Verdict(agreed, y[:, :-1], state.proposal.scores, torch.ones_like(agreed))
        return RoundOutcome(state, thresholds, verdict, accepted, accepted + 1)

    def _normal(self, *shape: int) -> Tensor:
        drawn = [torch.randn(shape, generator=g, dtype=torch.float64) for g in self._random]
        return self._spread * torch.stack(drawn)


def positions_of(state: RoundState) -> Tensor:
    return state.proposal.positions


def thresholds_of(policy: ThresholdPolicy, numbers: Sequence[int], spread: float = 3.0, scales: bool = False) -> Tensor:
    """Returns a policy's thresholds, or scales, over some rounds of texts: (ROUNDS, B, L)."""
    return torch.stack([*_outputs(ready(policy), Texts(numbers, policy.threshold, spread), scales)])


def _outputs(policy: ThresholdPolicy, texts: Texts, scales: bool) -> Iterator[Tensor]:
    policy.start(NewRequests(torch.arange(len(texts.requests)), texts.requests, texts.memory, True))
    for _ in range(ROUNDS):
        state = texts.round()
        output = policy.scales(state) if scales and isinstance(policy, ScalePolicy) else policy.thresholds(state)
        assert output.device == state.drafted.device
        checked = check_output(output, policy, state)
        policy.observe(texts.outcome(state, checked))
        yield checked.expand(-1, DRAFTS)


class EveryPolicy:
    """Tests of any threshold policy, budgets included."""

    def test_thresholds_are_floats_of_an_allowed_shape_and_never_nan(self, make: Make) -> None:
        for spread in (0.0, 3.0, 100.0):
            assert not thresholds_of(make(), range(5), spread).isnan().any()

    def test_a_second_instance_returns_the_same(self, make: Make) -> None:
        assert torch.equal(thresholds_of(make(), range(5)), thresholds_of(make(), range(5)))

    def test_rows_in_another_order_get_their_own_thresholds(self, make: Make) -> None:
        order = [3, 0, 4, 1, 2]
        torch.testing.assert_close(thresholds_of(make(), order), thresholds_of(make(), range(5))[:, order])

    def test_what_it_has_learned_can_be_saved_and_restored(self, make: Make) -> None:
        learned, fresh, file = make(), make(), io.BytesIO()
        thresholds_of(learned, range(5))
        torch.save(learned.state_dict(), file)
        file.seek(0)
        fresh.load_state_dict(torch.load(file, weights_only=True))
        torch.testing.assert_close(thresholds_of(fresh, range(5)), thresholds_of(learned, range(5)))

    def test_the_state_of_another_policy_is_refused(self, make: Make) -> None:
        with pytest.raises(UsageError, match="the policy that saved it"):
            make().load_state_dict({"unknown": 1.0})


class EveryScalePolicy(EveryPolicy):
    """Tests of scale policies: what scales may not depend on, and what follows from that."""

    def test_thresholds_of_a_text_do_not_depend_on_the_other_rows(self, make: MakeScale) -> None:
        together = thresholds_of(make(), range(5))
        for number in range(5):
            torch.testing.assert_close(thresholds_of(make(), [number])[:, 0], together[:, number])

    def test_scales_do_not_depend_on_the_threshold(self, make: MakeScale) -> None:
        policy = make()
        assert torch.equal(
            thresholds_of(policy, range(5), scales=True), thresholds_of(policy.at(0.7), range(5), scales=True)
        )

    def test_another_threshold_keeps_the_shape(self, make: MakeScale) -> None:
        policy = make()
        other = policy.at(0.7)
        assert (other.threshold, other.identity, other.least) == (0.7, policy.identity, policy.least)
        assert type(other) is type(policy)

    def test_no_scale_above_zero_is_smaller_than_the_least(self, make: MakeScale) -> None:
        for spread in (0.0, 3.0, 100.0):
            scales = thresholds_of(make(), range(5), spread, scales=True)
            assert (scales >= 0).all()
            assert (scales[scales > 0] >= make().least * (1 - ROUNDING)).all()

    def test_its_identity_rebuilds_it(self, make: MakeScale) -> None:
        policy = make()
        if policy.identity is not None:
            again = policy_named(policy.identity).at(policy.threshold)
            assert (again.identity, again.least, again.columns) == (policy.identity, policy.least, policy.columns)
            assert torch.equal(thresholds_of(again, range(5)), thresholds_of(policy, range(5)))

    def test_scales_along_a_trace_are_those_of_decoding(self, make: MakeScale) -> None:
        policy = make()
        seen, columns = _decoded_scales(policy)
        if not columns.keys() >= set(policy.columns):  # what decoding drafts at a place says nothing of its text
            return
        try:
            traced = policy.traced({name: columns[name] for name in policy.columns})
        except (UsageError, NotImplementedError):  # it cannot be replayed, or does not implement it
            return
        assert seen == pytest.approx(traced, rel=1e-9)

    @pytest.mark.thinned(every=4)
    @pytest.mark.parametrize("rule", ["fsd", "fsd-sd", "fsd-coupled"])
    def test_inside_a_texts_interval_every_threshold_gives_it_again(self, make: MakeScale, rule: str) -> None:
        policy, rng = make().at(0.2), Random(0)
        prompts = PROMPTS[:8]
        for i, was in enumerate(decoder().generate(prompts, NEW, 0.9, rule=rule, threshold=policy)):
            lo, hi = max(was.interval[0], 0.0), min(was.interval[1], 2.0)
            if hi - lo > 3 * ROUNDING:
                inside = policy.at(rng.uniform(lo + ROUNDING, hi - ROUNDING))
                assert_same(_alone(inside, prompts[i], i, rule), was)

    @pytest.mark.thinned(every=3)
    def test_outside_a_texts_interval_another_decision_bounds_it(self, make: MakeScale) -> None:
        """At its upper end the decision that bounds it flips, and bounds the next interval from below."""
        policy, flipped = make().at(0.1), 0
        prompts = PROMPTS[:8]
        for i, was in enumerate(decoder().generate(prompts, NEW, 0.9, threshold=policy)):
            if math.isfinite(hi := was.interval[1]):
                other = _alone(policy.at(hi + ROUNDING), prompts[i], i)
                assert other.interval[0] == pytest.approx(hi, rel=1e-6)
                flipped += other.tokens != was.tokens
        assert flipped


def assert_same(now: Result, was: Result) -> None:
    assert (now.tokens, now.rounds, now.accepted) == (was.tokens, was.rounds, was.accepted)
    assert now.interval == pytest.approx(was.interval, rel=1e-6)


def _alone(policy: ThresholdPolicy, prompt: list[int], number: int, rule: str | None = None) -> Result:
    return decoder().generate([prompt], NEW, 0.9, rule=rule, threshold=policy, ids=[number])[0]


def _decoded_scales(policy: ScalePolicy) -> tuple[Any, dict[str, Any]]:
    """Returns the scale of every drafted token of one text, and the columns of its trace."""
    records: list[RoundRecord] = []

    def keep(record: RoundRecord) -> None:
        records.append(copy(record))

    prompt = [5, 9, 3]
    decoder().generate([prompt], 24, 0.9, threshold=policy, observer=keep)
    scales = [r.proposal.scales.expand_as(r.proposal.drafted) for r in records if r.proposal.scales is not None]
    entropies = [r.entropies() for r in records]
    columns = {
        "position": [r.proposal.positions[:, :-1] - len(prompt) for r in records],
        "target_entropy": [target for target, _ in entropies],
        "draft_entropy": [draft for _, draft in entropies],
        "draft_top1": [r.top_probabilities(1)[1].squeeze(-1) for r in records],
        "problem": [torch.zeros_like(r.proposal.drafted) for r in records],
    }
    return _flat(scales), {name: _flat(parts) for name, parts in columns.items()}


def _flat(parts: Sequence[Tensor]) -> Any:
    return np.concatenate([part[0].numpy() for part in parts])
