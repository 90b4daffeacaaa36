"""Switch, and the end of a first sentence as its condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance.threshold_policies import (
    DRAFTS,
    FULL_STOPS,
    NEW,
    PROMPTS,
    counted,
    decode,
    decoder,
    rise,
)
from fsd_common.errors import UsageError
from fsd_decoding.adaptive import (
    Constant,
    EntropyScaled,
    Min,
    Switch,
)
from fsd_decoding.policies.composed import FirstSentenceEnded
from fsd_decoding.policies.threshold import RoundState
from support.models.tiny_models import word_tokenizer


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
