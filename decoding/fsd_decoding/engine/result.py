"""The result of decoding one prompt, and what becomes of finished results when decoding fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch

from fsd_common.errors import OutOfMemoryError, UnfinishedError
from fsd_decoding.batch import FinishReason, Row
from fsd_decoding.text import cut_before


@dataclass(frozen=True)
class Result:
    """The generated text of one prompt, with its statistics."""

    text: str
    tokens: list[int]  # new tokens, without EOS
    rounds: int
    drafted: int
    accepted: int
    bonus: int  # tokens the target added to drafts accepted whole
    interval: tuple[float, float]  # every threshold in [lo, hi) gives this same text
    finish_reason: FinishReason

    @property
    def emitted(self) -> int:
        """Number of new tokens, EOS included; speeds are measured in these."""
        return len(self.tokens) + (self.finish_reason == "eos")

    @classmethod
    def of(cls, row: Row, tokenizer: Any, stop: Sequence[str]) -> Self:
        """Returns the result of a finished row.

        Args:
            row: the row.
            tokenizer: decodes its tokens.
            stop: stop strings; where one ended the row, the text is cut before the first of them.
        """
        text = cut_before(tokenizer, row.tokens, stop if row.finish_reason == "stop" else ())
        assert row.finish_reason is not None
        counts = (row.rounds, row.drafted, row.accepted, row.bonus)
        return cls(text, row.tokens, *counts, (row.lo, row.hi), row.finish_reason)


@contextmanager
def attach_finished(finished: dict[int, Any], batch_size: int) -> Iterator[None]:
    """Attaches the finished results to an error that ends decoding, so that the caller who catches it has them.

    Args:
        finished: prompt index -> result, or beams, filled by the caller inside the context.
        batch_size: named in the error when memory runs out.

    Raises:
        OutOfMemoryError: in place of PyTorch's own.
    """
    try:
        yield
    except UnfinishedError as error:
        error.finished = finished
        raise
    except RuntimeError as error:
        if not (isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)):
            raise
        way_out = f"try batch_size {batch_size // 2}" if batch_size > 1 else "shorten max_new_tokens or the prompt"
        out_of_memory = OutOfMemoryError(f"out of memory with batch_size {batch_size}; {way_out}")
        out_of_memory.finished = finished
        raise out_of_memory from error
