"""Sampling of the next token from logits: greedy, or with temperature, top-k, top-p, min-p and logits processors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

from fsd_common.argument_checks import TRUNCATIONS, check_kind, check_sampling
from fsd_common.errors import UsageError
from fsd_decoding import noise
from fsd_decoding.nucleus import NucleusWarper
from fsd_decoding.tensors import argmax, kernels_support, wide

if TYPE_CHECKING:
    from fsd_decoding.kernels import Scan

SETTINGS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""The numbers of a `Sampling`, by name: all but its processors."""
_COLD = 1e-3  # temperature below which fp32 loses the noise that is added to logits / temperature


@dataclass(frozen=True)
class Sampling:
    """Sampling settings, which warp the logits of draft and target alike.

    They apply in transformers' order: repetition_penalty, processors, temperature, top_k, top_p, min_p.

    Args:
        temperature: 0 is greedy decoding.
        top_k, top_p, min_p: as in transformers; None is off, and so is a top_p of 1.
        repetition_penalty: as in transformers, counting the prompt as well; 1 is off.
        processors: other logits processors of transformers. Each is called for one position at a time, with the ids
            before it (1, length) and its logits (1, V). That is slow, and a drafted position is processed more than
            once, so processors that keep state between calls do not work.

    Raises:
        UsageError: a setting is of the wrong type or out of range, or is combined with temperature 0.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    processors: tuple[LogitsProcessor, ...] = ()
    _warpers: LogitsProcessorList = field(init=False, repr=False, compare=False)  # depend on the logits alone

    def __post_init__(self) -> None:
        check_sampling(self.temperature, self.top_k, self.top_p, self.min_p)
        check_kind("repetition_penalty", self.repetition_penalty, Real)
        if not (self.repetition_penalty > 0.0 and math.isfinite(self.repetition_penalty)):
            raise UsageError(
                f"repetition_penalty is {self.repetition_penalty}; it must be a positive number (1 is no penalty)"
            )
        if self.top_p == 1.0:  # which leaves nothing out
            object.__setattr__(self, "top_p", None)
        object.__setattr__(self, "_warpers", self._make_warpers())

    def changed(self, given: Mapping[str, Any]) -> Sampling:
        """Returns a copy with these settings. Temperature 0 turns off top_k, top_p and min_p where they are not given.

        Raises:
            UsageError: as for a new `Sampling`.
        """
        off: dict[str, Any] = dict.fromkeys(TRUNCATIONS) if given.get("temperature", self.temperature) == 0.0 else {}
        return replace(self, **off | dict(given))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def _make_warpers(self) -> LogitsProcessorList:
        if self.greedy:
            return LogitsProcessorList()
        warpers = LogitsProcessorList([TemperatureLogitsWarper(float(self.temperature))])
        if self.top_k is not None:
            warpers.append(TopKLogitsWarper(int(self.top_k)))
        if self.top_p is not None:
            warpers.append(NucleusWarper(float(self.top_p)))
        if self.min_p is not None:
            warpers.append(MinPLogitsWarper(self.min_p))
        return warpers

    def warp(self, logits: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """Returns processed logits (B, N, V), at least in fp32; greedy ones without penalty or processors are the raw
        logits themselves.

        Args:
            logits: (B, N, V) raw logits, which are not modified.
            tokens: (B, slots) token ids of the rows.
            positions: (B, N) positions of the tokens that the logits predict; the context of each is what precedes it.
        """
        if self.greedy and self.repetition_penalty == 1.0 and not self.processors:
            return logits
        logits = wide(logits)
        if self.repetition_penalty != 1.0:
            penalty = RepetitionPenaltyLogitsProcessor(float(self.repetition_penalty))
            logits = _on_rows(penalty, logits, _prefixes(tokens, positions))
        if self.processors:
            logits = self._processed(logits, tokens, positions)
        return _on_rows(self._warpers, logits, tokens[:0]) if self._warpers else logits

    def _processed(self, logits: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        processors = LogitsProcessorList(self.processors)
        processed = logits.clone()  # a processor may write into its input
        for row, ends in enumerate(positions.tolist()):
            for n, end in enumerate(ends):
                before = tokens[row : row + 1, :end]
                processed[row, n] = processors(before, processed[row, n : n + 1])[0]  # type: ignore[arg-type]
        return processed

    def choose(
        self, logits: Tensor, tokens: Tensor, keys: Tensor, positions: Tensor, gumbel: Tensor | None = None
    ) -> Tensor:
        """Returns the token at every position from raw logits: (B, N, V) -> (B, N); see `warp` and `draw`."""
        scan = None if self.greedy else self.scan(logits, keys, positions)
        return self.draw(self.warp(logits, tokens, positions), keys, positions, gumbel) if scan is None else scan.choice

    def ranked(
        self, logits: Tensor, tokens: Tensor, keys: Tensor, positions: Tensor, gumbel: Tensor | None, count: int
    ) -> tuple[Tensor, Tensor]:
        """Returns the first tokens by the noise, from raw logits (B, N, V): they are drawn without replacement.

        Args:
            tokens, keys, positions, gumbel: as for `choose`, whose token is the first.
            count: k, their number.

        Returns:
            The tokens, and their log-probabilities after processing, -inf for those that cannot be drawn: (B, N, k)
            each.
        """
        first = self.choose(logits, tokens, keys, positions, gumbel).unsqueeze(-1)
        log_q = torch.log_softmax(wide(self.warp(logits, tokens, positions)), -1)
        if count == 1:
            return first, log_q.gather(-1, first)
        ranking = log_q
        if not self.greedy:
            ranking = log_q + self._noise(log_q, keys, positions, gumbel)
        chosen = ranking.scatter(-1, first, torch.inf).topk(count, -1).indices
        return chosen, log_q.gather(-1, chosen)

    def gumbel_noise(self, keys: Tensor, positions: Tensor, vocabulary: int, dtype: torch.dtype) -> Tensor | None:
        """Returns the Gumbel noise at positions (B, N), for `draw`: (B, N, V). None where `draw` takes none.

        On a CPU alone: kernels compute noise as they need it.
        """
        if self.greedy or keys.device.type != "cpu":
            return None
        return noise.gumbel(keys, positions, noise.Stream.TOKEN, vocabulary, dtype)

    def scan(self, logits: Tensor, keys: Tensor, positions: Tensor) -> Scan | None:
        """Returns one kernel pass over raw logits (B, N, V), which holds the choices; None where no kernel applies."""
        truncates = len(self._warpers) > 1  # than by the temperature
        if self.repetition_penalty != 1.0 or self.processors or truncates:
            return None
        # Below, logits / temperature are so large that fp32 loses the noise; `draw` takes their log-softmax first.
        too_cold = not self.greedy and self.temperature < _COLD and logits.dtype != torch.float64
        if too_cold or not (logits.numel() and kernels_support(logits)):
            return None
        from fsd_decoding.kernels import scan

        if self.greedy:
            return scan(logits)
        return scan(logits, float(self.temperature), noise.words(keys, positions, noise.Stream.TOKEN))

    def draw(self, warped: Tensor, keys: Tensor, positions: Tensor, gumbel: Tensor | None = None) -> Tensor:
        """Returns the token at every position, by argmax or by the keyed noise: (B, N, V) -> (B, N).

        Args:
            gumbel: the noise of these positions, see `gumbel_noise`; None: it is computed.
        """
        if self.greedy:
            return argmax(warped)
        return argmax(torch.log_softmax(warped, -1) + self._noise(warped, keys, positions, gumbel))

    def _noise(self, warped: Tensor, keys: Tensor, positions: Tensor, gumbel: Tensor | None) -> Tensor:
        """The Gumbel noise for `warped` (B, N, V), computed where it is not given."""
        if gumbel is None or gumbel.dtype != warped.dtype:
            return noise.gumbel(keys, positions, noise.Stream.TOKEN, warped.shape[-1], warped.dtype)
        return gumbel


def _on_rows(processor: LogitsProcessor | LogitsProcessorList, logits: Tensor, prefixes: Tensor) -> Tensor:
    """Applies a processor of (rows, V) to logits (B, N, V)."""
    flat = logits.reshape(-1, logits.shape[-1])
    processed: Tensor = processor(prefixes, flat)  # type: ignore[arg-type]  # any integer tensor will do
    return processed.view_as(logits)


def _prefixes(tokens: Tensor, positions: Tensor) -> Tensor:
    """The tokens before every position, padded with the row's first token, which does not change their set.

    (B, slots), (B, N) -> (B * N, slots)
    """
    slots = torch.arange(tokens.shape[1], device=tokens.device)
    before = slots < positions.unsqueeze(-1)  # (B, N, slots)
    return torch.where(before, tokens.unsqueeze(1), tokens[:, None, :1]).flatten(0, 1)
