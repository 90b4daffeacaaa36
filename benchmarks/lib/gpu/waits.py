"""Counts how often the host waits for the GPU in a round, by PyTorch's warnings of synchronisation."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from fsd_calib import Recorder, SpeculativeDecoder
from fsd_decoding.policies.stopping import Answer, DraftState, StopPolicy


class EndsAfter(StopPolicy):
    """Ends every draft after a number of tokens, but reads q for its answer, as most policies do.

    Args:
        after: tokens.
        looks: whether the policy says that it reads q.
    """

    def __init__(self, after: int, looks: bool = True) -> None:
        self._after, self.looks = after, looks

    def goes_on(self, state: DraftState) -> Answer:
        drafted = len(state.logits)
        if not drafted:
            return [True] * len(state.rows)
        return (state.logits[-1][:, 0].amax(-1).isnan() | (drafted < self._after)).tolist()


def waits_per_round(decoder: SpeculativeDecoder, prompts: Sequence[str], new: int, device: str) -> dict[str, float]:
    """Returns waits per round of one text, by what reads the rounds; always 0 on a CPU."""
    readers: dict[str, dict[str, Any]] = {
        "nobody": {}, "a recorder": {"observer": Recorder(["js"])}, "a stop policy": {"stop_policy": EndsAfter(2)},
    }  # fmt: skip
    return {name: _waits(decoder, prompts[:1], new, device, reader) for name, reader in readers.items()}


def _waits(decoder: SpeculativeDecoder, prompts: Sequence[str], new: int, device: str, reader: dict[str, Any]) -> float:
    """Counts those of a long text less those of its beginning, which excludes prefill."""

    def run(tokens: int) -> tuple[int, int]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _warn_of_waits(device, "warn")
            try:
                (result,) = decoder.generate(prompts, tokens, **reader)
            finally:
                _warn_of_waits(device, "default")
        return sum("called a synchronizing" in str(warning.message) for warning in caught), result.rounds

    for _ in range(2):
        decoder.generate(prompts, new, **reader)
    short, long = run(new // 4), run(new)
    return (long[0] - short[0]) / (long[1] - short[1])


def _warn_of_waits(device: str, mode: str) -> None:
    if device == "cuda":
        torch.cuda.set_sync_debug_mode(mode)
