"""How a next token is drawn from logits: greedily, or by temperature, top-k, top-p and min-p.

Knows the sampling settings and transformers' own processors. Knows nothing of drafts or acceptance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING

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
from fsd_decoding.kernels.dispatch import serves

if TYPE_CHECKING:
    from fsd_decoding.kernels.scan import Scan

_LEAST_TEMPERATURE = 1e-6  # below, logits divided by it leave what fp32 holds
_COLD = 1e-3


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy; otherwise draft and target are both warped the same way first.

    In transformers' order: repetition_penalty (1 is none), `processors`, temperature, top_k, top_p, min_p.
    The penalty counts the prompt too.

    processors: any other of transformers' logits processors, called for one position at a time with the ids
        before it (1, length) and its logits (1, V), more than once where a token is drafted: slow, and
        nothing for those that remember their calls.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    processors: tuple[LogitsProcessor, ...] = ()
    _warpers: LogitsProcessorList = field(init=False, repr=False, compare=False)  # what looks at the logits alone

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            _check_kind(name, getattr(self, name), Real)
        _check_kind("top_k", self.top_k, Integral)
        if self.temperature != 0.0 and not _LEAST_TEMPERATURE <= self.temperature < math.inf:
            raise UsageError(
                f"temperature is {self.temperature}; it must be 0 (greedy) or a number from {_LEAST_TEMPERATURE:g} on"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k is {self.top_k}; it must be at least 1, or absent")
        for name, share in (("top_p", self.top_p), ("min_p", self.min_p)):
            if share is not None and not 0.0 < share <= 1.0:
                raise UsageError(f"{name} is {share}; it must be in (0, 1], or absent")
        if not (self.repetition_penalty > 0.0 and math.isfinite(self.repetition_penalty)):
            raise UsageError(
                f"repetition_penalty is {self.repetition_penalty}; it must be a positive number (1 is none)"
            )
        for name in ("top_k", "top_p", "min_p"):
            if self.greedy and (given := getattr(self, name)) is not None:
                raise UsageError(f"{name} is {given} at temperature 0, which is greedy; give a temperature")
        object.__setattr__(self, "_warpers", self._made_warpers())

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def _made_warpers(self) -> LogitsProcessorList:
        if self.greedy:
            return LogitsProcessorList()
        warpers = LogitsProcessorList([TemperatureLogitsWarper(float(self.temperature))])
        if self.top_k is not None:
            warpers.append(TopKLogitsWarper(int(self.top_k)))
        if self.top_p is not None:
            warpers.append(TopPLogitsWarper(self.top_p))
        if self.min_p is not None:
            warpers.append(MinPLogitsWarper(self.min_p))
        return warpers

    def warp(self, logits: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """Logits as a choice sees them: (B, N, V); the raw ones when greedy with neither penalty nor processors.

        Args:
            logits: (B, N, V) raw; they stay as they are.
            tokens: (B, slots) the rows' texts. positions: (B, N) of the tokens the logits are for: what
                lies before is their context.
        """
        if self.repetition_penalty != 1.0:
            penalty = RepetitionPenaltyLogitsProcessor(float(self.repetition_penalty))
            logits = _on_rows(penalty, logits, _prefixes(tokens, positions))
        if self.processors:
            logits = self._processed(logits, tokens, positions)
        return _on_rows(self._warpers, logits, tokens[:0]) if self._warpers else logits

    def _processed(self, logits: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        processors = LogitsProcessorList(self.processors)
        processed = logits.clone()  # a processor may write into what it is given
        for row, ends in enumerate(positions.tolist()):
            for n, end in enumerate(ends):
                before = tokens[row : row + 1, :end]
                processed[row, n] = processors(before, processed[row, n : n + 1])[0]  # type: ignore[arg-type]
        return processed

    def choose(self, logits: Tensor, tokens: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
        """The token at every position, of raw logits (B, N, V) -> (B, N); the rest as for `warp` and `draw`."""
        scanned = self.scan(logits, keys, positions)
        return self.draw(self.warp(logits, tokens, positions), keys, positions) if scanned is None else scanned.choice

    def scan(self, logits: Tensor, keys: Tensor, positions: Tensor) -> Scan | None:
        """Raw logits (B, N, V) read once, by a kernel, for the choices among all else; None where none does."""
        if not (self._by_temperature_alone and logits.numel() and serves(logits)) or self._too_cold(logits):
            return None
        from fsd_decoding.kernels.scan import Race, scan

        if self.greedy:
            return scan(logits)
        return scan(logits, Race.of(float(self.temperature), keys, positions, noise.Stream.TOKEN))

    def _too_cold(self, logits: Tensor) -> bool:
        """Whether noise is lost beside logits over the temperature; `draw` takes their log-softmax first."""
        return not self.greedy and self.temperature < _COLD and logits.dtype != torch.float64

    @property
    def _by_temperature_alone(self) -> bool:
        plain = self.repetition_penalty == 1.0 and not self.processors
        return plain and self.top_k is None and self.top_p is None and self.min_p is None

    def draw(self, warped: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
        """The token at every position, by argmax or by the keyed race: (B, N, V) -> (B, N)."""
        if self.greedy:
            return warped.argmax(-1)
        race = noise.gumbel(keys, positions, noise.Stream.TOKEN, warped.shape[-1], warped.dtype)
        return (torch.log_softmax(warped, -1) + race).argmax(-1)


def _check_kind(name: str, value: object, kind: type) -> None:
    if isinstance(value, bool) or not isinstance(value, kind | None):
        whole = "whole " if kind is Integral else ""
        raise UsageError(f"{name} is {value!r}; it must be a {whole}number")


def _on_rows(processor: LogitsProcessor | LogitsProcessorList, logits: Tensor, prefixes: Tensor) -> Tensor:
    """A processor of (rows, V) on (B, N, V)."""
    flat = logits.reshape(-1, logits.shape[-1])
    done: Tensor = processor(prefixes, flat)  # type: ignore[arg-type]  # any integer tensor will do
    return done.view_as(logits)


def _prefixes(tokens: Tensor, positions: Tensor) -> Tensor:
    """What lies before every position, filled up with its first token, which to a set changes nothing.

    (B, slots), (B, N) -> (B * N, slots)
    """
    slots = torch.arange(tokens.shape[1], device=tokens.device)
    before = slots < positions.unsqueeze(-1)  # (B, N, slots)
    return torch.where(before, tokens.unsqueeze(1), tokens[:, None, :1]).flatten(0, 1)
