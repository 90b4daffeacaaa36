"""The drafted trees that an observer keeps, compared with a text's counts and tokens."""

from __future__ import annotations

import pytest

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.observers.token_sources import DraftedTrees
from fsd_decoding.tree_shape import TreeShape
from support.models.tiny_pair import ragged_prompts, tiny_decoder

PROMPTS = ragged_prompts(7)


@pytest.mark.thinned(every=7)
@pytest.mark.parametrize("compile", [False, "capture"])
@pytest.mark.parametrize("shape", [TreeShape(1, 3), TreeShape(3, 9), TreeShape(2, 4)], ids=str)
def test_trees_tell_what_was_drafted_and_what_became_text(shape: TreeShape, compile: bool) -> None:
    """Of texts in a batch with refills: their number, their sizes, and the accepted nodes as the text's tokens."""
    base = tiny_decoder()
    decoder = SpeculativeDecoder(
        base.target, base.draft, base.tokenizer, rule="fsd-coupled", threshold=0.1, draft_length=3, tree=shape,
        compile=compile,
    )  # fmt: skip
    trees = DraftedTrees(decoder.tokenizer)
    results = decoder.generate(PROMPTS, 16, batch_size=3, observer=trees)
    for place, result in enumerate(results):
        kept = trees.trees(place)
        assert len(kept) == result.rounds
        assert sum(map(len, kept)) == result.drafted
        text = list(result.tokens)
        for tree in kept:
            accepted = [node for node in tree if node.accepted]
            assert [node.depth for node in accepted] == list(range(1, len(accepted) + 1))
            for node in tree:
                before = None if node.parent is None else tree[node.parent]
                assert node.depth == (1 if before is None else before.depth + 1)
                assert not node.accepted or before is None or before.accepted
                assert node.name == f"w{node.token}" or node.token < 2
            begun = text[: len(accepted)]
            assert [node.token for node in accepted][: len(begun)] == begun  # the text may end within the path
            text = text[len(accepted) + 1 :]


def test_chains_have_no_trees() -> None:
    trees = DraftedTrees(tiny_decoder().tokenizer)
    tiny_decoder().generate(PROMPTS, 8, rule="coupled", observer=trees)
    assert trees.trees() == []
