"""Random EAGLE-3 heads as their trainers save them, and what they draft by the trainers' own definitions.

The definitions are computed over whole texts, one dense pass for every drafted token, from nothing but the tensors and
the entries of a file, so that they share no code with what loads and runs a head.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

PARTS = (  # projections of a layer, and what sizes they are between: what goes in, and what comes out
    ("self_attn.q_proj", "both", "queries"), ("self_attn.k_proj", "both", "keys"), ("self_attn.v_proj", "both", "keys"),
    ("self_attn.o_proj", "queries", "hidden"), ("mlp.gate_proj", "hidden", "inner"), ("mlp.up_proj", "hidden", "inner"),
    ("mlp.down_proj", "inner", "hidden"),
)  # fmt: skip


@dataclass(frozen=True)
class Meaning:
    """What a file says, by the definition of its format.

    Args:
        layer: what the keys of the layer begin with.
        states: which of the target's states are read, by the number of layers that they are behind.
        config: the entries of the layer, named as in a Llama's configuration.
        theta: base of the rotary encoding.
        norm_before_residual, norm_before_fc, fc_norm, norm_output: whether there are these norms.
        window: number of positions that are seen; None: all.
    """

    layer: str
    states: Sequence[int]
    config: Mapping[str, Any]
    theta: float
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    window: int | None = None


@dataclass(frozen=True)
class SavedHead:
    """The content of a head's files.

    Args:
        config: of `config.json`.
        weights: by key.
    """

    config: Mapping[str, Any]
    weights: Mapping[str, Tensor] = field(repr=False)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        save_file({key: weight.detach().clone().contiguous() for key, weight in self.weights.items()},
                  folder / "model.safetensors")  # fmt: skip
        return folder


class Format:
    """How a trainer saves a head for a target of transformers, and what it takes the files for."""

    layer = "layers.0."

    def saved(self, target: Any, **changes: Any) -> SavedHead:
        """Returns a random head.

        Args:
            changes: of `config.json`, and of a layer's entries where these are inside another; `known` are the target's
                ids of the tokens that it can draft, by default all, and `without` keys of weights that are left out.
        """
        known, without = changes.pop("known", None), changes.pop("without", ())
        config = self.config(target, target.config.vocab_size if known is None else len(known), changes)
        weights = _weights(self.meaning(config, target.config.num_hidden_layers), target, known)
        return SavedHead(config, {key: weight for key, weight in weights.items() if key not in without})

    def config(self, target: Any, drafted: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the entries of `config.json` of a head that can draft so many tokens."""
        raise NotImplementedError

    def meaning(self, config: Mapping[str, Any], layers: int) -> Meaning:
        """Returns what `config.json` means for a target with so many layers."""
        raise NotImplementedError


