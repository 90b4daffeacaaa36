"""The fuzzy form: D of a layer's joint law by hand, intervals of T, and what T = inf makes of a draft."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fsd_decoding import noise
from fsd_decoding.beams.forest import Forest
from fsd_decoding.beams.layer import Beams, Drafted, Layer
from fsd_decoding.beams.result import BeamResult
from fsd_decoding.beams.score import layer_divergence
from support.models.tiny_pair import ragged_prompts, tiny_decoder

SAMPLED: list[dict[str, Any]] = [
    {"rule": "fsd-coupled"},
    {"rule": "fsd-coupled", "temperature": 1.0},
    {"rule": "fsd-coupled", "temperature": 0.8, "top_k": 8, "on": "processed"},
    {"rule": "fsd-sd", "temperature": 1.0, "replacement": True},
]


def texts(results: list[BeamResult]) -> list[Any]:
    return [([beam.tokens for beam in result.beams], result.rounds) for result in results]


def test_the_divergence_is_of_pairs_of_a_beam_and_a_token() -> None:
    """By total variation; the draft has a third beam, and weighs the others by its own scores."""
    forest = Forest(1, 0, noise.problem_keys(0, [0])[0])
    a, b, c = (forest.child(0, token) for token in range(3))
    p, q = torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]])

    def beams(nodes: list[int], weights: list[float], **ended: Any) -> Beams:
        scores = torch.tensor(weights).log()
        return Beams(
            1, nodes, scores, scores, [1] * len(nodes), [ended.get("reason") if n == c else None for n in nodes]
        )

    layer = Layer([], [], torch.zeros(0), torch.zeros(0))
    before = beams([a, b, c], [0.2, 0.3, 0.5])
    drafted = Drafted(before, q, q.log(), layer, before)
    joint_p = torch.tensor([0.6 * 0.4, 0.6 * 0.6, 0.4 * 0.7, 0.4 * 0.3])  # of b and a
    joint_q = torch.tensor([0.3 * 0.9, 0.3 * 0.1, 0.2 * 0.5, 0.2 * 0.5]) / 0.5
    found = layer_divergence("tv", beams([b, a], [0.6, 0.4]), p.flip(0).log(), drafted, q.log())
    assert found == pytest.approx(0.5 * float((joint_p - joint_q).abs().sum()), abs=1e-6)


@pytest.mark.parametrize("settings", SAMPLED)
def test_texts_are_the_same_for_every_threshold_of_their_interval(settings: dict[str, Any]) -> None:
    decoder, prompts = tiny_decoder(), ragged_prompts(8)
    results = decoder.generate_beams(prompts, 3, 16, threshold=0.05, depth=3, **settings)
    assert any(result.kept for result in results)
    for prompt, number, result in zip(prompts, range(8), results, strict=True):
        low, high = result.interval
        assert low <= 0.05 < high
        assert (low > -math.inf) == (result.kept > 0)
        inside = [low, math.nextafter(high, -math.inf)] if low > -math.inf and high < math.inf else [0.05]
        for threshold in inside:
            again = decoder.generate_beams([prompt], 3, 16, threshold=threshold, depth=3, ids=[number], **settings)
            assert texts(again) == texts([result])
            assert again[0].interval == result.interval


@pytest.mark.parametrize("settings", SAMPLED)
def test_a_larger_threshold_saves_rounds(settings: dict[str, Any]) -> None:
    decoder, prompts = tiny_decoder(), ragged_prompts(8)
    runs = [decoder.generate_beams(prompts, 3, 16, threshold=t, depth=3, **settings) for t in (-1.0, 1.0)]
    lossless, loose = (sum(result.rounds for result in run) for run in runs)
    assert loose < lossless
    assert all(result.kept == 0 and result.interval[0] == -math.inf for result in runs[0])


def test_a_negative_threshold_is_the_lossless_rule() -> None:
    decoder, prompts = tiny_decoder(), ragged_prompts(5)
    for fuzzy, exact, replacement in (("fsd-coupled", "coupled", False), ("fsd-sd", "sd", True)):
        given: dict[str, Any] = {"depth": 3, "replacement": replacement}
        loose = decoder.generate_beams(prompts, 3, 12, 1.0, rule=fuzzy, threshold=-1e-9, **given)
        assert texts(loose) == texts(decoder.generate_beams(prompts, 3, 12, 1.0, rule=exact, **given))
