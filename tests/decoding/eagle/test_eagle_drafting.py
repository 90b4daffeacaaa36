"""Drafting with EAGLE heads: q against a dense computation, lossless texts, and the logits of the target's output."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForImageTextToText

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.tree_shape import TreeShape
from support.models.dense_heads import dense_q
from support.models.tiny_heads import HEADS
from support.models.tiny_models import SMALL, llama, random_model, word_tokenizer
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


FULL = {"layer_types": ["full_attention"] * 2}
SCALED: dict[str, dict[str, Any]] = {  # by model type, the entry that changes logits and what a tiny model needs
    "cohere": {"logit_scale": 0.25},
    "cohere2": {"logit_scale": 0.25},
    "cohere2_moe": {"logit_scale": 0.25},
    "cohere_compass_text": FULL | {"logit_scale": 0.25, "rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
    "granite": {"logits_scaling": 4.0},
    "granite_swa": {"logits_scaling": 4.0},
    "granitemoe": {"logits_scaling": 4.0},
    "granitemoe_swa": {"logits_scaling": 4.0},
    "granitemoeshared": {"logits_scaling": 4.0},
    "granitemoehybrid": {"logits_scaling": 4.0, "layer_types": ["attention"] * 2, "mamba_n_heads": 4,
                         "mamba_d_head": 16},
    "minicpm3": {"dim_model_base": 8, "num_key_value_heads": 4, "head_dim": None, "q_lora_rank": 16,
                 "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8},
    "hyperclovax": {"logits_scaling": 4.0},
    "inkling_text": {"logits_mup_width_multiplier": 4.0, "unpadded_vocab_size": None, "eos_token_id": 1},
    "gemma2": {"final_logit_softcapping": 3.0},
    "gemma3_text": {"final_logit_softcapping": 3.0},
    "gemma4_text": FULL | {"final_logit_softcapping": 3.0},
    "gemma4_unified_text": FULL | {"final_logit_softcapping": 3.0},
    "vaultgemma": {"final_logit_softcapping": 3.0},
    "nanochat": {"final_logit_softcapping": 3.0},
    "beam": {"final_logit_softcapping": 3.0},
}  # fmt: skip


def check(target: Any) -> None:
    """A head's logits of the last states are the target's, and other than its output layer's alone."""
    with torch.inference_mode():
        out = target(input_ids=torch.tensor([[3, 5, 7]]), use_cache=False, output_hidden_states=True)
        own = HEADS["EAGLE-1"](target).logits(out.hidden_states[-1])
        torch.testing.assert_close(own.to(out.logits.dtype), out.logits)
        assert not torch.allclose(target.get_output_embeddings()(out.hidden_states[-1]), own)


LARGE = {"gemma4_text", "inkling_text"}  # which take seconds


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind in LARGE else kind for kind in SCALED]
)
def test_logits_are_scaled_and_capped_as_the_target_does(kind: str) -> None:
    if kind not in CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {kind}")
    check(random_model(AutoConfig.for_model(kind, **SMALL | SCALED[kind]), seed=0))


def test_logits_are_scaled_before_they_are_capped() -> None:
    if "muse_glimmer" not in CONFIG_MAPPING:
        pytest.skip("this version of transformers has no muse_glimmer")
    text = SMALL | {"output_multiplier": 0.25, "final_logit_softcapping": 3.0, "eos_token_id": 1}
    vision = {"num_attention_heads": 2, "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16}
    config = AutoConfig.for_model(
        "muse_glimmer", text_config=text, vision_config=vision, out_hidden_size=64, projector_hidden_size=16,
        image_token_id=38, video_token_id=37,
    )  # fmt: skip
    torch.manual_seed(0)
    check(AutoModelForImageTextToText.from_config(config, dtype=torch.float64).eval())
