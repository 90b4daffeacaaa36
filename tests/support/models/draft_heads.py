"""Small draft heads in plain PyTorch, and their checkpoints as vLLM loads them: EAGLE, EAGLE-3, MTP and DFlash.

Such a head drafts from the target's hidden states: its input at a position is the hidden state there and the embedding
of the token after it. It takes its own hidden states where the target's are not yet known.
"""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)


class DraftHead(nn.Module, ABC):
    """A draft head for a target of transformers.

    Args:
        target: a causal LM, whose embeddings (V, H) the head reads.
    """

    method: str  # of vLLM's --speculative-config

    def __init__(self, target: Any) -> None:
        super().__init__()
        self._target = [target]  # in a list, so that its weights are not the head's
        self.rotary = LlamaRotaryEmbedding(target.config)

    @property
    def target(self) -> Any:
        return self._target[0]

    @abstractmethod
    def features(self, tokens: Tensor) -> Tensor:
        """Returns what the head takes from the target at each of the tokens (n,): (n, H)."""

    @abstractmethod
    def forward(self, embeddings: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what the logits of n positions are of, and what the next step takes: (n, H) each."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Returns logits over the target's vocabulary: (n, H) -> (n, V)."""

    @torch.inference_mode()
    def drafts(self, tokens: Sequence[int], drafted: Sequence[int]) -> Tensor:
        """Returns the logits that each of the drafted tokens (n,) was drawn from, after `tokens`: (n, V)."""
        known = torch.tensor(tokens)
        embed = self.target.get_input_embeddings()
        embeddings, hidden = embed(known[1:]), self.features(known)[:-1]
        found = []
        for token in drafted:
            outputs, nexts = self(embeddings, hidden)
            found.append(self.logits(outputs[-1:]))
            embeddings = torch.cat([embeddings, embed(torch.tensor([token]))])
            hidden = torch.cat([hidden, nexts[-1:]])
        return torch.cat(found)

    def _decode(self, layer: nn.Module, hidden: Tensor) -> Tensor:
        """Runs a module with causal attention on one sequence: (n, …) -> (n, H)."""
        places = torch.arange(len(hidden)).unsqueeze(0)
        angles = self.rotary(hidden, places)
        out = layer(hidden.unsqueeze(0), attention_mask=None, position_embeddings=angles)
        states: Tensor = out[0] if isinstance(out, tuple) else out
        return states.view(len(hidden), -1)


class EagleHead(DraftHead):
    """EAGLE: one decoder layer on the target's last hidden states, with the target's own output head."""

    method = "eagle"

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        width = target.config.hidden_size
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layers = nn.ModuleList([LlamaDecoderLayer(target.config, 0)])
        self.layers[0].input_layernorm = nn.Identity()

    def features(self, tokens: Tensor) -> Tensor:
        states: Tensor = self.target.model(tokens.unsqueeze(0)).last_hidden_state[0]
        return states

    def forward(self, embeddings: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        out = self._decode(self.layers[0], self.fc(torch.cat([embeddings, hidden], -1)))
        return out, out

    def logits(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.target.lm_head(hidden)
        return found


class Eagle3Head(DraftHead):
    """EAGLE-3: a layer on hidden states of three depths, with an output head of its own over some of the tokens.

    Args:
        drafted: ids (D,) of the tokens that it can draft, in order; all by default.
    """

    method = "eagle3"

    def __init__(self, target: Any, drafted: Tensor | None = None) -> None:
        super().__init__(target)
        config = target.config
        width, heads = config.hidden_size, config.head_dim * config.num_attention_heads
        keys = config.head_dim * config.num_key_value_heads
        self.drafted = torch.arange(config.vocab_size) if drafted is None else drafted
        self.depths = (2, config.num_hidden_layers // 2, config.num_hidden_layers - 3)
        self.fc = nn.Linear(3 * width, width, bias=False)
        self.midlayer: Any = LlamaDecoderLayer(config, 0)
        self.midlayer.hidden_norm = LlamaRMSNorm(width, config.rms_norm_eps)
        for name, size in (("q_proj", heads), ("k_proj", keys), ("v_proj", keys)):
            setattr(self.midlayer.self_attn, name, nn.Linear(2 * width, size, bias=False))
        self.norm = LlamaRMSNorm(width, config.rms_norm_eps)
        self.lm_head = nn.Linear(width, len(self.drafted), bias=False)

    def features(self, tokens: Tensor) -> Tensor:
        states = self.target.model(tokens.unsqueeze(0), output_hidden_states=True).hidden_states
        combined: Tensor = self.fc(torch.cat([states[depth][0] for depth in self.depths], -1))
        return combined

    def forward(self, embeddings: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        layer = self.midlayer
        both = torch.cat([layer.input_layernorm(embeddings), layer.hidden_norm(hidden)], -1)
        attended = hidden + self._decode(layer.self_attn, both)
        out = attended + layer.mlp(layer.post_attention_layernorm(attended))
        return self.norm(out), out

    def logits(self, hidden: Tensor) -> Tensor:
        found = torch.full((len(hidden), self.target.config.vocab_size), -torch.inf)
        found[:, self.drafted] = self.lm_head(hidden)
        return found


class MtpHead(DraftHead):
    """The multi-token prediction layer of MiMo, which is in the target's own checkpoint."""

    method = "mtp"

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        width, eps = target.config.hidden_size, target.config.rms_norm_eps
        self.token_layernorm, self.hidden_layernorm = LlamaRMSNorm(width, eps), LlamaRMSNorm(width, eps)
        self.final_layernorm = LlamaRMSNorm(width, eps)
        self.input_proj = nn.Linear(2 * width, width, bias=False)
        self.block = Qwen2DecoderLayer(target.config, 0)

    def features(self, tokens: Tensor) -> Tensor:
        states: Tensor = _before_norm(self.target, tokens)
        return states

    def forward(self, embeddings: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        embeddings = torch.cat([torch.zeros_like(embeddings[:1]), embeddings[1:]])  # masked at position 0
        both = torch.cat([self.hidden_layernorm(hidden), self.token_layernorm(embeddings)], -1)
        out = self.final_layernorm(self._decode(self.block, self.input_proj(both)))
        return out, out

    def logits(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.target.lm_head(hidden)
        return found


class DFlashHead(nn.Module):
    """DFlash: one pass drafts all tokens, which see the text by projections of the target's hidden states.

    Args:
        target: a causal LM, whose embeddings and output head it has.
        length: tokens that are drafted, which all see each other.
    """

    method, mask = "dflash", 2  # the token in the place of those that are drafted

    def __init__(self, target: Any, length: int) -> None:
        super().__init__()
        self._target, self._length = [target], length
        of_target, width = target.config, target.config.hidden_size
        self.config = Qwen3Config(
            vocab_size=of_target.vocab_size, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=512,
            rms_norm_eps=of_target.rms_norm_eps, initializer_range=0.2,
        )  # fmt: skip
        self.config._attn_implementation = "eager"
        self.depths = (2, of_target.num_hidden_layers // 2, of_target.num_hidden_layers - 2)
        self.fc = nn.Linear(3 * width, width, bias=False)
        self.hidden_norm, self.norm = (Qwen3RMSNorm(width, of_target.rms_norm_eps) for _ in range(2))
        self.layers: Any = nn.ModuleList(Qwen3DecoderLayer(self.config, place) for place in range(2))
        self.rotary = Qwen3RotaryEmbedding(self.config)

    @property
    def target(self) -> Any:
        return self._target[0]

    @torch.inference_mode()
    def drafts(self, tokens: Sequence[int], drafted: Sequence[int]) -> Tensor:
        """As of `DraftHead`: of the first drafted tokens. What they are does not matter."""
        known = torch.tensor([tokens])
        states = self.target.model(known[:, :-1], output_hidden_states=True).hidden_states
        context = self.hidden_norm(self.fc(torch.cat([states[depth] for depth in self.depths], -1)))
        queries = torch.cat([known[:, -1:], torch.full((1, self._length), self.mask)], 1)
        hidden = self.target.get_input_embeddings()(queries)
        places = torch.arange(known.shape[1] + self._length).unsqueeze(0)
        cos, sin = self.rotary(hidden, places)
        for layer in self.layers:
            hidden = hidden + self._attended(layer.self_attn, layer.input_layernorm(hidden), context, (cos, sin))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        logits: Tensor = self.target.lm_head(self.norm(hidden))[0, 1:]
        return logits[: len(drafted)]

    def _attended(self, layer: Any, queries: Tensor, context: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Attention of queries (1, n, H) on the text (1, m, H) and on each other."""
        heads = (1, -1, 4, 32), (1, -1, 2, 32)
        seen = torch.cat([context, queries], 1)
        q = layer.q_norm(layer.q_proj(queries).view(heads[0])).transpose(1, 2)
        k = layer.k_norm(layer.k_proj(seen).view(heads[1])).transpose(1, 2)
        v = layer.v_proj(seen).view(heads[1]).transpose(1, 2)
        padded = torch.cat([q.new_zeros(1, 4, context.shape[1], 32), q], 2)  # as if the text had queries, too
        padded, k = apply_rotary_pos_emb(padded, k, *angles)
        out = nn.functional.scaled_dot_product_attention(padded[:, :, context.shape[1] :], k, v, enable_gqa=True)
        attended: Tensor = layer.o_proj(out.transpose(1, 2).reshape(1, queries.shape[1], -1))
        return attended

    def save(self, folder: Path) -> Path:
        """Writes it as vLLM loads it."""
        folder.mkdir(parents=True)
        weights = {name: weight.contiguous() for name, weight in self.state_dict().items() if "rotary" not in name}
        save_file(weights, folder / "model.safetensors")
        own = {"mask_token_id": self.mask, "target_layer_ids": [depth - 1 for depth in self.depths]}
        values = {**self.config.to_dict(), "architectures": ["DFlashDraftModel"], "dflash_config": own}
        (folder / "config.json").write_text(json.dumps(values))
        return folder


def random_dflash(target: Any, length: int, seed: int) -> DFlashHead:
    torch.manual_seed(seed)
    return DFlashHead(target, length).float().eval().requires_grad_(False)


def trained_head(
    kind: type[DraftHead], target: Any, texts: Sequence[Sequence[int]], seed: int, **keywords: Any
) -> DraftHead:
    """Returns a head that has seen each text of the target once: enough to draft some of its tokens.

    Args:
        texts: token ids of each.
    """
    torch.manual_seed(seed)
    head = kind(target, **keywords).float()
    optimizer = torch.optim.Adam(head.parameters(), lr=3e-3)
    for text in texts:
        tokens = torch.tensor(text)
        with torch.no_grad():
            wanted = target(tokens.unsqueeze(0)).logits[0, 1:].softmax(-1)
            embeddings = target.get_input_embeddings()(tokens[1:])
        outputs, _ = head(embeddings, head.features(tokens)[:-1])
        loss = -(wanted * head.logits(outputs).log_softmax(-1).clamp_min(-30)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head.eval().requires_grad_(False)


def mimo_target(width: int, vocabulary: int, seed: int) -> Any:
    """Returns a random MiMo without its MTP layer: transformers knows this architecture as Qwen2."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.3,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    config.head_dim = width // 2
    return AutoModelForCausalLM.from_config(config).float().eval().requires_grad_(False)


def save_head(head: DraftHead, folder: Path) -> Path:
    """Writes an EAGLE or EAGLE-3 head as vLLM loads it."""
    folder.mkdir(parents=True)
    weights = {name: weight.contiguous() for name, weight in head.state_dict().items() if "rotary" not in name}
    config = LlamaConfig(**{**head.target.config.to_dict(), "num_hidden_layers": 1, "tie_word_embeddings": False})
    values = {**config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    if isinstance(head, Eagle3Head):
        values["draft_vocab_size"] = len(head.drafted)
        if len(head.drafted) < config.vocab_size:
            weights["d2t"] = head.drafted - torch.arange(len(head.drafted))
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def save_mimo(head: MtpHead, tokenizer: Path, folder: Path) -> Path:
    """Writes a target with its MTP layer as one checkpoint of MiMo, as vLLM loads it, with the tokenizer of another."""
    head.target.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    weights = dict(head.target.state_dict())
    for name, weight in head.state_dict().items():
        if "rotary" not in name:
            weights[f"model.mtp_layers.0.{name.removeprefix('block.')}"] = weight
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / name)
    return folder


def _before_norm(model: Any, tokens: Tensor) -> Tensor:
    """Returns the hidden states that the model's last norm takes: (n, H)."""
    taken: list[Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0][0]))
    model.model(tokens.unsqueeze(0))
    hook.remove()
    return taken[0]
