"""Forests of beams: nodes share slots, freed ones are taken again, and logits are those of the whole texts."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsd_decoding import noise
from fsd_decoding.beams.forest import Forest
from fsd_decoding.beams.reading import ForestReader
from fsd_decoding.models.runner import ModelRunner
from support.models.tiny_models import FAMILIES, VOCABULARY, random_model

KEY = noise.problem_keys(0, [0])[0]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=60), st.sets(st.integers(0, 30)), st.data())
def test_paths_survive_what_is_freed_and_made_anew(
    grown: list[tuple[int, int]], kept: set[int], data: st.DataObject
) -> None:
    forest = Forest(3, 9, KEY)
    texts: dict[int, tuple[int, ...]] = {0: ()}
    for node, token in grown:
        if node in texts:
            texts[forest.child(node, token)] = (*texts[node], token)
    kept &= texts.keys()
    forest.prune(kept)
    staying = {0, *kept}
    prefixes = {text[:n] for node, text in texts.items() if node in kept for n in range(len(text) + 1)}
    alive = {node: text for node, text in texts.items() if text in prefixes}
    assert forest.used == 1 + max(alive | {0: ()})
    for token in range(4, 40):  # which are new, and take the freed places first
        node = forest.child(data.draw(st.sampled_from(sorted(staying))), token)
        assert node not in alive
        assert len(forest.path(node)) == forest.depths[node]
    assert {node: tuple(forest.path(node)) for node in alive} == alive
    assert forest.used == max(max(alive | {0: ()}) + 1, len(alive | {0: ()}) + 36)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=5), st.lists(st.integers(0, 1000), min_size=1, max_size=5))
def test_noise_belongs_to_the_tokens_of_a_text(one: list[int], other: list[int]) -> None:
    def key(forest: Forest, tokens: list[int]) -> list[int]:
        node = 0
        for token in tokens:
            node = forest.child(node, token)
        found: list[int] = forest.keys([node])[0].tolist()
        return found

    shared, alone = Forest(1, 0, KEY), Forest(5, 3, KEY)
    keys = key(shared, one), key(shared, other)
    assert keys[0] == key(alone, one)
    assert (keys[0] == keys[1]) == (one == other)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "mistral"])  # two with sliding windows
@torch.inference_mode()
def test_logits_are_those_of_the_whole_texts(family: str) -> None:
    """Two rows of other lengths; nodes in any order, read and freed in between, in a cache that grows with them."""
    model = random_model(FAMILIES[family], seed=3)
    rng = Random(0)
    prompts = [[5, 6, 7, 8, 9, 10, 11], [12]]
    runner = ModelRunner(model, 2, 28, VOCABULARY)  # as many as there are positions
    reader = ForestReader(runner, 0, 60)
    forests = [Forest(len(prompt), prompt[-1], KEY) for prompt in prompts]
    for row, prompt in enumerate(prompts):
        reader.put(row, prompt)
    beams = [[0], [0]]
    for _ in range(6):
        wanted = []
        for forest, nodes in zip(forests, beams, strict=True):
            level = [forest.child(rng.choice(nodes), rng.randrange(VOCABULARY)) for _ in range(3)]
            deeper = [forest.child(rng.choice(level), rng.randrange(VOCABULARY)) for _ in range(3)]
            deepest = [forest.child(rng.choice(deeper), rng.randrange(VOCABULARY)) for _ in range(rng.randint(1, 4))]
            wanted.append(list(dict.fromkeys([deepest[0], *rng.sample(level + deeper + deepest, 2)])))
        found = reader([*forests], wanted)
        for prompt, forest, nodes, logits in zip(prompts, forests, wanted, found, strict=True):
            for node, values in zip(nodes, logits, strict=True):
                torch.testing.assert_close(values, _uncached(model, prompt + forest.path(node)), atol=1e-5, rtol=1e-5)
            forest.prune(nodes)
        beams = wanted
    assert 28 < runner.slots <= 60


def _uncached(model: Any, tokens: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
    return logits