class Speculators(Format):
    """speculators 0.9: `src/speculators/models/eagle3` defines it."""

    def config(self, target: Any, drafted: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        layer = _sizes(target) | {
            "model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        }  # fmt: skip
        outer = {
            "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "speculators_version": "0.9.0",
            "draft_vocab_size": drafted, "norm_before_residual": False, "norm_before_fc": False, "fc_norm": False,
            "norm_output": False, "target_hidden_size": None, "eagle_aux_hidden_state_layer_ids": None,
            "embed_requires_grad": False, "dtype": "float32",
            "speculators_config": {
                "algorithm": "eagle3", "default_proposal_method": "greedy",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 4}],
                "verifier": {"name_or_path": "target", "architectures": ["LlamaForCausalLM"]},
            },
        }  # fmt: skip
        of_outer = {name: value for name, value in changes.items() if name in outer}
        layer |= {name: value for name, value in changes.items() if name not in outer}
        return outer | of_outer | {"transformer_layer_config": layer}

    def meaning(self, config: Mapping[str, Any], layers: int) -> Meaning:
        layer = config["transformer_layer_config"]
        sliding = layer.get("layer_types") == ["sliding_attention"]
        return Meaning(
            "layers.0.", config["eagle_aux_hidden_state_layer_ids"] or (2, layers // 2, layers - 3), layer,
            layer["rope_parameters"]["rope_theta"], window=layer["sliding_window"] if sliding else None,
            **{norm: config[norm] for norm in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")},
        )  # fmt: skip


class SpecForge(Format):
    """SpecForge: `specforge/modeling/draft/llama3_eagle.py` defines it, with a norm of its output that is fed back."""

    def config(self, target: Any, drafted: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        return _sizes(target) | {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": drafted,
            "rope_theta": 500.0, "rope_scaling": None, "sliding_window": None, "use_sliding_window": False, **changes,
        }  # fmt: skip

    def meaning(self, config: Mapping[str, Any], layers: int) -> Meaning:
        captured = config.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids")
        outputs = captured or (1, layers // 2 - 1, layers - 4)
        return Meaning(
            "midlayer.", [layer + 1 for layer in outputs], config, config["rope_theta"],
            fc_norm=config.get("fc_norm", False), norm_output=config.get("norm_output", False),
        )  # fmt: skip


class ModelOpt(Format):
    """ModelOpt's export: `modelopt/torch/export/plugins/hf_spec_export.py` defines the files, vLLM what is computed."""

    def config(self, target: Any, drafted: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        layers = target.config.num_hidden_layers
        of_engines = {
            "eagle_aux_hidden_state_layer_ids": [1, layers // 2 - 1, layers - 4], "use_aux_hidden_state": True,
            "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False,
            "next_layer_regular": True, "parallel_draft_step": 1, "parallel_draft_heads_num_layers": 1,
        }  # fmt: skip
        of_engines |= {name: value for name, value in changes.items() if name in of_engines}
        return _sizes(target) | {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": drafted,
            "rope_theta": 500.0, "rope_scaling": {"rope_type": "default", "rope_theta": 500.0},
            "eagle_config": of_engines, **{name: value for name, value in changes.items() if name not in of_engines},
        }  # fmt: skip

    def meaning(self, config: Mapping[str, Any], layers: int) -> Meaning:
        outputs = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
        return Meaning(
            "layers.0.", [layer + 1 for layer in outputs], config, config["rope_theta"],
            norm_before_fc=config.get("norm_before_fc", False),
        )  # fmt: skip


SPECULATORS, SPECFORGE, MODELOPT = Speculators(), SpecForge(), ModelOpt()


def _sizes(target: Any) -> dict[str, Any]:
    """The entries of a layer as large as the target's."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
             "hidden_act", "rms_norm_eps", "max_position_embeddings")  # fmt: skip
    others = {"num_hidden_layers": 1, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False}
    return {name: getattr(target.config, name) for name in names} | others


def _weights(meaning: Meaning, target: Any, known: Tensor | None) -> dict[str, Tensor]:
    """Returns random tensors of a head that has all that a format may have."""
    config, like = meaning.config, target.get_input_embeddings().weight
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    states = hidden * len(meaning.states)
    sizes = {
        "hidden": hidden, "both": 2 * hidden, "inner": config["intermediate_size"],
        "queries": config["num_attention_heads"] * config["head_dim"],
        "keys": config["num_key_value_heads"] * config["head_dim"],
    }  # fmt: skip
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape: int, spread: float) -> Tensor:
        return (spread * torch.randn(shape, generator=generator)).to(like.dtype)

    def norm(size: int) -> Tensor:
        return 1 + drawn(size, spread=0.3)

    weights = {"fc.weight": drawn(hidden, states, spread=states**-0.5), "norm.weight": norm(hidden)}
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        weights[f"{meaning.layer}{name}.weight"] = norm(hidden)
    for name, before, behind in PARTS:
        shape = sizes[behind], sizes[before]
        weights[f"{meaning.layer}{name}.weight"] = drawn(*shape, spread=1.5 * sizes[before] ** -0.5)
        if config["attention_bias" if name.startswith("self_attn") else "mlp_bias"]:
            weights[f"{meaning.layer}{name}.bias"] = drawn(sizes[behind], spread=0.5)
    if meaning.norm_before_fc:
        weights["input_norm.weight"] = norm(states)
    if meaning.fc_norm:
        weights |= {f"fc_norm.{i}.weight": norm(hidden) for i in range(len(meaning.states))}
    weights["embed_tokens.weight"] = like.detach() + drawn(vocabulary, hidden, spread=0.3)
    tokens = torch.arange(vocabulary) if known is None else known
    weights["lm_head.weight"] = drawn(len(tokens), hidden, spread=3 * hidden**-0.5)
    if known is not None:
        weights["d2t"] = known - torch.arange(len(known))
        weights["t2d"] = torch.zeros(vocabulary, dtype=torch.bool).index_fill(0, known, True)
    return weights


def defined_q(saved: SavedHead, of: Format, target: Any, text: Sequence[int], path: Sequence[int]) -> Tensor:
    """Returns logits (V,) of q after a text of two tokens or more and drafted ones, by the format's definition."""
    meaning = of.meaning(saved.config, target.config.num_hidden_layers)
    states = target(torch.tensor([list(text)]), use_cache=False, output_hidden_states=True).hidden_states
    parts = [states[n][0] for n in sorted(meaning.states)]
    weights = saved.weights
    if meaning.norm_before_fc:
        parts = [_norm(torch.cat(parts, -1), weights["input_norm.weight"], meaning)]
    if meaning.fc_norm:
        parts = [_norm(part, weights[f"fc_norm.{i}.weight"], meaning) for i, part in enumerate(parts)]
    features, tokens = (torch.cat(parts, -1) @ weights["fc.weight"].T)[:-1], list(text[1:])
    for token in [*path, None]:
        out = _layer(weights, meaning, target, tokens, features)
        normed = _norm(out, weights["norm.weight"], meaning)
        if token is not None:
            tokens.append(token)
            features = torch.cat([features, (normed if meaning.norm_output else out)[-1:]])
    output = weights.get("lm_head.weight", target.lm_head.weight)
    logits = output @ normed[-1]
    found = torch.full((target.config.vocab_size,), -torch.inf, dtype=logits.dtype)
    found[torch.arange(len(logits)) + weights.get("d2t", torch.tensor(0))] = logits
    return found


def _layer(
    weights: Mapping[str, Tensor], meaning: Meaning, target: Any, tokens: Sequence[int], features: Tensor
) -> Tensor:
    """What the layer makes of pairs of a token and a feature: (n, H)."""

    def normed(part: str, states: Tensor) -> Tensor:
        return _norm(states, weights[f"{meaning.layer}{part}.weight"], meaning)

    def projected(part: str, states: Tensor) -> Tensor:
        return states @ weights[f"{meaning.layer}{part}.weight"].T + weights.get(f"{meaning.layer}{part}.bias", 0)

    table = weights.get("embed_tokens.weight", target.get_input_embeddings().weight)
    hidden = normed("hidden_norm", features)
    both = torch.cat([normed("input_layernorm", table[torch.tensor(tokens)]), hidden], -1)
    size, groups = (
        meaning.config["head_dim"],
        meaning.config["num_attention_heads"] // meaning.config["num_key_value_heads"],
    )
    q, k, v = (projected(f"self_attn.{name}_proj", both).view(len(tokens), -1, size).transpose(0, 1) for name in "qkv")
    places = torch.arange(len(tokens))
    apart = places[:, None] - places
    unseen = (apart < 0) | (apart >= (meaning.window or len(tokens)))
    scores = _turned(q, meaning.theta) @ _turned(k, meaning.theta).repeat_interleave(groups, 0).mT / math.sqrt(size)
    attended = scores.masked_fill(unseen, -torch.inf).softmax(-1) @ v.repeat_interleave(groups, 0)
    residual = hidden if meaning.norm_before_residual else features
    behind = residual + projected("self_attn.o_proj", attended.transpose(0, 1).reshape(len(tokens), -1))
    inner = normed("post_attention_layernorm", behind)
    gate = torch.nn.functional.silu(projected("mlp.gate_proj", inner))
    out: Tensor = behind + projected("mlp.down_proj", gate * projected("mlp.up_proj", inner))
    return out


def _norm(states: Tensor, weight: Tensor, meaning: Meaning) -> Tensor:
    size: Tensor = states.square().mean(-1, keepdim=True) + meaning.config["rms_norm_eps"]
    return states / size.sqrt() * weight


def _turned(states: Tensor, theta: float) -> Tensor:
    """Queries or keys (heads, n, D) with the rotary encoding: each pair of components turned by an angle."""
    size = states.shape[-1]
    speeds = theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(states.shape[1], dtype=torch.float64)[:, None] * speeds
    cos, sin = angles.cos().to(states.dtype), angles.sin().to(states.dtype)
    first, second = states.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
