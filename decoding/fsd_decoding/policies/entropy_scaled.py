"""T scaled by the entropy of a model, or by the divergence of recent tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

from fsd_common.argument_checks import number
from fsd_common.errors import UsageError
from fsd_decoding.policies.rounds import RoundOutcome, RoundState
from fsd_decoding.policies.scale import Shape
from fsd_decoding.policies.threshold import Array

Signal = Literal["target", "draft", "last"]

STEEPEST = 8.0
_MEMORY = "recent doubt"
_DECAY = 0.5  # weight that each round leaves to the average of the rounds before it


class EntropyScaled(Shape):
    """T times exp(slope · doubt), where doubt lies in [0, 1). A positive slope makes T larger where doubt is large.

    Args:
        threshold: T where there is no doubt.
        slope: within ±8.
        of: what doubt is:

            - "target", "draft": 1 - exp(-H) of that model at the drafted token, where H is the entropy of its raw
              logits in nats. exp(H) is the perplexity, so doubt is 0 for a certain token, 1/2 for two equally likely
              ones, 1 - 1/n for n, whatever the vocabulary. The scale lies between 1 and exp(slope) without clamping.
            - "last": sqrt(1 - exp(-D)) of the tokens decided in the row's rounds so far, averaged over each round; each
              round's mean counts half as much as the next one's. 0 before the first round. For D = KL it is an upper
              bound of tv (Bretagnolle and Huber, 1979). It cannot be replayed from traces, as it depends on how a text
              was divided into rounds.
    """

    name: ClassVar = "entropy"

    def __init__(self, threshold: float, slope: float, of: Signal = "target") -> None:
        self.threshold = number("threshold", threshold)
        rule = f"it must lie within ±{STEEPEST:g}"
        self.slope = number("slope", slope, rule)
        if abs(self.slope) > STEEPEST:
            raise UsageError(f"slope is {slope}; {rule}")
        if of not in get_args(Signal):
            raise UsageError(f"of is {of!r:.60}; it must be one of {', '.join(get_args(Signal))}")
        self.signal = of
        self.columns = () if of == "last" else (f"{of}_entropy",)
        self.least = float(np.exp(min(self.slope, 0.0)))
        self.steepness = abs(self.slope)  # rounding moves doubt at most half as much as sqrt(D), measured in bfloat16
        self.identity = self.describe(slope=self.slope, of=of)

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        return cls(0.0, **parameters)

    def scales(self, state: RoundState) -> Tensor:
        if self.signal == "last":
            return (self.slope * state.memory.column(_MEMORY)).exp()
        entropy = state.target_entropy if self.signal == "target" else state.draft_entropy
        return self._scale_of(entropy)

    @property
    def listens(self) -> bool:
        return self.signal == "last" or type(self).observe is not EntropyScaled.observe

    def observe(self, outcome: RoundOutcome) -> None:
        if self.signal != "last":
            return
        doubt = (-(-outcome.divergences.double()).expm1()).sqrt()
        count = outcome.decided.sum(1)
        mean = torch.where(outcome.decided, doubt, 0.0).sum(1) / count.clamp_min(1)
        column = outcome.state.memory.column(_MEMORY)
        column.copy_(torch.where(count > 0, column.lerp(mean, 1.0 - _DECAY), column))

    def traced(self, columns: Mapping[str, Array]) -> Array:
        if self.signal == "last":
            raise UsageError("EntropyScaled(of='last') cannot be replayed: it depends on the rounds; decode instead")
        scales: Array = self._scale_of(torch.from_numpy(columns[self.columns[0]])).numpy()
        return scales

    def _scale_of(self, entropy: Tensor) -> Tensor:
        """Returns scales (…) float64 of entropies (…) in nats. An entropy that rounding made negative counts as 0."""
        return (-self.slope * (-entropy.double().clamp_min(0.0)).expm1()).exp()
