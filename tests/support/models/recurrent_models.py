"""Tiny configurations of every family with recurrent layers that our engine runs."""

from __future__ import annotations

from typing import Any

import transformers as hf

from support.models.tiny_models import SMALL, VOCABULARY

SSM: dict[str, Any] = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1,
                       "mamba_chunk_size": 8, "mamba_d_conv": 4}  # fmt: skip
MAMBA: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2,
                         "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}  # fmt: skip
MIXED = ["linear_attention", "full_attention"]
DELTA: dict[str, Any] = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
                         "linear_value_head_dim": 8, "layer_types": MIXED}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                           "shared_expert_intermediate_size": 24}  # fmt: skip
NEMOTRON: dict[str, Any] = {"layers_block_type": ["mamba", "mlp", "attention"], "mamba_num_heads": 4,
                            "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 8}  # fmt: skip
KIMI: dict[str, Any] = {"num_key_value_heads": 4, "layer_types": MIXED, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
                        "qk_nope_head_dim": 8, "v_head_dim": 6, "num_experts": 4, "num_experts_per_tok": 2,
                        "moe_intermediate_size": 24, "first_k_dense_replace": 1, "linear_num_heads": 2,
                        "linear_head_dim": 8}  # fmt: skip
RECURRENT = {
    "mamba": hf.MambaConfig(**MAMBA),
    "falcon-mamba": hf.FalconMambaConfig(**MAMBA),
    "mamba2": hf.Mamba2Config(**MAMBA, num_heads=4, head_dim=16, expand=2, n_groups=2, chunk_size=8),
    "falcon-h1": hf.FalconH1Config(**SMALL, **SSM, mamba_d_ssm=64),
    "qwen3-next": hf.Qwen3NextConfig(**SMALL, **DELTA, **EXPERTS),
    "qwen3.5": hf.Qwen3_5TextConfig(**SMALL, **DELTA),
    "qwen3.5 of experts": hf.Qwen3_5MoeTextConfig(**SMALL, **DELTA, **EXPERTS),
    "granitemoehybrid": hf.GraniteMoeHybridConfig(
        **SMALL, **SSM, layer_types=MIXED, shared_intermediate_size=48, num_local_experts=4
    ),
    "bamba": hf.BambaConfig(**SMALL, **SSM, attn_layer_indices=[1]),
    "nemotron-h, whose steps have a least size": hf.NemotronHConfig(
        **{name: value for name, value in SMALL.items() if name != "num_hidden_layers"}, **NEMOTRON
    ),
    "lfm2, convolutions alone": hf.Lfm2Config(**SMALL, layer_types=["conv", "full_attention"], conv_L_cache=3),
    "lfm2 of experts": hf.Lfm2MoeConfig(
        **SMALL,
        layer_types=["conv", "full_attention"],
        conv_L_cache=3,
        num_dense_layers=1,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
    ),
    "olmo-hybrid": hf.OlmoHybridConfig(**SMALL, **DELTA),
    "kimi-linear": hf.KimiLinearConfig(**SMALL | KIMI),
    "jamba": hf.JambaConfig(**SMALL, attn_layer_period=2, attn_layer_offset=1, num_experts=2, mamba_d_state=8),
}
