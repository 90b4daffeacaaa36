"""A request being decoded, as the host keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from fsd_decoding.batch import Request

FinishReason = Literal["eos", "stop", "length"]


@dataclass
class Row:
    """A request being decoded, with its new tokens and counts, on the host."""

    request: Request
    lo: float  # every T in [lo, hi) gives the same text and number of rounds (docs/decoding.md)
    hi: float
    tokens: list[int] = field(default_factory=list)  # new ones, without EOS
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    bonus: int = 0  # tokens the target added to fully accepted drafts
    finish_reason: FinishReason | None = None
    memory: Any = None  # state that the stop policy keeps for this row

    @property
    def length(self) -> int:
        return len(self.request.prompt) + len(self.tokens)
