"""Fingerprints of models and tokenizers, which are equal on any machine, device and load path.

A model's fingerprint covers its configuration, parameter names and shapes, and every weight. A profile stores
fingerprints, and refuses models and tokenizers with others.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from fsd_common.digests import facts_digest

if TYPE_CHECKING:
    from torch import Tensor

_SAMPLED = 64  # elements of every tensor in a family's id
# Configuration entries about how and where a model was loaded, or about text handling, which do not change the model.
_NOT_ARCHITECTURE = {
    *("architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "return_dict"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "problem_type"),
    *("output_attentions", "output_hidden_states", "chunk_size_feed_forward"),
}


def model_fingerprint(model: Any) -> str:
    """Returns the SHA-256 (hex) of a loaded causal LM: its class, its architecture and all weights.

    Weights are rounded to bfloat16, so a checkpoint has the same fingerprint loaded in float32, bfloat16 or float64, on
    any device and from any folder. float16 holds small weights less exactly than bfloat16 does, and so has a
    fingerprint of its own, as quantised weights have, also by how they are computed with. `weights_digest` says which
    changes are found, and `known_weights_digest` when the weights are read again.
    """
    from fsd_decoding.models.weights_digest import known_weights_digest

    quantised = model.config.to_diff_dict().get("quantization_config")  # of which `_architecture` may leave out a part
    return facts_digest([*_described(model), quantised, known_weights_digest(model)])


def architecture_digest(config: Any) -> str:
    """Returns the SHA-256 (hex) of a model's configuration, whatever quantises its weights."""
    described = _architecture(config.to_diff_dict())
    return facts_digest({k: v for k, v in described.items() if k != "quantization_config"})


def family_id(model: Any) -> str:
    """Returns the SHA-256 (hex) of a loaded causal LM's class, its architecture and 64 elements of every tensor.

    Models that differ elsewhere share it. The ledger of attempts counts by it: a model that hardly differs from one
    that was certified is no new start.
    """
    from fsd_decoding.models.weights_digest import while_unchanged

    return facts_digest([*_described(model), while_unchanged(model, _samples)])


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Returns the SHA-256 (hex) of everything that maps text to token ids and back, and of the BOS and EOS tokens.

    Padding and truncation, which any call may set, are left out, and so is the chat template.
    """
    return while_tokenizer_unchanged(tokenizer, _read_tokenizer)


def _read_tokenizer(tokenizer: Any) -> str:
    parts = [
        sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[::-1]),
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
    ]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        description = json.loads(backend.to_str())
        parts.append({k: v for k, v in description.items() if k not in ("padding", "truncation")})
    return facts_digest(parts)


def tokenizer_difference(a: Any, b: Any, names: tuple[str, str] = ("target", "draft")) -> str | None:
    """Describes the first token id on which two tokenizers disagree; None where they agree.

    Added and special tokens count like all others. The choice of EOS may differ (a draft from a base model with an
    instruction-tuned target), because decoding uses the target's tokenizer alone.
    """
    ours, theirs = ({i: string for string, i in one.get_vocab().items()} for one in (a, b))
    for i in sorted(ours.keys() | theirs.keys()):
        if ours.get(i) != theirs.get(i):
            strings = (repr(v[i]) if i in v else "no token" for v in (ours, theirs))
            sides = (f"{string} in {name}" for string, name in zip(strings, names, strict=True))
            return f"id {i} is {' and '.join(sides)}"
    return None


def _described(model: Any) -> list[Any]:
    return [type(model).__name__, _architecture(model.config.to_diff_dict())]


def _architecture(config: Any) -> Any:
    """A configuration without the entries that do not describe the model, in nested configurations too."""
    if not isinstance(config, dict):
        return config
    return {
        key: _architecture(value)
        for key, value in config.items()
        if key not in _NOT_ARCHITECTURE and not str(key).startswith("_")
    }


def _samples(model: Any) -> str:
    """A digest of names, shapes and samples of all tensors of a model's state."""
    from fsd_decoding.models.weights_digest import plain_tensors, values_of

    read = []
    for name, tensor in sorted(model.state_dict().items()):
        with values_of(model, name, tensor) as values:
            read.append([name, list(values.shape), *(_sample(plain).hex() for plain in plain_tensors(values))])
    return facts_digest(read)


def _sample(tensor: Tensor) -> bytes:
    """Evenly spaced elements of a tensor, as bytes of bfloat16."""
    import torch

    flat = tensor.detach().reshape(-1)
    count = min(_SAMPLED, flat.numel())
    at = torch.arange(count, device=flat.device) * flat.numel() // max(count, 1)
    elements = flat[at].to("cpu", torch.float32).to(torch.bfloat16)
    return elements.view(torch.int16).numpy().tobytes()


_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")  # of a fast tokenizer


_known: WeakKeyDictionary[Any, tuple[tuple[Any, ...], str]] = WeakKeyDictionary()
"""By tokenizer: its state, and what was read then."""


def while_tokenizer_unchanged(tokenizer: Any, read: Callable[[Any], str]) -> str:
    """Returns `read(tokenizer)`, computed again only where the tokenizer changed.

    It counts as changed if its length, an added token, the BOS or EOS token, or a part other than its model changed. A
    vocabulary that was exchanged in the same object for another of the same length is not noticed.
    """
    from transformers import PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return read(tokenizer)
    known, state = _known.get(tokenizer), _state(tokenizer)
    if known is None or known[0] != state:
        _known[tokenizer] = known = (state, read(tokenizer))
    return known[1]


def _state(tokenizer: Any) -> tuple[Any, ...]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = [repr(getattr(backend, name, None)) for name in _PARTS]
    added = [(i, repr(token)) for i, token in sorted(tokenizer.added_tokens_decoder.items())]
    return len(tokenizer), tokenizer.bos_token_id, tokenizer.eos_token_id, *added, *parts
