"""Rounds that are walked again at another T, compared with rounds that were decoded at it."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_collectors.replay.walks import JudgedNodes, Walks
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.tree_shape import TreeShape
from support.models.tiny_pair import ragged_prompts, tiny_decoder

SHAPES = [None, TreeShape(1, 3), TreeShape(2, 6), TreeShape(3, 16)]


def first_rounds(decoder: SpeculativeDecoder, **settings: Any) -> tuple[Walks, list[int]]:
    """The first round of some texts, and the number of tokens that it gave each."""
    nodes, tokens = JudgedNodes(["js", "tv"]), []
    for prompt in ragged_prompts(12):
        seen: list[int] = []

        def count(record: Any, seen: list[int] = seen) -> None:
            if not seen:
                seen.extend((record.accepted + 1).tolist())
                nodes(record)

        decoder.generate([prompt], 12, observer=count, **settings)
        tokens += seen
    return nodes.walks(), tokens


@pytest.mark.parametrize(("shape", "rule", "temperature"), product(SHAPES, ["fsd-coupled", "fsd"], [0.0, 1.0]), ids=str)
@pytest.mark.thinned(every=16)
def test_a_walk_at_any_threshold_is_the_round_that_is_decoded_there(
    shape: TreeShape | None, rule: str, temperature: float
) -> None:
    decoder = tiny_decoder().with_config(tree=shape, draft_length=4, temperature=temperature)
    walks, exact = first_rounds(decoder, rule="coupled")
    assert walks.exactly == np.mean(exact)
    for threshold in (0.0, 0.02, 0.1, 0.3, 5.0):
        _, tokens = first_rounds(decoder, rule=rule, threshold=threshold)
        (found,) = walks.tokens_per_round("js", np.array([threshold]), x_first=rule == "fsd")
        assert found == np.mean(tokens), threshold


@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_walks_of_random_trees_are_those_of_a_plain_walk(seed: int, threshold: float) -> None:
    random = np.random.default_rng(seed)
    rounds, nodes = 5, 7
    exact, drafted = (np.zeros((rounds, nodes + 1), np.int64) for _ in range(2))
    for round, parent in np.ndindex(rounds, nodes):
        later = np.arange(parent + 1, nodes + 1)
        if random.random() < 0.7:
            exact[round, parent], drafted[round, parent] = random.choice(later, 2)
    score = random.random((rounds, nodes + 1))
    walks = Walks(exact, drafted, {"js": score})

    def plain(round: int) -> int:
        node, tokens = 0, 1
        while True:
            fuzzy = drafted[round, node] if score[round, node] <= threshold else 0
            node = exact[round, node] or fuzzy
            if not node:
                return tokens
            tokens += 1

    assert walks.tokens_per_round("js", np.array([threshold]))[0] == np.mean([plain(r) for r in range(rounds)])


def test_a_threshold_accepts_its_share_of_what_was_drafted_along_the_text() -> None:
    """Node 2 is on no path, so its D of 9 does not count."""
    exact, drafted = np.array([[1, 0, 0]] * 4), np.array([[2, 1, 1]] * 4)
    score = np.array([[0.1, 0.2, 9], [0.3, 0.4, 9], [0.5, 0.6, 9], [0.7, 0.8, 9.0]])
    scale = Walks(exact, drafted, {"js": score}).scale("js", np.array([0.25, 0.5, 1.0]))
    assert scale.tolist() == [0.2, 0.4, 0.8]
