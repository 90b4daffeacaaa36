"""The target's logits at the nodes of a tree, and the shape of trees that are grown."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fsd_decoding.batch import Batch, Request
from fsd_decoding.engine.rounds import verify_tree
from fsd_decoding.models.runner import ModelDrafter, ModelRunner
from fsd_decoding.sampling import Sampling
from fsd_decoding.tree_shape import TreeShape
from fsd_decoding.trees import Tree, draft_tree
from support.models.exact_softmax import use_exact_softmax
from support.models.tiny_models import FAMILIES, VOCABULARY, random_model
from support.models.tiny_pair import ragged_prompts

SLOTS, DEPTH = 48, 4
DEPTHS = [4, 4, 3, 1, 2]  # of the rows


@pytest.fixture(autouse=True)
def _inference_mode() -> Any:
    with torch.inference_mode():
        yield


def batch() -> Batch:
    rows = Batch(5, SLOTS, torch.device("cpu"))
    requests = [
        Request(i, p, i, 0.1, depth, 9) for i, (p, depth) in enumerate(zip(ragged_prompts(5), DEPTHS, strict=True))
    ]
    rows.put(torch.arange(5), requests, seed=0)
    return rows


def grown(model: Any, rows: Batch, shape: TreeShape, fixed: bool, temperature: float) -> tuple[Tree, Tensor]:
    drafter = ModelDrafter(ModelRunner(model, 5, SLOTS, VOCABULARY))
    drafter.prefill(torch.arange(5), rows.tokens, int(rows.lengths.max()) - 1)
    *listed, logits = draft_tree(drafter, rows, Sampling(temperature), shape, DEPTH, fixed, SLOTS)
    return Tree.of(listed, DEPTH), logits


def path(tree: Tree, row: int, node: int) -> list[int]:
    """The tokens that lead to a node, its own last."""
    if node == 0:
        return []
    return [*path(tree, row, int(tree.parents[row, node - 1])), int(tree.tokens[row, node - 1])]


@pytest.mark.thinned(every=10)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_nodes_are_those_of_paths(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of target and draft, in float64, against whole uncached forward passes over each path alone."""
    use_exact_softmax(monkeypatch)
    target, draft = (random_model(FAMILIES[family], seed) for seed in (0, 1))
    rows, prompts = batch(), ragged_prompts(5)
    tree, q = grown(draft, rows, TreeShape(3, 20), False, 0.9)
    runner = ModelRunner(target, 5, SLOTS, VOCABULARY)
    runner.prefill(torch.arange(5), rows.tokens, int(rows.lengths.max()) - 1)
    p = verify_tree(runner, rows, tree.listed(), DEPTH, SLOTS)
    checked = 0
    for row, prompt in enumerate(prompts):
        for node in [0, *(tree.depths[row].nonzero().flatten() + 1).tolist()]:
            text = torch.tensor([prompt + path(tree, row, node)])
            expected = target(text, use_cache=False).logits[0, -1]
            assert torch.allclose(p[row, node], expected, rtol=0, atol=1e-10)
            if node < q.shape[1] and tree.internal[row, node]:
                expected = draft(text, use_cache=False).logits[0, -1]
                assert torch.allclose(q[row, node], expected, rtol=0, atol=1e-10)
            checked += 1
    assert checked > 60


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("shape", [TreeShape(1, 9), TreeShape(3, 20), TreeShape(6, 4), TreeShape(2, 5)], ids=str)
def test_trees_keep_their_promises(shape: TreeShape, temperature: float, fixed: bool) -> None:
    rows = batch()
    tree, _ = grown(random_model(FAMILIES["llama"], 1), rows, shape, fixed, temperature)
    nodes = torch.arange(1, tree.tokens.shape[1] + 1)
    assert (tree.parents < nodes).all()
    assert tree.tokens.shape[1] <= shape.nodes
    for row, depth in enumerate(DEPTHS):
        proposed = (tree.depths[row].nonzero().flatten() + 1).tolist()
        assert tree.proposed[row] == len(proposed) <= shape.nodes
        assert max(tree.depths[row].tolist()) <= depth
        found: dict[int, list[int]] = {}
        for node in proposed:
            parent = int(tree.parents[row, node - 1])
            assert parent == 0 or tree.depths[row, parent - 1] == tree.depths[row, node - 1] - 1 > 0
            found.setdefault(parent, []).append(int(tree.tokens[row, node - 1]))
            ancestors = {node} | ({int(n) + 1 for n in tree.seen[row, parent - 1].nonzero()} if parent else set())
            assert {int(n) + 1 for n in tree.seen[row, node - 1].nonzero()} == ancestors
        for parent, tokens in found.items():
            assert len(set(tokens)) == len(tokens) <= shape.top_k
            children = tree.children[row, parent].tolist()
            assert [token for token in children if token >= 0] == tokens
            assert children[0] == tokens[0]  # x is kept wherever a node has children


def test_a_fixed_shape_does_not_depend_on_the_tokens() -> None:
    shapes = []
    for seed in (1, 2):
        tree, _ = grown(random_model(FAMILIES["llama"], seed), batch(), TreeShape(3, 11), True, 0.9)
        shapes.append((tree.parents, tree.depths))
    for one, other in zip(*shapes, strict=True):
        assert torch.equal(one, other)
