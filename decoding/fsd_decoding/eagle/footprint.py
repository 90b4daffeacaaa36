"""What an EAGLE head takes in memory, read from its files before its target is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from fsd_decoding.eagle.checkpoint import Checkpoint
from fsd_decoding.eagle.loading import Eagle, is_eagle3, llama_config, told

_FP32 = 4  # bytes


@dataclass(frozen=True)
class Footprint:
    """Numbers of elements.

    Args:
        weights: of the head.
        slot: kept of each token of a text: keys and values of its layer, and the target's hidden states that it reads.
        hidden, inner: the width of the head, and of its feed-forward network.
        bytes: of one element in its files.
    """

    weights: int
    slot: int
    hidden: int
    inner: int
    bytes: int

    @classmethod
    def of(cls, head: Eagle) -> Footprint:
        """Reads the files of a head.

        Raises:
            UsageError: there is no head, or its config.json is no Llama's.
        """
        found = Checkpoint.read(head.source, head.revision)
        with told(found):
            config = llama_config(found)
            size = config.head_dim or config.hidden_size // config.num_attention_heads
            keys = 2 * (config.num_key_value_heads or config.num_attention_heads) * size
        floats = [weight for weight in found.weights.values() if weight.is_floating_point()]
        return cls(
            sum(weight.numel() for weight in floats), keys + _states(found, config.hidden_size), config.hidden_size,
            config.intermediate_size, max((weight.itemsize for weight in floats), default=_FP32),
        )  # fmt: skip


def _states(found: Checkpoint, width: int) -> int:
    """Elements of the target's states of a token: what goes into `fc`, which in EAGLE-1 takes its embedding too."""
    fused = found.weights.get("fc.weight")
    if fused is None or fused.dim() != 2:  # which is refused when the head is loaded
        return width
    return fused.shape[1] if is_eagle3(found) else fused.shape[1] - width
