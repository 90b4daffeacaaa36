"""Targets with recurrent layers, which vLLM serves by itself: neither plugin nor checks of models refuse them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from vllm.engine.arg_utils import EngineArgs

from fsd_calib.calibration.memory import context_of
from fsd_calib.engines.vllm.loading import read_checkpoints
from fsd_calib.vllm_plugin.model_checks import too_large
from fsd_calib.vllm_plugin.worker import WORKERS
from fsd_decoding.loading import load_model, load_tokenizer
from fsd_decoding.model_options import USUAL
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.profile.parts import ModelInfo
from support.calibration.profiles import profile
from support.models.tiny_models import CONTEXT, SMALL, VOCABULARY, word_tokenizer

TARGETS = {
    "mamba2": hf.Mamba2Config(vocab_size=VOCABULARY, hidden_size=32, state_size=8, num_hidden_layers=2, num_heads=4,
                              head_dim=16, expand=2, n_groups=2, bos_token_id=None, eos_token_id=1, pad_token_id=0),
    "qwen3-next": hf.Qwen3NextConfig(
        **SMALL, layer_types=["linear_attention", "full_attention"], linear_num_value_heads=4, linear_num_key_heads=2,
        linear_key_head_dim=8, linear_value_head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
        shared_expert_intermediate_size=24,
    ),
    "zamba2, which our engine refuses": hf.Zamba2Config(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=48,
        n_mamba_heads=4, mamba_d_state=8, chunk_size=8, layers_block_type=["mamba", "hybrid"] * 2,
        bos_token_id=None, eos_token_id=1, pad_token_id=0, max_position_embeddings=CONTEXT,
    ),
}  # fmt: skip


def saved(folder: Path, config: Any) -> str:
    torch.manual_seed(0)
    hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(params=TARGETS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    target = saved(tmp_path / "target", TARGETS[request.param])
    return target, saved(tmp_path / "draft", hf.LlamaConfig(**SMALL))


def test_a_calibration_reads_them(pair: tuple[str, str]) -> None:
    target, draft = pair
    config = hf.AutoConfig.from_pretrained(target)
    assert context_of(target, USUAL) == getattr(config, "max_position_embeddings", None)
    assert too_large(target, None) is None
    read = read_checkpoints(target, draft, None)
    assert read.vocabulary == VOCABULARY
    assert read.context == CONTEXT


def test_an_engine_that_follows_a_profile_is_configured(pair: tuple[str, str], tmp_path: Path) -> None:
    models = [ModelInfo.of(load_model(folder, "cpu", None)).model_dump() for folder in pair]
    own = {"target": models[0], "draft": models[1], "tokenizer": tokenizer_fingerprint(load_tokenizer(pair[0]))}
    profile({**own, "threshold": 0.1, "draft_length": 3}).save(tmp_path / "profile.json")
    config = EngineArgs(
        pair[0], dtype="float32", max_model_len=CONTEXT, enforce_eager=True,
        speculative_config={"model": pair[1], "method": "draft_model", "num_speculative_tokens": 3},
        additional_config={"fsd": {"profile": str(tmp_path / "profile.json")}},
    ).create_engine_config()  # fmt: skip
    assert config.parallel_config.worker_cls in WORKERS.values()
