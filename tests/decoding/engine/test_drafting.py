"""Decoding with drafters: policies that stop a draft, lengths by prompt, what is counted, and no model at all."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from fsd_decoding.acceptance.rules import RULES
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.engine.result import Result
from fsd_decoding.errors import UsageError
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.policies.stopping import DraftState
from support.tiny_models import VOCABULARY, llama, word_tokenizer

NEW = 24


@pytest.fixture(autouse=True)
def _as_the_engine_does() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = Random(0)
    return [[rng.randrange(2, VOCABULARY) for _ in range(rng.randint(1, 12))] for _ in range(12)]


@pytest.fixture(scope="module")
def by_text() -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(llama(seed=1), NGram(), tokenizer=word_tokenizer())


@pytest.fixture(scope="module")
def by_model() -> SpeculativeDecoder:
    target, draft = llama(seed=1), llama(seed=1)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # a draft that agrees about as often as not
        for weight in draft.parameters():
            weight.mul_(1 + 0.05 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return SpeculativeDecoder(target, draft, word_tokenizer())


def texts_of(results: list[Result]) -> list[tuple[list[int], str]]:
    return [(r.tokens, r.finish_reason) for r in results]


LOSSLESS = [("coupled", 0.0), ("coupled", 0.9), ("fsd", 0.9), ("fsd-coupled", 0.0), ("fsd-coupled", 0.9), ("sd", 0.0)]


@pytest.mark.parametrize(("rule", "temperature"), LOSSLESS)
def test_drafting_by_ngram_keeps_the_targets_text(
    by_text: SpeculativeDecoder, prompts: list[list[int]], rule: str, temperature: float
) -> None:
    alone = by_text.generate(prompts, NEW, temperature, rule="target")
    found = by_text.generate(prompts, NEW, temperature, rule=rule, threshold=-1.0, batch_size=5)
    assert texts_of(found) == texts_of(alone)


@pytest.mark.parametrize("rule", RULES)
def test_drafting_by_ngram_works_with_every_rule_in_any_company(
    by_text: SpeculativeDecoder, prompts: list[list[int]], rule: str
) -> None:
    together = by_text.generate(prompts, NEW, 0.9, rule=rule, threshold=0.3)
    equal_but_for_rounding(by_text.generate(prompts, NEW, 0.9, rule=rule, threshold=0.3, batch_size=2), together)


def equal_but_for_rounding(found: list[Result], expected: list[Result]) -> None:
    assert [replace(r, interval=(0, 0)) for r in found] == [replace(r, interval=(0, 0)) for r in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.interval == pytest.approx(other.interval, abs=1e-9)


def cycling(length: int) -> Any:
    """A target that says 20, 21, … and begins again after `length` tokens: the next depends on the last alone."""
    model = llama(seed=1, hidden_size=64)
    following = torch.arange(VOCABULARY)
    following[20 : 20 + length] = torch.arange(length).add(1).remainder(length) + 20
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(VOCABULARY, 64))
        model.lm_head.weight.zero_()
        model.lm_head.weight[following] = torch.eye(VOCABULARY, 64, dtype=torch.float64)
    return model


def test_ngram_learns_a_repetition_as_it_goes() -> None:
    """Four tokens on end: from the second time on every draft is right, whether the prompt has the first or not."""
    pair = SpeculativeDecoder(cycling(4), NGram(), word_tokenizer(), rule="coupled", draft_length=5)
    shown, unseen = pair.generate([[20, 21, 22, 23, 20], [20]], NEW)
    assert shown.tokens == ([21, 22, 23, 20] * 6)
    assert (shown.rounds, shown.bonus) == (NEW // 6, NEW // 6)
    assert unseen.tokens == shown.tokens
    assert shown.rounds < unseen.rounds <= 4 + NEW // 6


def never(state: DraftState) -> Tensor:
    return torch.ones_like(state.drafting)


def always(state: DraftState) -> Tensor:
    return torch.zeros_like(state.drafting)


def after_two(state: DraftState) -> Tensor:
    return torch.full_like(state.drafting, len(state.logits) < 2)


def by_chance(state: DraftState) -> Tensor:
    """As good as random, and a matter of the row alone."""
    mixed = state.batch.lengths * 7919 + len(state.logits) * 104729 + state.batch.keys[:, 0]
    return mixed % 5 > 1


def unlikely_token(state: DraftState) -> Tensor:
    """Looks at q, and at what was drawn from it."""
    if not state.logits:
        return torch.ones_like(state.drafting)
    q = torch.softmax(state.logits[-1][:, 0], -1)
    last = state.batch.tokens.gather(1, state.batch.lengths[:, None] + len(state.logits) - 1)
    return q.gather(1, last)[:, 0] > 0.3


POLICIES = [never, always, after_two, by_chance, unlikely_token]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("rule", "temperature"), LOSSLESS)
def test_no_policy_changes_a_lossless_text(
    by_model: SpeculativeDecoder,
    prompts: list[list[int]],
    rule: str,
    temperature: float,
    policy: Callable[[DraftState], Tensor],
) -> None:
    alone = by_model.generate(prompts, NEW, temperature, rule="target")
    found = by_model.generate(
        prompts, NEW, temperature, rule=rule, threshold=-1.0, draft_length=4, batch_size=5, policy=policy
    )
    assert texts_of(found) == texts_of(alone)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_is_asked_before_each_step_and_obeyed(
    by_model: SpeculativeDecoder, prompts: list[list[int]], policy: Callable[[DraftState], Tensor]
) -> None:
    """Steps are asked about in order, no more than L a round, and what was allowed is what was drafted."""
    asked: list[int] = []
    allowed: list[Tensor] = []
    rounds = 0

    def watched(state: DraftState) -> Tensor:
        answer = policy(state)
        asked.append(len(state.logits))
        allowed.append(answer & state.drafting)
        return answer

    def observe(record: RoundRecord) -> None:
        nonlocal rounds
        rounds += 1
        assert asked == list(range(len(asked)))
        assert 1 <= len(asked) <= 4
        assert torch.equal(torch.stack(allowed).sum(0), record.drafted)
        assert all(not (later & ~earlier).any() for earlier, later in itertools.pairwise(allowed))
        asked.clear()
        allowed.clear()

    by_model.generate(
        prompts, NEW, 0.9, rule="fsd-coupled", threshold=0.2, draft_length=4, batch_size=5, policy=watched,
        observer=observe,
    )  # fmt: skip
    assert rounds > 5


@pytest.mark.parametrize("rule", ["sd", "fsd", "fsd-coupled"])
def test_policies_that_amount_to_a_draft_length(
    by_model: SpeculativeDecoder, prompts: list[list[int]], rule: str
) -> None:
    def run(**more: Any) -> list[Result]:
        return by_model.generate(prompts, NEW, 0.9, rule=rule, threshold=0.2, **more)

    equal_but_for_rounding(run(draft_length=4, policy=never), run(draft_length=4))
    equal_but_for_rounding(run(draft_length=4, policy=after_two), run(draft_length=2))
    for r in run(draft_length=4, policy=always):
        assert (r.rounds, r.drafted, r.accepted, r.bonus) == (r.emitted, 0, 0, 0)


def test_sampled_sd_keeps_the_distribution_under_a_policy_that_looks_at_q() -> None:
    """All three-token continuations of a six-token vocabulary, 8,000 samples. False alarm: 1e-6."""
    target, draft = (llama(seed, layers=1, vocab_size=6, eos_token_id=None) for seed in (1, 2))
    target.generation_config.eos_token_id = []
    pair = SpeculativeDecoder(target, draft, word_tokenizer(), rule="sd", draft_length=3)
    samples, temperature = 8_000, 2.0
    found = pair.generate([[5, 2]] * samples, 3, temperature, batch_size=4_000, policy=unlikely_token)
    assert 0.05 < sum(r.accepted for r in found) / sum(r.drafted for r in found) < 0.95
    expected = continuations(target, [5, 2], temperature).flatten()
    seen = torch.zeros(6, 6, 6, dtype=torch.float64)
    for r in found:
        seen[tuple(r.tokens)] += 1
    rare = expected * samples < 5
    pooled = [torch.cat([x[~rare], x[rare].sum()[None]]) for x in (seen.flatten(), expected * samples)]
    assert (~rare).sum() > 30
    assert chisquare(pooled[0].numpy(), pooled[1].numpy()).pvalue > 1e-6


def continuations(model: Any, prompt: list[int], temperature: float) -> Tensor:
    """(6, 6, 6) probabilities of the next three tokens."""
    pairs = torch.tensor([prompt + list(two) for two in itertools.product(range(6), repeat=2)])
    p = torch.softmax(model(input_ids=pairs).logits / temperature, -1)  # (36, 4, 6)
    first, second, third = p[0, 1], p[::6, 2], p[:, 3]
    return first[:, None, None] * second[:, :, None] * third.view(6, 6, 6)


@pytest.mark.parametrize("rule", ["sd", "coupled", "fsd", "fsd-coupled"])
def test_each_prompt_may_have_its_own_draft_length(
    by_model: SpeculativeDecoder, prompts: list[list[int]], rule: str
) -> None:
    lengths = [1 + i % 6 for i in range(len(prompts))]
    together = by_model.generate(prompts, NEW, 0.9, rule=rule, threshold=0.2, draft_length=lengths, batch_size=5)
    alone = [
        by_model.generate([prompt], NEW, 0.9, rule=rule, threshold=0.2, draft_length=length, ids=[i])[0]
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    equal_but_for_rounding(together, alone)
    assert all(r.drafted == length * r.rounds for r, length in zip(together, lengths, strict=True))


@pytest.mark.parametrize("policy", [never, by_chance])
@pytest.mark.parametrize("rule", ["sd", "fsd-coupled"])
def test_every_token_is_drafted_a_bonus_or_a_fallback(
    by_model: SpeculativeDecoder, prompts: list[list[int]], rule: str, policy: Callable[[DraftState], Tensor]
) -> None:
    """Against what an observer saw: a round adds one token, but for the last, which may end before it."""
    whole: dict[int, list[bool]] = defaultdict(list)  # by prompt and round: a draft was accepted to its end

    def observe(record: RoundRecord) -> None:
        for i, request in enumerate(record.requests):
            if request is not None:
                whole[request.index].append(bool(0 < record.drafted[i] == record.accepted[i]))

    found = by_model.generate(
        prompts, NEW, 0.9, rule=rule, threshold=0.2, draft_length=3, batch_size=5, policy=policy, observer=observe
    )
    for i, r in enumerate(found):
        *before, last = whole[i]
        assert r.rounds == len(before) + 1
        added_last = r.emitted - r.accepted - len(before)
        assert added_last in (0, 1)
        assert r.bonus == sum(before) + (last and added_last)
    assert sum(r.bonus for r in found) > 5
    assert sum(r.rounds - r.bonus for r in found) > 5


def every_third_place(state: DraftState) -> Tensor:
    """Skips whole rounds of a row, by where its text stands."""
    return (state.batch.lengths % 3 == 0) | torch.full_like(state.drafting, bool(state.logits))


def test_a_policy_that_skips_rounds_gives_each_prompt_its_own_text(
    by_model: SpeculativeDecoder, prompts: list[list[int]]
) -> None:
    how: dict[str, Any] = {"rule": "fsd", "threshold": 0.2, "draft_length": 4, "policy": every_third_place}
    together = by_model.generate(prompts, NEW, **how)
    alone = [by_model.generate([prompt], NEW, ids=[i], **how)[0] for i, prompt in enumerate(prompts)]
    assert any(0 < r.drafted < 4 * r.rounds for r in alone)  # a round drafts four or none
    equal_but_for_rounding(together, alone)


def test_a_draft_has_read_what_rounds_without_drafting_added(
    by_model: SpeculativeDecoder, prompts: list[list[int]]
) -> None:
    """q at a round's first step against an uncached forward; prompts are taken one at a time, or others draft."""
    seen = 0

    def observe(record: RoundRecord) -> None:
        nonlocal seen
        proposal = record.proposal
        if proposal.drafted.shape[1]:
            text = proposal.tokens[:1, : int(proposal.positions[0, 0])]
            expected = by_model.draft(text, use_cache=False).logits[0, -1]
            torch.testing.assert_close(proposal.draft_logits[0, 0], expected, rtol=0, atol=1e-9)
            seen += 1

    by_model.generate(
        prompts[:4], NEW, rule="coupled", draft_length=2, batch_size=1, policy=every_third_place, observer=observe
    )
    assert seen > 5


NO_ANSWERS = [True, None, torch.ones(3), torch.ones(2, dtype=torch.bool), torch.ones(3, 1, dtype=torch.bool)]


@pytest.mark.parametrize("answer", NO_ANSWERS, ids=str)
def test_a_policy_that_gives_no_truth_value_a_row_is_refused(by_model: SpeculativeDecoder, answer: Any) -> None:
    with pytest.raises(UsageError, match="the policy answered"):
        by_model.generate([[5], [6], [7]], NEW, policy=lambda _: answer)


def test_a_policy_that_answers_a_matrix_is_refused_in_one_line(by_model: SpeculativeDecoder) -> None:
    with pytest.raises(UsageError) as caught:
        by_model.generate([[5], [6], [7]], NEW, policy=lambda _: torch.ones(3, 1))
    assert "\n" not in str(caught.value)
