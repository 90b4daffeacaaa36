"""How much is measured on a GPU, and the shapes of the models that are timed there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LLAMA = {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}, "max_position_embeddings": 131_072}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "8B": {
        "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False, **_LLAMA,
    },
    "1B": {
        "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True, **_LLAMA,
    },
    "toy": {
        "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True, **_LLAMA,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    device: str
    target: str  # a key of `SHAPES`
    draft: str
    vocabularies: tuple[int, ...]
    draft_lengths: tuple[int, ...]
    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    new: int  # tokens per text
    problems: int  # decoded by the bundled pair
    compared: int  # tokens of its texts that are compared with the CPU's
    copied: int  # bytes, to measure the memory's bandwidth
    repeats: int
    trains: bool  # whether the bundled pair is trained


_WIDTHS = (979, 32_001, 128_256, 262_144)
FULL = Plan("cuda", "8B", "1B", _WIDTHS, (4, 8), (1, 8, 32), (512, 4096), 128, 64, 128, 1 << 31, 50, True)
DRY = Plan("cpu", "toy", "toy", (979,), (2,), (1, 2), (8,), 16, 2, 6, 1 << 20, 1, False)
