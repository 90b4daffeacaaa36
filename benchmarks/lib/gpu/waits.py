"""How often the host waits for the GPU in a round, by PyTorch's own count; and whether graphs change a text.

Knows decoders and prompts. Knows nothing of models' shapes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from fsd_calib import Recorder, SpeculativeDecoder
from fsd_decoding.policies.stopping import Answer, DraftState, StopPolicy


class Ends(StopPolicy):
    """Ends every draft behind as many tokens, and looks at q before it says so."""

    def __init__(self, after: int, looks: bool = True) -> None:
        self._after, self.looks = after, looks

    def goes_on(self, state: DraftState) -> Answer:
        drafted = len(state.logits)
        if not drafted:
            return [True] * len(state.rows)
        return (state.logits[-1][:, 0].amax(-1).isnan() | (drafted < self._after)).tolist()


def counted(decoder: SpeculativeDecoder, prompts: Sequence[str], new: int, device: str) -> dict[str, float]:
    """Waits a round of one text; 0 on a CPU, where there is nothing to wait for."""
    who: dict[str, dict[str, Any]] = {
        "nobody": {}, "a recorder": {"observer": Recorder(["js"])}, "a stop policy": {"stop_policy": Ends(2)},
    }  # fmt: skip
    return {name: _counted(decoder, prompts[:1], new, device, how) for name, how in who.items()}


def _counted(decoder: SpeculativeDecoder, prompts: Sequence[str], new: int, device: str, how: dict[str, Any]) -> float:
    """Of a long text less those of its beginning, so that prompts count nothing."""

    def run(tokens: int) -> tuple[int, int]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            _debug(device, "warn")
            try:
                (made,) = decoder.generate(prompts, tokens, **how)
            finally:
                _debug(device, "default")
        return sum("called a synchronizing" in str(one.message) for one in seen), made.rounds

    for _ in range(2):
        decoder.generate(prompts, new, **how)
    short, long = run(new // 4), run(new)
    return (long[0] - short[0]) / (long[1] - short[1])


def _debug(device: str, mode: str) -> None:
    if device == "cuda":
        torch.cuda.set_sync_debug_mode(mode)
