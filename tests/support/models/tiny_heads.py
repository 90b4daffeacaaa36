"""Tiny random EAGLE heads, and files of such heads in the layouts of EAGLE and SpecForge."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

from fsd_decoding.drafters.eagle_head import Eagle1Head, Eagle3Head, EagleHead
from support.models.tiny_models import SMALL, VOCABULARY

CONFIG = LlamaConfig(**SMALL | {"max_position_embeddings": 128})
KNOWN = 20  # tokens that the EAGLE-3 head can draft
LAYERS = (2, 4, 5)  # of a target with 8


def eagle1(target: Any) -> EagleHead:
    return sharpened(Eagle1Head(CONFIG, target, bias=True))


def eagle3(target: Any) -> Eagle3Head:
    head = Eagle3Head(CONFIG, LAYERS, KNOWN, target.get_input_embeddings(), VOCABULARY)
    head.known.copy_(torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(0))[:KNOWN].sort().values)
    sharpened(head)
    return head


HEADS: dict[str, Callable[[Any], EagleHead]] = {"EAGLE-1": eagle1, "EAGLE-3": eagle3}


def sharpened(head: EagleHead) -> EagleHead:
    """Float64, with weights that make a difference."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(weight + 0.3 * torch.randn(weight.shape, generator=generator))
    return head.double().eval()


def eagle1_files(head: Any, target: Any) -> dict[str, Tensor]:
    """The checkpoint of an EAGLE-1 or EAGLE-2 head, whose layer has a number, and which copies the embeddings."""
    weights = {"embed_tokens.weight": target.get_input_embeddings().weight, "fc.weight": head.fc.weight,
               "fc.bias": head.fc.bias}  # fmt: skip
    for part in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
                 "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm"):  # fmt: skip
        weights[f"layers.0.{part}.weight"] = head.get_submodule(part).weight
    return weights


def eagle3_files(head: Any, target: Any) -> dict[str, Tensor]:
    """The checkpoint of an EAGLE-3 head, with the tokens that it can draft."""
    parts = ["fc", "norm", "lm_head", "midlayer.input_layernorm", "midlayer.hidden_norm",
             "midlayer.post_attention_layernorm", "midlayer.self_attn.q_proj", "midlayer.self_attn.k_proj",
             "midlayer.self_attn.v_proj", "midlayer.self_attn.o_proj", "midlayer.mlp.gate_proj",
             "midlayer.mlp.up_proj", "midlayer.mlp.down_proj"]  # fmt: skip
    weights = {f"{part}.weight": head.get_submodule(part).weight for part in parts}
    known = head.known
    flags = torch.zeros(VOCABULARY, dtype=torch.bool)
    flags[known] = True
    return weights | {"d2t": known - torch.arange(len(known)), "t2d": flags}


FILES = {"EAGLE-1": eagle1_files, "EAGLE-3": eagle3_files}


def written(folder: Path, weights: Mapping[str, Tensor], pickled: bool = False, **changes: Any) -> Path:
    """Writes a checkpoint. changes: of config.json; None removes an entry."""
    values = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_theta": 10000.0, "rms_norm_eps": 1e-6}
    values |= {name: SMALL[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "head_dim",
               "num_attention_heads", "num_key_value_heads")}  # fmt: skip
    values |= {"num_hidden_layers": 1, "max_position_embeddings": 128} | changes
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
    tensors = {name: tensor.detach().clone() for name, tensor in weights.items()}
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder
