"""What the device knows of the rows being decoded: their texts, lengths, noise keys and settings.

Knows tensors only. What the host knows of a row is `engine.Row`; what a model keeps of it is its cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.tensors import to_device


@dataclass(frozen=True)
class Request:
    """One prompt to decode. `key` names its noise; `index` is for the caller."""

    index: int
    prompt: list[int]
    key: int
    threshold: float
    draft_length: int
    max_new_tokens: int


class Batch:
    """A fixed number of rows; one without a request holds one token and drafts nothing."""

    def __init__(self, rows: int, slots: int, device: torch.device) -> None:
        self.tokens = torch.zeros((rows, slots), dtype=torch.int64, device=device)
        self.lengths = torch.ones(rows, dtype=torch.int64, device=device)
        self.keys = torch.zeros((rows, 2), dtype=torch.int64, device=device)  # of the noise
        self.thresholds = torch.zeros(rows, dtype=torch.float64, device=device)
        self.draft_lengths = torch.zeros(rows, dtype=torch.int64, device=device)

    @torch.inference_mode()
    def clear(self) -> None:
        """Leaves no row a request."""
        self.lengths.fill_(1)
        self.draft_lengths.zero_()

    def put(self, rows: Tensor, requests: Sequence[Request], seed: int) -> int:
        """Fills `rows` (R,) with requests; returns the length of the longest prompt."""
        device = self.tokens.device
        longest = max(len(r.prompt) for r in requests)
        self.tokens[rows, :longest] = to_device([r.prompt + [0] * (longest - len(r.prompt)) for r in requests], device)
        self.lengths[rows] = to_device([len(r.prompt) for r in requests], device)
        self.keys[rows] = noise.problem_keys(seed, [r.key for r in requests]).to(device, non_blocking=True)
        self.thresholds[rows] = to_device([r.threshold for r in requests], device, torch.float64)
        self.draft_lengths[rows] = to_device([r.draft_length for r in requests], device)
        return longest

    def resize(self, lengths: Sequence[int]) -> None:
        """Sets every row's length: this is how a row grows, is rolled back and is emptied."""
        self.lengths.copy_(to_device(lengths, self.lengths.device))

    def keep(self, rows: Tensor) -> None:
        """Gives up all rows but these (R,), which are numbered anew in this order."""
        for name, column in vars(self).items():
            setattr(self, name, column[rows])
