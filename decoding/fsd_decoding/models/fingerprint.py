"""Fingerprints: the same model or tokenizer has the same one, on any machine, device and load path.

Knows what makes a model decode as it does: configuration, parameter names and shapes, and a sample of
the weights. Knows nothing of profiles. A profile stores these and refuses other models.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_SAMPLED = 64  # elements of every tensor; a fine-tune moves nearly all, so one would nearly do
# What a configuration records of how, where and by whom a model was loaded, or of text handling around it.
_NOT_ARCHITECTURE = {
    *("architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "return_dict"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "problem_type"),
    *("output_attentions", "output_hidden_states", "chunk_size_feed_forward"),
}


def model_fingerprint(model: Any) -> str:
    """Sha256 (hex) of a loaded causal LM: its class, architecture and 64 elements of every tensor.

    Reads a few hundred kilobytes even of a 70B model. The elements are rounded to bfloat16 first, so a
    checkpoint loaded in float32, bfloat16 or float64 has one fingerprint; float16 keeps it too unless a
    sampled weight lies below its normal range (6e-5) and the checkpoint is wider. Quantised weights are
    other weights.
    """
    digest = hashlib.sha256(_json([type(model).__name__, _architecture(model.config.to_diff_dict())]))
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(_json([name, list(tensor.shape)]))
        digest.update(_sample(tensor))
    return digest.hexdigest()


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Sha256 (hex) of all that turns text into token ids and back, and of where a text ends.

    Padding and truncation, which any call may set, do not count, nor does the chat template.
    """
    parts = [
        sorted(tokenizer.get_vocab().items(), key=_by_id),
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
    ]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        described = json.loads(backend.to_str())
        parts.append({k: v for k, v in described.items() if k not in ("padding", "truncation")})
    return hashlib.sha256(_json(parts)).hexdigest()


def tokenizer_difference(a: Any, b: Any, names: tuple[str, str] = ("target", "draft")) -> str | None:
    """The first token id on which two tokenizers disagree, in words; None where they agree.

    Added and special tokens count like all others. Which of them ends a text may differ (a base model's
    draft beside an instruction-tuned target): decoding follows the target's tokenizer alone.
    """
    ours, theirs = _strings(a), _strings(b)
    for i in sorted(ours.keys() | theirs.keys()):
        if ours.get(i) != theirs.get(i):
            sides = " and ".join(f"{_shown(v.get(i))} in {n}" for v, n in zip((ours, theirs), names, strict=True))
            return f"id {i} is {sides}"
    return None


def _architecture(config: Any) -> Any:
    """A configuration, and those nested in it, without what is not the model's own."""
    if not isinstance(config, dict):
        return config
    return {
        key: _architecture(value)
        for key, value in config.items()
        if key not in _NOT_ARCHITECTURE and not str(key).startswith("_")
    }


def _sample(tensor: Tensor) -> bytes:
    """Evenly spaced elements of a tensor of any shape, as bfloat16 bits."""
    import torch

    flat = tensor.detach().reshape(-1)
    count = min(_SAMPLED, flat.numel())
    at = torch.arange(count, device=flat.device) * flat.numel() // max(count, 1)
    elements = flat[at].to("cpu", torch.float32).to(torch.bfloat16)
    return elements.view(torch.int16).numpy().tobytes()


def _strings(tokenizer: Any) -> dict[int, str]:
    return {i: string for string, i in tokenizer.get_vocab().items()}


def _by_id(entry: tuple[str, int]) -> tuple[int, str]:
    return entry[1], entry[0]


def _shown(string: str | None) -> str:
    return "no token" if string is None else repr(string)


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()
