"""In which phase of their texts running requests are, kept on the device from step to step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsd_decoding.policies.phase import Phase
from fsd_decoding.policies.threshold import ScalePolicy
from fsd_decoding.tensors import to_device


class RunningPhases:
    """Where running requests are between the markers of a phase: states of `Phase.reading`.

    Args:
        phase: which has seen the tokenizer.
        device: the runner's.
    """

    def __init__(self, phase: Phase, device: torch.device) -> None:
        self._reading, self._device = phase.reading, device
        self._at: dict[str, tuple[Tensor, int]] = {}  # by id: the states of the request's last step, and its row

    def begin(self, texts: Mapping[str, Sequence[int]]) -> None:
        """Reads texts from their beginning, by the ids of their requests: prompts, and texts of resumed requests."""
        if texts:
            states = to_device([self._reading.read(tokens)[-1] for tokens in texts.values()], self._device, torch.int64)
            self._at |= {request: (states, row) for row, request in enumerate(texts)}

    def forget(self, finished: Iterable[str]) -> None:
        for request in finished:
            self._at.pop(request, None)

    def before(self, requests: Sequence[str], counts: Sequence[int], drafted: Tensor) -> Tensor:
        """Returns the states before N drafted tokens (N,), of which requests have `counts`, in order: (N,)."""
        rows, most = np.array(counts), max(counts)
        begins, places = rows.cumsum() - rows, np.arange(most)
        at = np.minimum(begins[:, None] + places, len(drafted) - 1)
        tokens = drafted[to_device(at.tolist(), self._device, torch.int64)]
        states = self._reading.along(self._of(requests), tokens)[:, :-1]
        owned = np.flatnonzero(places < rows[:, None])
        return states.reshape(-1)[to_device(owned.tolist(), self._device, torch.int64)]

    def advance(self, requests: Sequence[str], sampled: Tensor, emits: NDArray[np.bool_]) -> None:
        """Reads what a step emitted.

        Args:
            sampled: (B, n) ids, padded with -1.
            emits: (B,) whether those of a request count.
        """
        if not requests:
            return
        along = self._reading.along(self._of(requests), sampled)
        kept = (sampled >= 0).sum(1) * to_device(emits.tolist(), self._device)
        states = along.gather(1, kept[:, None]).squeeze(1)
        self._at |= {request: (states, row) for row, request in enumerate(requests)}

    def _of(self, requests: Sequence[str]) -> Tensor:
        """The states of requests: (B,)."""
        found = [self._at[request] for request in requests]
        parts = {id(states): states for states, _ in found}
        sizes = np.cumsum([0, *map(len, parts.values())]).tolist()
        begins = dict(zip(parts, sizes, strict=False))
        rows = [begins[id(states)] + row for states, row in found]
        return torch.cat([*parts.values()])[to_device(rows, self._device, torch.int64)]


def phases_of(policy: ScalePolicy | None, config: Any, device: torch.device) -> RunningPhases | None:
    """Returns the phases of an engine's requests, if T goes by them.

    Args:
        config: vLLM's, whose tokenizer finds the markers.
    """
    if not isinstance(policy, Phase):
        return None
    from vllm.tokenizers import cached_tokenizer_from_config

    policy.check([], cached_tokenizer_from_config(config.model_config), "", "")
    return RunningPhases(policy, device)
