"""What trees cannot be combined with: refused in one line that says why."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from transformers import NoBadWordsLogitsProcessor

from fsd_common.errors import UsageError
from fsd_decoding.adaptive import Constant, DivergenceBudget, EntropyScaled, Min, Schedule, Switch
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.sampling import Sampling
from fsd_decoding.tree_shape import TreeShape
from support.models.hf_pair import Fours
from support.models.stop_policies import Unsure
from support.models.tiny_models import VOCABULARY
from support.models.tiny_pair import ragged_prompts, tiny_decoder

TREE = TreeShape(3, 8)


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return tiny_decoder().with_config(tree=TREE, draft_length=3)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a rule of chains": (
        {"rule": "ensemble", "threshold": 0.2},
        "rule 'ensemble' judges chains alone; use one of sd, ",
    ),
    "a stop policy": ({"stop_policy": Unsure()}, "Unsure ends chains early; leave the stop policy out"),
    "a budget": ({"threshold_policy": DivergenceBudget()}, "DivergenceBudget moves T along a chain"),
    "a scale of earlier rounds": (
        {"threshold_policy": EntropyScaled(0.1, slope=1.0, of="last")},
        "EntropyScaled moves T along a chain",
    ),
    "a part that reads the text": (
        {"threshold_policy": Min(Schedule(0.1, 0.2, 9), Switch.after_sentence(Constant(0.1), Constant(0.2)))},
        "moves T along a chain",
    ),
    "a penalty": ({"repetition_penalty": 1.1}, "read the text before each token, of which a tree has several"),
    "no drafts": ({"rule": "target", "tree": TREE}, "and rule 'target' drafts nothing; leave one of them out"),
    "no shape": ({"tree": (3, 8)}, r"tree is \(3, 8\); write a shape as TreeShape"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_with_trees_is_refused(decoder: SpeculativeDecoder, case: str) -> None:
    keywords, message = REFUSED[case]
    with pytest.raises(UsageError, match=message) as refused:
        decoder.with_config(**keywords)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("keywords", [{"rule": "ensemble", "threshold": 0.2}, {"repetition_penalty": 1.1}], ids=str)
def test_in_a_call_too(decoder: SpeculativeDecoder, keywords: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"tree is TreeShape.*give tree='chain'"):
        decoder.generate(ragged_prompts(1), 4, **keywords)


def test_processors_are_refused(decoder: SpeculativeDecoder) -> None:
    processors = (NoBadWordsLogitsProcessor([[3]], eos_token_id=1),)
    with pytest.raises(UsageError, match="logits processors read the text"):
        decoder.with_config(sampling=Sampling(processors=processors))


@pytest.mark.parametrize(("top_k", "nodes", "message"), [
    (0, 4, "top_k is 0; it must be a whole number of at least 1"), (2, 1.5, "nodes is 1.5; it must be a whole number"),
    (2, 10**20, "nodes is 100000000000000000000; a tree may have at most 4096"),
])  # fmt: skip
def test_a_shape_of_no_tree_is_refused(top_k: Any, nodes: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TreeShape(top_k, nodes)


def test_more_children_than_words_are_refused(decoder: SpeculativeDecoder) -> None:
    with pytest.raises(
        UsageError, match=f"the tree's top_k is 99; it must be at most the vocabulary's size, {VOCABULARY}"
    ):
        decoder.with_config(tree=TreeShape(99, 100)).generate(ragged_prompts(1), 4)


def test_a_draft_of_chains_is_refused(decoder: SpeculativeDecoder) -> None:
    chains = SpeculativeDecoder(decoder.target, Fours(), decoder.tokenizer, tree=TREE)
    with pytest.raises(UsageError, match=r"tree is TreeShape.*, and Fours drafts chains alone; give tree='chain'"):
        chains.generate(ragged_prompts(1), 4)


def test_a_scale_of_t_goes_with_trees(decoder: SpeculativeDecoder) -> None:
    """At slope 0 it is a constant T; else some nodes get another T."""
    prompts = ragged_prompts(12)
    constant, same, scaled = (
        decoder.with_config(**keywords).generate(prompts, 20, 0.9)
        for keywords in (
            {"threshold": 0.1}, {"threshold_policy": EntropyScaled(0.1, slope=0.0)},
            {"threshold_policy": EntropyScaled(0.1, slope=2.0)},
        )
    )  # fmt: skip
    assert [r.tokens for r in same] == [r.tokens for r in constant] != [r.tokens for r in scaled]


def test_an_observer_sees_the_paths(decoder: SpeculativeDecoder) -> None:
    """Every emitted token in its place, and D of each decision, as if the path had been drafted alone."""
    seen: list[list[int]] = []

    def observe(record: Any) -> None:
        (count,) = (record.accepted + 1).tolist()
        seen.append(record.emitted[0, :count].tolist())
        assert record.drafted[0] in (count - 1, count)
        assert record.scores(["js"])["js"].shape == record.proposal.drafted.shape == (1, 3)
        exact, kept = record.exact_verdict.accepted[0], record.verdict.accepted[0]
        scored = record.verdict.by_score[0] & kept
        assert torch.equal(exact[: count - 1] | scored[: count - 1], kept[: count - 1])
        assert (record.verdict.score[0][scored] <= 0.1).all()

    prompt = ragged_prompts(1)
    (result,) = decoder.generate(prompt, 20, 0.9, threshold=0.1, observer=observe)
    assert list(chain(*seen))[: len(result.tokens)] == result.tokens
    assert len(seen) == result.rounds
