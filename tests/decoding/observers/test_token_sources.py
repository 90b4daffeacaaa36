"""The sources of a text's tokens, compared with its counts, with T, and with what the target alone would emit."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from fsd_decoding.observers.token_sources import SourcedToken, TokenSource, TokenSources
from fsd_decoding.policies.shapes import Schedule
from fsd_decoding.policies.threshold import RoundState, ThresholdPolicy
from fsd_decoding.rules import RULES
from support.models.scripted_models import TEXT, generating
from support.models.stop_policies import Unsure
from support.models.tiny_models import llama, word_tokenizer

PROMPTS = [[5, 9, 2], [30], [8, 8, 3, 2, 11]]
ACCEPTED = {TokenSource.EXACT, TokenSource.FUZZY}
MOVING = [rule.name for rule in RULES.values() if rule.bounds_score]


class PerRow(ThresholdPolicy):
    """A T for every row, whatever T the prompt was given."""

    def thresholds(self, state: RoundState) -> torch.Tensor:
        return 0.1 + state.emitted / 50.0


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    """The draft is the target, blurred, so that every source occurs."""
    target, draft = llama(seed=1), llama(seed=1)
    head = draft.get_output_embeddings().weight
    with torch.no_grad():
        head.add_(head.std() * 0.5 * torch.randn(head.shape, generator=torch.Generator().manual_seed(0)))
    return SpeculativeDecoder(target, draft, word_tokenizer(), draft_length=3)


def observe(decoder: SpeculativeDecoder, **call: Any) -> list[tuple[Result, list[SourcedToken]]]:
    sources = TokenSources(decoder.tokenizer)
    results = decoder.generate(PROMPTS, 20, observer=sources, **call)
    return [(result, sources.tokens(result, i)) for i, result in enumerate(results)]


SETTINGS = st.fixed_dictionaries(
    {
        "rule": st.sampled_from(list(RULES)),
        "threshold": st.sampled_from([-1.0, 0.0, 0.05, 0.2, 0.6]),
        "temperature": st.sampled_from([0.0, 0.9]),
        "batch_size": st.sampled_from([1, 2]),
        "stop": st.sampled_from([(), ("w5", "w12 w")]),
    },
    optional={"stop_policy": st.just(Unsure())},
)


@pytest.mark.slow
@settings(max_examples=40)
@given(call=SETTINGS)
def test_sources_agree_with_texts_rounds_and_counts(decoder: SpeculativeDecoder, call: dict[str, Any]) -> None:
    for result, tokens in observe(decoder, **call):
        counts = Counter(token.source for token in tokens)
        assert "".join(token.text for token in tokens) == result.text
        assert [token.token for token in tokens][: len(result.tokens)] == result.tokens
        assert [token.position for token in tokens] == list(range(result.emitted))
        assert counts[TokenSource.EXACT] + counts[TokenSource.FUZZY] == result.accepted
        assert counts[TokenSource.BONUS] == result.bonus
        if call["threshold"] < 0 or not RULES[call["rule"]].fuzzy:
            assert not counts[TokenSource.FUZZY]
        rounds = [list(each) for _, each in groupby(tokens, lambda token: token.round)]
        assert [each[0].round for each in rounds] == list(range(result.rounds))
        assert all(token.source in ACCEPTED for each in rounds for token in each[:-1])
        assert all(each[-1].source not in ACCEPTED for each in rounds[:-1])
        for token in tokens:
            check_score(token, call["rule"])


@pytest.mark.parametrize("rule", MOVING)
@pytest.mark.parametrize("policy", [Schedule(0.1, 0.6, over=10), PerRow()])
def test_thresholds_are_those_of_the_policy(decoder: SpeculativeDecoder, rule: str, policy: ThresholdPolicy) -> None:
    several = set()
    for _, tokens in observe(decoder, rule=rule, threshold_policy=policy):
        for token in tokens:
            check_score(token, rule)
            several.add(token.threshold)
    assert len(several - {None}) > 3


def test_each_prompt_has_its_own_threshold(decoder: SpeculativeDecoder) -> None:
    """In one row after the other, whose tensor of thresholds the engine reuses."""
    own = [0.1, 0.3, -1.0]
    for threshold, (_, tokens) in zip(own, observe(decoder, threshold=own, batch_size=1), strict=True):
        assert {token.threshold for token in tokens} - {None} == {threshold}


def check_score(token: SourcedToken, rule: str) -> None:
    """D is on the side of T that the source says."""
    undrafted = token.source in {TokenSource.BONUS, TokenSource.TARGET}
    assert (token.score is None) == undrafted
    assert (token.threshold is None) == (undrafted or not RULES[rule].bounds_score)
    assert (token.alternative is None) == (token.source in {TokenSource.EXACT, TokenSource.BONUS, TokenSource.TARGET})
    assert (token.alternative_name is None) == (token.alternative is None)
    if token.threshold is not None and token.score is not None:
        if token.source is TokenSource.FUZZY:
            assert token.score <= token.threshold
        if token.source is TokenSource.FALLBACK:
            assert token.score > token.threshold


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "ensemble"])  # which emits tokens of a mixture
def test_fuzzy_tokens_are_those_that_the_target_alone_would_not_emit(decoder: SpeculativeDecoder, rule: str) -> None:
    """Greedily: the target reads the finished text, and its likeliest token at every position is compared."""
    found = Counter[TokenSource]()
    for prompt, (_, tokens) in zip(PROMPTS, observe(decoder, rule=rule, threshold=0.3, temperature=0.0), strict=True):
        text = torch.tensor([prompt + [token.token for token in tokens]])
        with torch.inference_mode():
            likeliest = decoder.target(input_ids=text).logits[0, len(prompt) - 1 : -1].argmax(-1).tolist()
        for token, own in zip(tokens, likeliest, strict=True):
            found[token.source] += 1
            assert (token.token == own) == (token.source is not TokenSource.FUZZY)
            if token.source is TokenSource.FUZZY:
                assert (token.alternative, token.alternative_name) == (own, decoder.tokenizer.decode([own]))
            elif token.source is TokenSource.FALLBACK and rule != "fsd":  # which rejects its own choice where D > T
                assert token.alternative != own
    expected = {TokenSource.TARGET} if rule == "target" else {TokenSource.EXACT, TokenSource.FALLBACK}
    assert expected <= set(found)
    assert (TokenSource.FUZZY in found) == RULES[rule].fuzzy


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("kind", ["byte-level", "byte fallback"])
@pytest.mark.parametrize("stop", [(), ("好",)])
def test_a_text_whose_characters_are_several_tokens(kind: str, stop: tuple[str, ...]) -> None:
    """The draft errs at every third token, so rounds end within characters."""
    pair = generating(kind)
    sources = TokenSources(pair.tokenizer)
    (result,) = pair.generate([[5]], 90, stop=stop, observer=sources)
    tokens = sources.tokens(result)
    assert "".join(token.text for token in tokens) == result.text == (TEXT[: TEXT.index("好")] if stop else TEXT)
    inside = [token for token in tokens if not token.text]
    assert {token.source for token in inside} == {TokenSource.EXACT, TokenSource.FALLBACK}
    assert all(token.name and "\ufffd" not in token.name for token in tokens)
    assert (tokens[-1].name == "<eos>") == (not stop)


def test_a_result_of_another_call_or_prompt_is_refused(decoder: SpeculativeDecoder) -> None:
    sources = TokenSources(decoder.tokenizer)
    first, second, _ = decoder.generate(PROMPTS, 8, observer=sources)
    with pytest.raises(UsageError, match="prompt is 0, whose observed tokens are not those of the result"):
        sources.tokens(second)
    with pytest.raises(UsageError, match="prompt is 7"):
        sources.tokens(first, 7)
