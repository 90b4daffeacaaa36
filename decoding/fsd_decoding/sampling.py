"""How a next token is drawn from logits: greedily, or by temperature, top-k and top-p.

Knows the sampling settings and transformers' own warpers. Knows nothing of drafts or acceptance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from fsd_decoding import noise
from fsd_decoding.errors import UsageError


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy; otherwise draft and target are both warped the same way first."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    processors: tuple[LogitsProcessor, ...] = ()

    def __post_init__(self) -> None:
        if not (self.temperature >= 0.0 and math.isfinite(self.temperature)):
            raise UsageError(f"temperature is {self.temperature}; it must be 0 (greedy) or a positive number")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k is {self.top_k}; it must be at least 1, or absent")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"top_p is {self.top_p}; it must be in (0, 1], or absent")

        if self.greedy and not (self.top_k is self.top_p is None):
            raise UsageError(
                f"top_k is {self.top_k} and top_p {self.top_p} at temperature 0, which is greedy; give a temperature"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @cached_property
    def _warpers(self) -> LogitsProcessorList:
        warpers = LogitsProcessorList([TemperatureLogitsWarper(float(self.temperature))])
        if self.top_k is not None:
            warpers.append(TopKLogitsWarper(self.top_k))
        if self.top_p is not None:
            warpers.append(TopPLogitsWarper(self.top_p))
        if self.min_p is not None:
            warpers.append(MinPLogitsWarper(self.min_p))
        return warpers

    def warp(self, logits: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """Logits as sampling sees them; raw when greedy and free of context.

        Args:
            logits: (B, N, V) raw.
            tokens: (B, slots) the rows' texts. positions: (B, N) of the tokens the logits are for: what
                lies before is their context.
        """
        logits = self._in_context(logits, tokens, positions)
        if self.greedy:
            return logits
        flat = logits.reshape(-1, logits.shape[-1])
        no_prefix = torch.empty((flat.shape[0], 0), dtype=torch.int64, device=flat.device)
        warped: Tensor = self._warpers(no_prefix, flat)  # type: ignore[arg-type]  # any integer tensor will do
        return warped.view_as(logits)

    def _in_context(self, logits: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        context = LogitsProcessorList(self.processors)
        if self.repetition_penalty != 1.0:
            context.insert(0, RepetitionPenaltyLogitsProcessor(self.repetition_penalty))
        if not context or not logits.shape[1]:
            return logits
        rows = [
            torch.cat([context(tokens[b : b + 1, :at], logits[b : b + 1, n].clone()) for n, at in enumerate(row)])  # type: ignore[arg-type]
            for b, row in enumerate(positions.tolist())
        ]
        return torch.stack(rows)

    def draw(self, warped: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
        """The token at every position, by argmax or by the keyed race: (B, N, V) -> (B, N)."""
        if self.greedy:
            return warped.argmax(-1)
        race = noise.gumbel(keys, positions, noise.Stream.TOKEN, warped.shape[-1], warped.dtype)
        return (torch.log_softmax(warped, -1) + race).argmax(-1)
