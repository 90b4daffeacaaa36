"""T by how unsure a model is, or how far the two were apart of late. Knows entropies and divergences of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

from fsd_decoding.errors import UsageError
from fsd_decoding.policies.scale import Shape
from fsd_decoding.policies.threshold import Array, RoundOutcome, RoundState
from fsd_decoding.validation import number

Signal = Literal["target", "draft", "last"]

STEEPEST = 8.0
_MEMORY = "doubt of late"
_FADES = 0.5  # share that a round keeps of what was remembered


class EntropyScaled(Shape):
    """T times exp(slope · doubt), where doubt lies in [0, 1): a positive slope loosens T where there is doubt.

    doubt, by `of`:
    - "target", "draft": 1 - exp(-H) of that model where the token was drafted, H its entropy on raw logits in nats.
      exp(H) is the perplexity, so this is 0 for a certainty, 1/2 for two equal tokens, 1 - 1/n for n, whatever the
      vocabulary, and the scale needs no clamp: it stays between 1 and exp(slope).
    - "last": sqrt(1 - exp(-D)) of the tokens that the row's rounds so far decided, each round's mean counting half as
      much as the next one's; 0 before the first. For D = KL it bounds tv (Bretagnolle and Huber, 1979). It cannot
      be replayed from traces: it depends on how a text was divided into rounds.
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
        self.steepness = abs(self.slope)  # doubt moves by at most half as much as sqrt(D), as measured in bfloat16
        self.identity = self.identified(slope=self.slope, of=of)

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        return cls(0.0, **parameters)

    def scales(self, state: RoundState) -> Tensor:
        if self.signal == "last":
            return (self.slope * state.memory.column(_MEMORY)).exp()
        entropy = state.target_entropy if self.signal == "target" else state.draft_entropy
        return self._of_entropy(entropy)

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
        column.copy_(torch.where(count > 0, column.lerp(mean, 1.0 - _FADES), column))

    def traced(self, columns: Mapping[str, Array]) -> Array:
        if self.signal == "last":
            raise UsageError("EntropyScaled(of='last') cannot be replayed: it depends on the rounds; decode instead")
        scales: Array = self._of_entropy(torch.from_numpy(columns[self.columns[0]])).numpy()
        return scales

    def _of_entropy(self, entropy: Tensor) -> Tensor:
        """(…) nats -> (…) float64. A rounding below 0 nats is 0."""
        return (-self.slope * (-entropy.double().clamp_min(0.0)).expm1()).exp()
