"""The rows being decoded: what they were asked, their state on the device, and their state on the host.

Keys and values are in each model's `SlotCache`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.tensors import to_device


@dataclass(frozen=True)
class Request:
    """One prompt to decode.

    Args:
        index: the prompt's place in the caller's list.
        prompt: token ids.
        key: id of the prompt's noise; with the seed it determines all random numbers.
        threshold: T.
        draft_length: the most tokens drafted per round.
        max_new_tokens: the most tokens to generate.
        reach: the draft's context, in tokens, beyond which nothing is drafted; None: no limit.
        begun: the prompt's last tokens that are the beginning of the text.
    """

    index: int
    prompt: list[int]
    key: int
    threshold: float
    draft_length: int
    max_new_tokens: int
    reach: int | None = None
    begun: int = 0

    def drafts(self, tokens: int) -> int:
        """Returns the most tokens that are drafted after so many new ones: no more than the text may still get, nor
        than the draft's context holds."""
        most = min(self.draft_length, self.max_new_tokens - tokens)
        return most if self.reach is None else max(min(most, self.reach - len(self.prompt) - tokens), 0)


class Batch:
    """Device tensors of a fixed number of rows. A row without a request has length 1 and draft length 0.

    Args:
        rows: B, the number of rows.
        slots: the most tokens a row can hold.
        device: where the tensors are.
    """

    def __init__(self, rows: int, slots: int, device: torch.device) -> None:
        self.tokens = torch.zeros((rows, slots), dtype=torch.int64, device=device)
        self.lengths = torch.ones(rows, dtype=torch.int64, device=device)
        self.begins = torch.ones(rows, dtype=torch.int64, device=device)  # of the texts, behind their prompts
        self.keys = torch.zeros((rows, 2), dtype=torch.int64, device=device)  # noise keys
        self.thresholds = torch.zeros(rows, dtype=torch.float64, device=device)
        self.draft_lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.gumbel: Tensor | None = None  # (B, n, V) noise of a round's positions, where it is computed beforehand

    @torch.inference_mode()
    def clear(self) -> None:
        """Removes every row's request."""
        self.lengths.fill_(1)
        self.draft_lengths.zero_()

    def put(self, rows: Tensor, requests: Sequence[Request], seed: int) -> None:
        """Writes requests into `rows` (R,)."""
        device = self.tokens.device
        longest = max(len(r.prompt) for r in requests)
        self.tokens[rows, :longest] = to_device([r.prompt + [0] * (longest - len(r.prompt)) for r in requests], device)
        self.lengths[rows] = to_device([len(r.prompt) for r in requests], device)
        self.begins[rows] = to_device([len(r.prompt) - r.begun for r in requests], device)
        self.keys[rows] = noise.problem_keys(seed, [r.key for r in requests]).to(device, non_blocking=True)
        self.thresholds[rows] = to_device([r.threshold for r in requests], device, torch.float64)
        self.draft_lengths[rows] = to_device([r.drafts(0) for r in requests], device)

    def resize(self, rows: Sequence[Row | None]) -> None:
        """Sets every row's length, whether it grew, was rolled back or was emptied, and how much it may draft."""
        sizes = [(row.length, row.draft_length) if row else (1, 0) for row in rows]
        lengths, draft_lengths = to_device(sizes, self.lengths.device).unbind(1)
        self.lengths.copy_(lengths)
        self.draft_lengths.copy_(draft_lengths)

    def keep(self, rows: Tensor) -> None:
        """Drops all rows except these (R,), which are renumbered in this order."""
        self.gumbel = None  # of a round that is over
        for name, column in vars(self).items():
            if column is not None:
                setattr(self, name, column[rows])


FinishReason = Literal["eos", "stop", "length", "unanswered"]


@dataclass
class Row:
    """A request being decoded, with its new tokens and counts, on the host."""

    request: Request
    lo: float  # every T in [lo, hi) gives the same text and number of rounds (docs/decoding.md)
    hi: float
    tokens: list[int] = field(default_factory=list)  # new ones, without EOS and those of the round under way
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    bonus: int = 0  # tokens the target added to fully accepted drafts
    finish_reason: FinishReason | None = None
    memory: Any = None  # what the stop policy's `remember` last returned; None in the row's first round

    @property
    def length(self) -> int:
        return len(self.request.prompt) + len(self.tokens)

    @property
    def interval(self) -> tuple[float, float]:
        """lo and hi."""
        return self.lo, self.hi

    @property
    def draft_length(self) -> int:
        """The most tokens that the next round drafts."""
        return self.request.drafts(len(self.tokens))
