"""Logits of heads that use the target's output layer, against the forward passes of transformers' own models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForImageTextToText

from support.models.tiny_heads import HEADS
from support.models.tiny_models import SMALL, random_model

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
