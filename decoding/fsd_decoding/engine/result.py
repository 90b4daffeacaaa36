"""What one prompt became, and how that is told.

Knows finished rows and a tokenizer. Knows nothing of how they were decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch

from fsd_decoding.engine.engine import FinishReason, Row
from fsd_decoding.errors import OutOfMemoryError, UnfinishedError


@dataclass(frozen=True)
class Result:
    """What one prompt became."""

    text: str
    tokens: list[int]  # new ones, without EOS
    rounds: int
    drafted: int
    accepted: int
    bonus: int  # tokens the target added to a draft accepted whole
    interval: tuple[float, float]  # every threshold in [lo, hi) gives this very text
    finish_reason: FinishReason

    @property
    def emitted(self) -> int:
        """Tokens the rounds brought, an EOS included: what speeds are counted in."""
        return len(self.tokens) + (self.finish_reason == "eos")

    @classmethod
    def of(cls, row: Row, tokenizer: Any, stop: Sequence[str]) -> Self:
        """Of a finished row, whose text is cut before the first of the strings `stop` where one ended it."""
        text = tokenizer.decode(row.tokens, skip_special_tokens=True)
        if row.finish_reason == "stop":
            text = text[: min((at for s in stop if (at := text.find(s)) >= 0), default=None)]
        assert row.finish_reason is not None
        counts = (row.rounds, row.drafted, row.accepted, row.bonus)
        return cls(text, row.tokens, *counts, (row.lo, row.hi), row.finish_reason)


@contextmanager
def keeping(finished: dict[int, Result], batch_size: int) -> Iterator[None]:
    """Hands what is finished to whoever catches the error that ended a run."""
    try:
        yield
    except UnfinishedError as error:
        error.finished = finished
        raise
    except RuntimeError as error:
        if not (isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)):
            raise
        way_out = f"try batch_size {batch_size // 2}" if batch_size > 1 else "shorten max_new_tokens or the prompt"
        full = OutOfMemoryError(f"out of memory with batch_size {batch_size}; {way_out}")
        full.finished = finished
        raise full from error
