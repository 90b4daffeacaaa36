"""Composed policies, and a switch at the end of a first sentence. `test_adaptive_policies.py` has their conformance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from pickle import dumps, loads
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance.threshold_policies import (
    DRAFTS,
    FULL_STOPS,
    NEW,
    PROMPTS,
    Own,
    Plain,
    Texts,
    counted,
    decode,
    decoder,
    rise,
    thresholds_of,
)
from fsd_common.errors import ThresholdError, UsageError
from fsd_decoding import divergence
from fsd_decoding.adaptive import (
    Constant,
    EntropyScaled,
    Max,
    Min,
    Switch,
    policy_named,
)
from fsd_decoding.policies.composed import FirstSentenceEnded
from fsd_decoding.policies.threshold import RoundState, ScalePolicy, ThresholdPolicy
from support.models.tiny_models import word_tokenizer


class Budget(Plain):
    budget = True


class Thrift(Plain):
    budget = True


def test_min_accepts_what_all_do_and_max_what_any_does() -> None:
    parts = [rise(), EntropyScaled(0.1, 2.0), Own()]
    thresholds = torch.stack([thresholds_of(part, range(5)) for part in parts])
    for whole, wanted in ((Min, thresholds.amin(0)), (Max, thresholds.amax(0))):
        for policy in (whole(*parts), whole(Plain(), *parts)):
            plain = not isinstance(policy, ScalePolicy)
            other = thresholds_of(Plain(), range(5))
            both = torch.minimum(wanted, other) if whole is Min else torch.maximum(wanted, other)
            torch.testing.assert_close(thresholds_of(policy, range(5)), both if plain else wanted, rtol=1e-9, atol=0)


def test_a_composition_of_shapes_is_a_shape_and_any_other_is_none() -> None:
    assert isinstance(Min(rise(), Constant(0.1)), ScalePolicy)
    assert isinstance(Switch(Own(), rise(), lambda state: state.emitted > 3), ScalePolicy)
    for policy in (Min(rise(), Plain()), Min(Budget()), Switch.after_sentence(rise(), Min(Plain(), Constant(0.1)))):
        assert not isinstance(policy, ScalePolicy)
        assert policy.identity is None


def test_only_policies_that_can_be_rebuilt_have_an_identity() -> None:
    assert Min(rise(), Own()).identity is None
    assert Switch(rise(), Constant(0.1), lambda state: state.emitted > 3).identity is None
    assert Switch.after_sentence(rise(), Constant(0.1)).identity is not None
    own = Own()
    own.identity = "own 1"
    named = Min(rise(), own).identity
    assert named is not None
    assert "own 1" in named
    with pytest.raises(UsageError, match="policy 'min' has parameters"):
        policy_named(named)


def test_parts_keep_memories_of_their_own() -> None:
    one = EntropyScaled(0.2, 3.0, of="last")
    same = thresholds_of(one, range(5))
    torch.testing.assert_close(thresholds_of(Min(one, EntropyScaled(0.2, 3.0, of="last")), range(5)), same)
    torch.testing.assert_close(thresholds_of(Min(Max(one, one), Constant(5.0)), range(5)), same)


def test_parts_memories_follow_their_rows_through_refills_and_batches_that_shrink() -> None:
    policy = Min(Max(EntropyScaled(0.3, -4.0, of="last"), Constant(0.01)), rise())
    together = counted(decode(policy))
    assert together != counted(decode(rise()))
    for batch_size in (1, 5):
        assert counted(decode(policy, batch_size=batch_size)) == together


def test_a_budget_in_a_composition_makes_it_one_and_two_are_refused() -> None:
    assert Min(Budget(), rise()).budget
    assert not Min(Plain(), rise()).budget
    with pytest.raises(UsageError, match="Max contains two budgets, Budget and Thrift; keep one of them"):
        Max(Budget(), Thrift())
    with pytest.raises(UsageError, match="Switch contains two budgets, Budget and Thrift"):
        Switch.after_sentence(Min(rise(), Budget()), Thrift())


def test_a_budget_is_refused_where_another_policy_may_set_a_larger_t() -> None:
    for name, whole in (("Max", Max), ("Switch", Switch.after_sentence)):
        for budget in (Budget(), Min(Budget(), rise())):
            for parts in ((budget, rise()), (rise(), budget)):
                with pytest.raises(UsageError, match=f"{name} contains a budget, .* use Min"):
                    whole(*parts)


class Counting(Plain):
    """Counts the calls of every hook."""

    def __init__(self) -> None:
        self.rounds, self.started, self.checked = 0, 0, 0

    def start(self, new: Any) -> None:
        self.started += len(new.requests)

    def observe(self, outcome: Any) -> None:
        self.rounds += 1

    def check(self, *args: Any) -> None:
        self.checked += 1

    def doubts(self) -> list[str]:
        return [f"{self.started} texts started"]

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rounds = state["rounds"]


def test_every_hook_of_the_parts_is_called() -> None:
    part, again = Counting(), Counting()
    whole = Min(Max(part, Constant(0.1)), rise())
    with pytest.warns(UserWarning, match=f"{len(PROMPTS)} texts started"):
        decode(whole, batch_size=4)
    assert (part.started, part.checked) == (len(PROMPTS), 1)
    assert part.rounds > 0
    Min(Max(again, Constant(0.1)), rise()).load_state_dict(whole.state_dict())
    assert again.rounds == part.rounds
    with pytest.raises(
        UsageError,
        match=r"state \(policies\) is not that of a Min of 3 policies; load it into",
    ):
        Min(again, Plain(), rise()).load_state_dict(whole.state_dict())


def test_a_composed_policy_listens_if_a_part_does() -> None:
    deaf = Min(rise(), EntropyScaled(0.2, 1.0))
    assert not deaf.reads_outcomes
    assert not Switch(deaf, rise(), when=lambda state: state.emitted > 10).reads_outcomes

    class Curious(EntropyScaled):
        def observe(self, outcome: Any) -> None:
            pass

    for part in (Counting(), Curious(0.2, 1.0), EntropyScaled(0.2, 1.0, "last")):
        assert Min(deaf, Max(rise(), part)).reads_outcomes
    assert Min(deaf, Switch.after_sentence(rise(), deaf)).reads_outcomes


class Telling(Plain):
    def __init__(self, **facts: float) -> None:
        self._facts = facts

    def facts(self) -> dict[str, float | torch.Tensor]:
        return dict(self._facts)


def test_what_parts_tell_of_a_round_the_whole_tells_and_clashes_are_numbered() -> None:
    assert Min(Telling(spent=1.0), Constant(0.1)).facts() == {"spent": 1.0}
    assert Max(Telling(a=1.0, b=2.0), rise(), Telling(a=3.0)).facts() == {"part 1 a": 1.0, "b": 2.0, "part 3 a": 3.0}


def test_a_subclass_of_a_composition_is_made_whole_and_is_no_shape() -> None:
    class My(Min):
        def __init__(self, *policies: ThresholdPolicy) -> None:
            super().__init__(*policies)
            self.mine = True

    mine = My(rise(), Constant(0.1))
    assert type(mine) is My
    assert mine.mine
    assert mine.identity is None
    torch.testing.assert_close(thresholds_of(mine, range(5)), thresholds_of(Min(rise(), Constant(0.1)), range(5)))


@pytest.mark.parametrize("whole", [Min, Max, Switch])
def test_errors_name_what_the_user_wrote(whole: Any) -> None:
    class Wrong(Own):
        def scales(self, state: RoundState) -> torch.Tensor:
            return torch.full_like(state.base, math.nan)

    more = [lambda state: state.emitted >= 0] if whole is Switch else []
    with pytest.raises(ThresholdError, match=f"from {whole.__name__} in round"):
        decode(whole(rise(), Wrong(), *more))


def test_compositions_of_shapes_can_be_copied_and_pickled() -> None:
    policy = Min(rise(), Max(Constant(0.1), rise()))
    for again in (deepcopy(policy), loads(dumps(policy))):
        assert (type(again), again.identity) == (type(policy), policy.identity)


def test_what_one_part_computes_of_a_round_the_others_find(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = 0
    entropy = divergence.entropy

    def counting(logits: torch.Tensor) -> torch.Tensor:
        nonlocal computed
        computed += 1
        return entropy(logits)

    monkeypatch.setattr("fsd_decoding.policies.threshold.entropy", counting)
    policy = Min(Max(EntropyScaled(0.1, 2.0), EntropyScaled(0.2, 1.0)), EntropyScaled(0.3, 3.0), Plain())
    policy.thresholds(Texts(range(3), 0.1).round())
    assert computed == 1


def test_a_switch_after_a_sentence_is_strict_up_to_it_and_loose_after_it() -> None:
    """Lossless until the first token that ends a sentence, however texts are divided into rounds and batches."""
    lossless = decode(-1.0)
    policy = Switch.after_sentence(Constant(-1.0), Constant(0.7))
    found = decode(policy, batch_size=5)
    changed = 0
    for was, now in zip(lossless, found, strict=True):
        first = next((i + 1 for i, token in enumerate(was.tokens) if token in FULL_STOPS), len(was.tokens))
        assert now.tokens[:first] == was.tokens[:first]
        changed += now.tokens != was.tokens
    assert changed >= 2
    assert counted(decode(policy, batch_size=1)) == counted(found)


def test_the_condition_holds_for_tokens_after_the_end_of_a_sentence() -> None:
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    class Recording(FirstSentenceEnded):
        def __call__(self, state: RoundState) -> Tensor:
            ended = super().__call__(state)
            seen.append((state.places.clone(), state.proposal.drafted.clone(), ended))
            return ended

    policy = Switch(Constant(-1.0), Constant(0.3), Recording())
    for i, prompt in enumerate(PROMPTS):
        seen.clear()
        (found,) = decoder().generate([prompt], NEW, 0.9, threshold=policy, ids=[i], draft_length=DRAFTS)
        for places, drafted, ended in seen:
            for j, place in enumerate(places[0].tolist()):
                before = found.tokens[: places[0, 0]] + drafted[0, :j].tolist()
                assert len(before) == place
                assert ended[0, j].item() == any(token in FULL_STOPS for token in before)


@pytest.mark.parametrize(
    ("text", "ends"),
    [("done.", True), ("?", True), ('so!"', True), (").\n", True), ("a\nb", True), ("。", True), ("3.5", False),
     ("e.g", False), ("a", False), (",", False), (";", False), ("…)", True)],
)  # fmt: skip
def test_marks_and_line_breaks_end_a_sentence(text: str, ends: bool) -> None:
    class Tokenizer:
        def __len__(self) -> int:
            return 1

        def batch_decode(self, ids: list[list[int]]) -> list[str]:
            return [text for _ in ids]

    condition = FirstSentenceEnded()
    condition.check(Tokenizer())
    state = RoundState(_Drafted(torch.tensor([[0, 5]])), torch.tensor([2]), torch.tensor([1]), _memory())  # type: ignore[arg-type]
    assert condition(state).tolist() == [[False, ends]]


class _Drafted:
    """The parts of a proposal that the condition reads, for a vocabulary of 6."""

    def __init__(self, drafted: Tensor) -> None:
        self.drafted, self.target_logits = drafted, torch.zeros(1, 1, 6)


def _memory() -> Any:
    from fsd_decoding.policies.threshold import RowMemory

    return RowMemory(1, torch.device("cpu"))


WRONG: list[Callable[[RoundState], object]] = [
    lambda state: state.emitted,
    lambda state: True,
    lambda state: state.proposed[:, :1],
]


@pytest.mark.parametrize("answer", WRONG, ids=["no bool", "no tensor", "no shape"])
def test_a_condition_of_another_shape_or_type_is_refused(answer: Any) -> None:
    with pytest.raises(
        UsageError, match=r"when of a Switch returned .*; it must return a bool tensor of shape \(24,\)"
    ):
        decode(Switch(Constant(0.1), Constant(0.2), answer), draft_length=DRAFTS)


def test_policies_that_cannot_be_replayed_raise() -> None:
    for policy in (EntropyScaled(0.1, 1.0, of="last"), Switch.after_sentence(rise(), Constant(0.1))):
        with pytest.raises(UsageError, match=r"cannot be replayed.*; decode instead"):
            Min(policy, Constant(0.1)).traced({"position": torch.arange(3).numpy()})  # type: ignore[attr-defined]


def test_a_sentences_end_needs_a_tokenizer() -> None:
    condition = FirstSentenceEnded()
    state = RoundState(_Drafted(torch.tensor([[0, 5]])), torch.tensor([2]), torch.tensor([1]), _memory())  # type: ignore[arg-type]
    for tokenizer in (None, word_tokenizer(), None):  # the check without one forgets the earlier one
        condition.check(tokenizer)
        if tokenizer is None:
            with pytest.raises(UsageError, match=r"without a tokenizer; .* fsd_tokenizer"):
                condition(state)
        else:
            assert not condition(state).any()


def test_the_vocabulary_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, looks = word_tokenizer(), 0
    look = tokenizer.batch_decode

    def counting(ids: Any) -> Any:
        nonlocal looks
        looks += 1
        return look(ids)

    monkeypatch.setattr(tokenizer, "batch_decode", counting)
    for _ in range(3):
        Switch.after_sentence(rise(), Constant(0.1)).check([], tokenizer, "fsd", "js")
    assert looks == 1
