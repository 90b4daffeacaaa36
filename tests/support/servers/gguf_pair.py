"""The bundled models as files of llama.cpp's format, by its own package `gguf`."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

_TENSORS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
_CONTROL, _NORMAL = 3, 1  # kinds of tokens


def write_gguf(model: str, path: Path) -> Path:
    """Writes a folder of a Llama model with a byte-level BPE tokenizer as one file, and returns its path."""
    config = json.loads(Path(model, "config.json").read_text())
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads["q"])
    writer.add_head_count_kv(heads["k"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    _add_tokenizer(writer, Path(model))
    for name, weights in load_file(Path(model, "model.safetensors")).items():
        writer.add_tensor(*_renamed(name, weights, heads))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _renamed(name: str, weights: np.ndarray, heads: dict[str, int]) -> tuple[str, np.ndarray]:
    """A tensor by llama.cpp's name, with the halves of each head's rotations in turn, as it has them."""
    if name in _WHOLE:
        return _WHOLE[name], weights.astype(np.float32)
    _, _, layer, rest = name.removesuffix(".weight").split(".", 3)
    if rest[10:11] in heads and rest.endswith(("q_proj", "k_proj")):
        rows, width = weights.shape
        weights = weights.reshape(heads[rest[10]], 2, -1, width).swapaxes(1, 2).reshape(rows, width)
    return f"blk.{layer}.{_TENSORS[rest]}.weight", weights.astype(np.float32)


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    told = json.loads((folder / "tokenizer.json").read_text())
    tokens = sorted(told["model"]["vocab"], key=told["model"]["vocab"].__getitem__)
    special = {each["content"]: each["id"] for each in told["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")  # digits one by one, too
    writer.add_token_list(tokens)
    writer.add_token_types([_CONTROL if token in special else _NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in told["model"]["merges"]])
    writer.add_eos_token_id(special["<eos>"])
    writer.add_pad_token_id(special["<pad>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text())
