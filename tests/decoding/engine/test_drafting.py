"""Decoding with different drafters: stop policies, draft lengths per prompt, token counts, and n-gram drafts."""

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

from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.engine.result import Result
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.policies.stopping import DraftState
from fsd_decoding.rules import RULES
from support.models.tiny_models import VOCABULARY, continuations, llama, word_tokenizer

NEW = 24


@pytest.fixture(autouse=True)
def _inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = Random(0)
    return [[rng.randrange(2, VOCABULARY) for _ in range(rng.randint(1, 12))] for _ in range(12)]


@pytest.fixture(scope="module")
def ngram_decoder() -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(llama(seed=1), NGram(), tokenizer=word_tokenizer())


@pytest.fixture(scope="module")
def model_decoder() -> SpeculativeDecoder:
    target, draft = llama(seed=1), llama(seed=1)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # a draft that agrees about half of the time
        for weight in draft.parameters():
            weight.mul_(1 + 0.05 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return SpeculativeDecoder(target, draft, word_tokenizer())


def tokens_and_reasons(results: list[Result]) -> list[tuple[list[int], str]]:
    return [(r.tokens, r.finish_reason) for r in results]


LOSSLESS = [("coupled", 0.0), ("coupled", 0.9), ("fsd", 0.9), ("fsd-coupled", 0.0), ("fsd-coupled", 0.9), ("sd", 0.0)]


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize(("rule", "temperature"), LOSSLESS)
def test_drafting_by_ngram_keeps_the_targets_text(
    ngram_decoder: SpeculativeDecoder, prompts: list[list[int]], rule: str, temperature: float
) -> None:
    alone = ngram_decoder.generate(prompts, NEW, temperature, rule="target")
    actual = ngram_decoder.generate(prompts, NEW, temperature, rule=rule, threshold=-1.0, batch_size=5)
    assert tokens_and_reasons(actual) == tokens_and_reasons(alone)


@pytest.mark.thinned(every=8)
@pytest.mark.parametrize("rule", RULES)
def test_drafting_by_ngram_works_with_every_rule_and_batch_size(
    ngram_decoder: SpeculativeDecoder, prompts: list[list[int]], rule: str
) -> None:
    together = ngram_decoder.generate(prompts, NEW, 0.9, rule=rule, threshold=0.3)
    assert_equal_up_to_rounding(
        ngram_decoder.generate(prompts, NEW, 0.9, rule=rule, threshold=0.3, batch_size=2), together
    )


def assert_equal_up_to_rounding(actual: list[Result], expected: list[Result]) -> None:
    assert [replace(r, interval=(0, 0)) for r in actual] == [replace(r, interval=(0, 0)) for r in expected]
    for one, other in zip(actual, expected, strict=True):
        assert one.interval == pytest.approx(other.interval, abs=1e-9)


def cyclic_target(length: int) -> Any:
    """A target that repeats the tokens 20, 21, … with period `length`; its next token depends on the last one alone."""
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
    """The text repeats four tokens: from the second repetition on every draft is correct, wherever the first one is."""
    pair = SpeculativeDecoder(cyclic_target(4), NGram(), word_tokenizer(), rule="coupled", draft_length=5)
    with_first, without_first = pair.generate([[20, 21, 22, 23, 20], [20]], NEW)
    assert with_first.tokens == ([21, 22, 23, 20] * 6)
    assert (with_first.rounds, with_first.bonus) == (NEW // 6, NEW // 6)
    assert without_first.tokens == with_first.tokens
    assert with_first.rounds < without_first.rounds <= 4 + NEW // 6


def never(state: DraftState) -> Tensor:
    return torch.ones_like(state.drafting)


def always(state: DraftState) -> Tensor:
    return torch.zeros_like(state.drafting)


def after_two(state: DraftState) -> Tensor:
    return torch.full_like(state.drafting, len(state.logits) < 2)


def pseudo_random(state: DraftState) -> Tensor:
    """Pseudo-random, and dependent on the row alone."""
    mixed = state.batch.lengths * 7919 + len(state.logits) * 104729 + state.batch.keys[:, 0]
    return mixed % 5 > 1


def unlikely_token(state: DraftState) -> Tensor:
    """Depends on q and on the token drawn from it."""
    if not state.logits:
        return torch.ones_like(state.drafting)
    q = torch.softmax(state.logits[-1][:, 0], -1)
    last = state.batch.tokens.gather(1, state.batch.lengths[:, None] + len(state.logits) - 1)
    return q.gather(1, last)[:, 0] > 0.3


POLICIES = [never, always, after_two, pseudo_random, unlikely_token]


@pytest.mark.thinned(every=17)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("rule", "temperature"), LOSSLESS)
def test_no_policy_changes_a_lossless_text(
    model_decoder: SpeculativeDecoder,
    prompts: list[list[int]],
    rule: str,
    temperature: float,
    policy: Callable[[DraftState], Tensor],
) -> None:
    alone = model_decoder.generate(prompts, NEW, temperature, rule="target")
    actual = model_decoder.generate(
        prompts, NEW, temperature, rule=rule, threshold=-1.0, draft_length=4, batch_size=5, stop_policy=policy
    )
    assert tokens_and_reasons(actual) == tokens_and_reasons(alone)


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_is_called_before_each_step_and_followed(
    model_decoder: SpeculativeDecoder, prompts: list[list[int]], policy: Callable[[DraftState], Tensor]
) -> None:
    """It is called for the steps in order, at most L a round, and exactly the tokens it allows are drafted."""
    calls: list[int] = []
    allowed: list[Tensor] = []
    rounds = 0

    def recording(state: DraftState) -> Tensor:
        answer = policy(state)
        calls.append(len(state.logits))
        allowed.append(answer & state.drafting)
        return answer

    def observe(record: RoundRecord) -> None:
        nonlocal rounds
        rounds += 1
        assert calls == list(range(len(calls)))
        assert 1 <= len(calls) <= 4
        assert torch.equal(torch.stack(allowed).sum(0), record.drafted)
        assert all(not (later & ~earlier).any() for earlier, later in itertools.pairwise(allowed))
        calls.clear()
        allowed.clear()

    model_decoder.generate(
        prompts, NEW, 0.9, rule="fsd-coupled", threshold=0.2, draft_length=4, batch_size=5, stop_policy=recording,
        observer=observe,
    )  # fmt: skip
    assert rounds > 5


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("rule", ["sd", "fsd", "fsd-coupled"])
def test_policies_that_equal_a_draft_length(
    model_decoder: SpeculativeDecoder, prompts: list[list[int]], rule: str
) -> None:
    def run(**more: Any) -> list[Result]:
        return model_decoder.generate(prompts, NEW, 0.9, rule=rule, threshold=0.2, **more)

    assert_equal_up_to_rounding(run(draft_length=4, stop_policy=never), run(draft_length=4))
    assert_equal_up_to_rounding(run(draft_length=4, stop_policy=after_two), run(draft_length=2))
    for r in run(draft_length=4, stop_policy=always):
        assert (r.rounds, r.drafted, r.accepted, r.bonus) == (r.emitted, 0, 0, 0)


@pytest.mark.slow
def test_sampled_sd_keeps_the_distribution_under_a_policy_that_reads_q() -> None:
    """All three-token continuations over a six-token vocabulary, 8,000 samples. False alarm rate: 1e-6."""
    target, draft = (llama(seed, layers=1, vocab_size=6, eos_token_id=None) for seed in (1, 2))
    target.generation_config.eos_token_id = []
    pair = SpeculativeDecoder(target, draft, word_tokenizer(), rule="sd", draft_length=3)
    samples, temperature = 8_000, 2.0
    actual = pair.generate([[5, 2]] * samples, 3, temperature, batch_size=4_000, stop_policy=unlikely_token)
    assert 0.05 < sum(r.accepted for r in actual) / sum(r.drafted for r in actual) < 0.95
    expected = continuations(target, [5, 2], temperature).flatten()
    counts = torch.zeros(6, 6, 6, dtype=torch.float64)
    for r in actual:
        counts[tuple(r.tokens)] += 1
    rare = expected * samples < 5
    pooled = [torch.cat([x[~rare], x[rare].sum()[None]]) for x in (counts.flatten(), expected * samples)]
    assert (~rare).sum() > 30
    assert chisquare(pooled[0].numpy(), pooled[1].numpy()).pvalue > 1e-6


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("rule", ["sd", "coupled", "fsd", "fsd-coupled"])
def test_each_prompt_may_have_its_own_draft_length(
    model_decoder: SpeculativeDecoder, prompts: list[list[int]], rule: str
) -> None:
    lengths = [1 + i % 6 for i in range(len(prompts))]
    together = model_decoder.generate(prompts, NEW, 0.9, rule=rule, threshold=0.2, draft_length=lengths, batch_size=5)
    alone = [
        model_decoder.generate([prompt], NEW, 0.9, rule=rule, threshold=0.2, draft_length=length, ids=[i])[0]
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    assert_equal_up_to_rounding(together, alone)
    for result, length in zip(together, lengths, strict=True):
        assert result.drafted == length * result.rounds or result.emitted > NEW - length


@pytest.mark.parametrize("policy", [never, pseudo_random])
@pytest.mark.parametrize("rule", ["sd", "fsd-coupled"])
def test_every_token_is_drafted_a_bonus_or_a_fallback(
    model_decoder: SpeculativeDecoder, prompts: list[list[int]], rule: str, policy: Callable[[DraftState], Tensor]
) -> None:
    """Compared with an observer's counts: a round adds one token to its accepted ones; the last may end before that."""
    whole: dict[int, list[bool]] = defaultdict(list)  # by prompt and round: a draft was accepted to its end

    def observe(record: RoundRecord) -> None:
        for i, request in enumerate(record.requests):
            if request is not None:
                whole[request.index].append(bool(0 < record.drafted[i] == record.accepted[i]))

    actual = model_decoder.generate(
        prompts, NEW, 0.9, rule=rule, threshold=0.2, draft_length=3, batch_size=5, stop_policy=policy, observer=observe
    )
    for i, r in enumerate(actual):
        *before, last = whole[i]
        assert r.rounds == len(before) + 1
        added_last = r.emitted - r.accepted - len(before)
        assert added_last in (0, 1)
        assert r.bonus == sum(before) + (last and added_last)
    assert sum(r.bonus for r in actual) > 5
    assert sum(r.rounds - r.bonus for r in actual) > 5


def every_third_place(state: DraftState) -> Tensor:
    """Skips the drafts of whole rounds of a row, depending on its length."""
    return (state.batch.lengths % 3 == 0) | torch.full_like(state.drafting, bool(state.logits))


def test_a_policy_that_skips_rounds_gives_each_prompt_its_own_text(
    model_decoder: SpeculativeDecoder, prompts: list[list[int]]
) -> None:
    how: dict[str, Any] = {"rule": "fsd", "threshold": 0.2, "draft_length": 4, "stop_policy": every_third_place}
    together = model_decoder.generate(prompts, NEW, **how)
    alone = [model_decoder.generate([prompt], NEW, ids=[i], **how)[0] for i, prompt in enumerate(prompts)]
    assert any(0 < r.drafted < 4 * r.rounds for r in alone)  # a round drafts four or none
    assert_equal_up_to_rounding(together, alone)


def test_a_draft_model_has_read_tokens_of_rounds_without_drafts(
    model_decoder: SpeculativeDecoder, prompts: list[list[int]]
) -> None:
    """q at a round's first step equals that of an uncached forward pass; one prompt at a time, so no other drafts."""
    checked = 0

    def observe(record: RoundRecord) -> None:
        nonlocal checked
        proposal = record.proposal
        if proposal.drafted.shape[1]:
            text = proposal.tokens[:1, : int(proposal.positions[0, 0])]
            expected = model_decoder.draft(text, use_cache=False).logits[0, -1]
            torch.testing.assert_close(proposal.draft_logits[0, 0], expected, rtol=0, atol=1e-9)
            checked += 1

    model_decoder.generate(
        prompts[:4], NEW, rule="coupled", draft_length=2, batch_size=1, stop_policy=every_third_place, observer=observe
    )
    assert checked > 5


NO_ANSWERS = [True, None, torch.ones(3), torch.ones(2, dtype=torch.bool), torch.ones(3, 1, dtype=torch.bool)]


@pytest.mark.parametrize("answer", NO_ANSWERS, ids=str)
def test_a_policy_without_one_bool_per_row_is_refused(model_decoder: SpeculativeDecoder, answer: Any) -> None:
    with pytest.raises(UsageError, match="the policy returned"):
        model_decoder.generate([[5], [6], [7]], NEW, stop_policy=lambda _: answer)


def test_a_policy_that_returns_a_matrix_is_refused_in_one_line(model_decoder: SpeculativeDecoder) -> None:
    with pytest.raises(UsageError) as caught:
        model_decoder.generate([[5], [6], [7]], NEW, stop_policy=lambda _: torch.ones(3, 1))
    assert "\n" not in str(caught.value)
