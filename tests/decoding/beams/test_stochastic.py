"""Stochastic beam search: samples without replacement, and the target's own texts whatever the draft is."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise, permutations, product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsd_decoding.beams.result import BeamResult
from fsd_decoding.beams.stochastic import conditioned
from fsd_decoding.decoder import SpeculativeDecoder
from support.models.five_words import PROMPT, WORDS, five_words, law, p_value
from support.models.tiny_models import llama
from support.models.tiny_pair import ragged_prompts, tiny_decoder

Found = list[list[tuple[list[int], str]]]


def found(results: list[BeamResult]) -> Found:
    return [[(beam.tokens, beam.finish_reason) for beam in result.beams] for result in results]


# --- the law ---------------------------------------------------------------------------------------

FALSE_ALARM = 1e-6
DECODINGS = 1000


@pytest.mark.parametrize("rule", [pytest.param("target", marks=pytest.mark.slow), "coupled"])
def test_texts_are_drawn_without_replacement(rule: str) -> None:
    """Two texts of two words: a pair is drawn with p(a)·p(b)/(1 - p(a)) + p(b)·p(a)/(1 - p(b))."""
    decoder, p = five_words(), law(five_words().target, 2)
    drawn = decoder.generate_beams([PROMPT] * DECODINGS, 2, 2, 1.0, rule=rule, depth=2, batch_size=100)
    pairs = Counter(frozenset(tuple(beam.tokens) for beam in result.beams) for result in drawn)
    expected: dict[frozenset[tuple[int, ...]], float] = defaultdict(float)
    for first, second in permutations(p, 2):
        expected[frozenset((first, second))] += p[first] * p[second] / (1 - p[first])
    assert p_value(pairs, expected) > FALSE_ALARM


@pytest.mark.parametrize("number", range(4))
def test_few_beams_are_the_first_of_all_texts(number: int) -> None:
    """Of 125 beams nothing is left out; three are those of them with the highest perturbed log-probability."""
    decoder = five_words(seed=number)
    (every,) = decoder.generate_beams([PROMPT], WORDS**3, 3, 1.0, rule="target")
    assert len({tuple(beam.tokens) for beam in every.beams}) == WORDS**3
    sizes = [1, 2, 3, 9]
    by_size = [decoder.generate_beams([PROMPT], size, 3, 1.0, rule="target")[0] for size in sizes]
    texts = [{tuple(beam.tokens) for beam in result.beams} for result in by_size]
    assert [len(each) for each in texts] == sizes
    assert all(fewer < more for fewer, more in pairwise(texts))


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=8), st.floats(-30, 30))
def test_conditioning_keeps_the_order_and_sets_the_largest(values: list[float], largest: float) -> None:
    perturbed = torch.tensor([[*values, -torch.inf]], dtype=torch.float64)
    moved = conditioned(perturbed, torch.tensor([[largest]], dtype=torch.float64))
    assert moved.max().item() == pytest.approx(largest, abs=1e-9)
    assert moved[0, -1] == -torch.inf
    ordered = perturbed[0].sort().indices
    assert (moved[0, ordered].diff()[1:] >= 0).all()


# --- the texts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "width", "depth", "batch_size"),
    [("coupled", 4, 1, 1), ("coupled", 8, 3, 5), ("coupled", 5, 6, 2), ("fsd-coupled", 8, 4, 3)],
)
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 10}, {"temperature": 1.5, "top_p": 0.9}])
def test_without_loss_they_are_the_targets_own(
    rule: str, width: int, depth: int, batch_size: int, settings: dict[str, Any]
) -> None:
    decoder, prompts = tiny_decoder(seed=3), ragged_prompts(6)
    sampled = {"temperature": 1.0, **settings}
    own = decoder.generate_beams(prompts, 4, 24, rule="target", **sampled)
    lossless: dict[str, Any] = {"threshold": -1e-9} if rule == "fsd-coupled" else {}
    drafted = decoder.generate_beams(
        prompts, 4, 24, rule=rule, width=width, depth=depth, batch_size=batch_size, **sampled, **lossless
    )
    assert found(drafted) == found(own)
    assert "eos" in {beam.finish_reason for result in own for beam in result.beams}
    assert sum(result.rounds for result in drafted) < sum(result.rounds for result in own)
    assert sum(result.accepted for result in drafted) > 0


def test_so_they_are_with_a_draft_that_is_always_wrong() -> None:
    decoder, prompts = tiny_decoder(), ragged_prompts(3)
    other = SpeculativeDecoder(decoder.target, llama(seed=77), decoder.tokenizer)
    texts = [
        each.generate_beams(prompts, 3, 12, 1.0, rule=rule) for each, rule in product([other], ["coupled", "target"])
    ]
    assert found(texts[0]) == found(texts[1])


def test_noise_is_of_the_id_and_the_seed() -> None:
    decoder, prompts = tiny_decoder(), ragged_prompts(3)
    own = found(decoder.generate_beams(prompts, 3, 8, 1.0, rule="coupled"))
    turned = found(decoder.generate_beams(prompts[::-1], 3, 8, 1.0, rule="coupled", ids=[2, 1, 0], batch_size=2))
    assert turned[::-1] == own
    assert found(decoder.generate_beams(prompts, 3, 8, 1.0, rule="coupled", seed=1)) != own


def test_beams_end_at_stop_strings() -> None:
    decoder = tiny_decoder()
    (own,) = decoder.generate_beams([[5, 6, 7]], 4, 16, 1.0, rule="target")
    word = own.beams[0].text.split()[3]
    for rule in ("target", "coupled"):
        (result,) = decoder.generate_beams([[5, 6, 7]], 4, 16, 1.0, rule=rule, stop=[word])
        assert any(beam.finish_reason == "stop" for beam in result.beams)
        assert not any(word in beam.text.split() for beam in result.beams)
        assert [beam.score for beam in result.beams] == sorted((beam.score for beam in result.beams), reverse=True)
