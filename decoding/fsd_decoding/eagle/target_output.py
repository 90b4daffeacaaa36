"""The target's logits from its last hidden states, for heads that have no output layer of their own."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_POWERS = {  # of a configuration's entries, in what logits are multiplied by
    "logit_scale": 1,  # Cohere
    "output_multiplier": 1,  # Muse
    "logits_scaling": -1,  # Granite, MiniCPM3
    "logits_mup_width_multiplier": -1,  # Inkling
}
_OPPOSITE = {"hyperclovax": {"logits_scaling": 1}}  # by type of model: HyperCLOVA X took Granite's name, and multiplies


class TargetOutput:
    """The output layer of a target, and what the target makes of its logits: some models scale them, or cap them.

    The entries of configurations that say so were read in the models of transformers 5.24. Those of recurrent models
    are not among them, as these cannot be decoded with.

    Args:
        target: a causal LM.
    """

    def __init__(self, target: Any) -> None:
        config = target.config.get_text_config()
        self._layer, self._factor = target.get_output_embeddings(), _factor(config)
        self._cap = getattr(config, "final_logit_softcapping", None)  # Gemma

    def __call__(self, states: Tensor) -> Tensor:
        """Returns logits (…, V) of states (…, H), where the output layer is."""
        logits: Tensor = self._layer(states) * self._factor
        return logits if self._cap is None else torch.tanh(logits / self._cap) * self._cap


def _factor(config: Any) -> float:
    """What a model multiplies its logits by; an entry that is missing or None changes nothing."""
    powers = _POWERS | _OPPOSITE.get(config.model_type, {})
    factor: float = math.prod((getattr(config, name, None) or 1) ** power for name, power in powers.items())
    return factor
