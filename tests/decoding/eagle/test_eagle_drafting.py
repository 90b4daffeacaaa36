"""Drafting with EAGLE heads: q against a dense computation of the whole text, and lossless texts."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.tree_shape import TreeShape
from support.models.dense_heads import dense_q
from support.models.tiny_heads import HEADS
from support.models.tiny_models import llama, word_tokenizer
from support.models.tiny_pair import ragged_prompts

NEW = 12
SHAPES = [None, TreeShape(1, 9), TreeShape(3, 12), TreeShape(2, 5), TreeShape(1, 1)]


@pytest.fixture(scope="module")
def target() -> Any:
    return llama(seed=0, layers=8)


@pytest.mark.parametrize(("kind", "tree", "lean"), product(HEADS, SHAPES, [True, False]), ids=str)
@pytest.mark.thinned(every=11)
def test_q_is_that_of_a_dense_computation(kind: str, tree: TreeShape | None, lean: bool, target: Any) -> None:
    """In every round of texts in four rows, at every decided token, the target's states and the head's own.

    Two prompts have a single token, the pair of which has no feature before it.
    """
    head, prompts = HEADS[kind](target), [[7], *ragged_prompts(3), [9]]
    decoder = SpeculativeDecoder(target, head, word_tokenizer(), rule="fsd-coupled", threshold=0.3, tree=tree,
                                 draft_length=3, lean=lean)  # fmt: skip
    checked = 0

    def observe(record: Any) -> None:
        nonlocal checked
        for row, request in enumerate(record.requests):
            if request is None:
                continue
            length = int(record.proposal.positions[row, 0])
            text, drafted = record.proposal.tokens[row, :length].tolist(), record.proposal.drafted[row].tolist()
            for place in range(int(record.drafted[row])):
                q = torch.log_softmax(dense_q(head, target, text, drafted[:place]), -1)
                actual = torch.log_softmax(record.proposal.draft_logits[row, place], -1)
                torch.testing.assert_close(actual, q, rtol=0, atol=1e-6)  # norms are fp32
                checked += 1

    with torch.inference_mode():
        decoder.generate(prompts, 16, 0.9, batch_size=4, observer=observe)
    assert checked > 60


# --- texts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "rule", "temperature"), product(HEADS, ["coupled", "fsd-coupled", "fsd"], [0.0, 0.9]))
@pytest.mark.thinned(every=7)
def test_lossless_texts_are_the_targets_own(kind: str, rule: str, temperature: float, target: Any) -> None:
    decoder = SpeculativeDecoder(
        target, HEADS[kind](target), word_tokenizer(), rule=rule, draft_length=4,
        threshold=None if rule == "coupled" else -1.0,
    )  # fmt: skip
    prompts = ragged_prompts(8)
    own = decoder.generate(prompts, NEW, temperature, rule="target")
    rounds = {}
    for tree in SHAPES:
        texts = (decoder if tree is None else decoder.with_config(tree=tree)).generate(
            prompts, NEW, temperature, batch_size=6
        )
        assert [r.tokens for r in texts] == [r.tokens for r in own]
        rounds[tree] = [r.rounds for r in texts]
    if rule != "fsd":  # whose chains reject y at T < 0, where a tree goes on from it
        assert rounds[None] == rounds[TreeShape(1, 9)]


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("tree", [None, TreeShape(3, 12)], ids=str)
@pytest.mark.parametrize("kind", HEADS)
def test_a_text_does_not_depend_on_its_batch(kind: str, tree: TreeShape | None, target: Any) -> None:
    """Nor do its rounds, its counts, or its interval of T, with refills."""
    decoder = SpeculativeDecoder(target, HEADS[kind](target), word_tokenizer(), rule="fsd-coupled", threshold=0.4,
                                 draft_length=3, tree=tree)  # fmt: skip
    prompts = ragged_prompts(5)
    alone = [decoder.generate([prompt], NEW, 0.9, ids=[i])[0] for i, prompt in enumerate(prompts)]
    for size in (2, 5):
        for one, other in zip(alone, decoder.generate(prompts, NEW, 0.9, batch_size=size), strict=True):
            assert replace(one, interval=(0.0, 0.0)) == replace(other, interval=(0.0, 0.0))
            assert one.interval == pytest.approx(other.interval, abs=1e-6)  # norms are fp32
