"""Two related tiny models behind transformers' `generate`, with `fsd_generate` and without it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    StoppingCriteria,
)

from fsd_decoding.hf import fsd_generate
from support.models.tiny_models import VOCABULARY, llama

NEW = 16
LOSSLESS: dict[str, Any] = {"custom_generate": fsd_generate, "fsd_threshold": -1.0}
TARGET, DRAFT = llama(seed=1), llama(seed=1)
with torch.no_grad():  # a draft that agrees about as often as not
    _noise = torch.Generator().manual_seed(0)
    for _weight in DRAFT.parameters():
        _weight.mul_(1 + 0.05 * torch.randn(_weight.shape, generator=_noise, dtype=_weight.dtype))


def batch(rows: int = 6, longest: int = 9) -> dict[str, Tensor]:
    """Returns random prompts of 1 to `longest` tokens, padded on the left."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(2, VOCABULARY, (rows, longest), generator=generator)
    padding = torch.randint(0, longest, (rows, 1), generator=generator)
    padding[0] = 0
    mask = (torch.arange(longest) >= padding).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def one() -> dict[str, Tensor]:
    """Returns a single prompt."""
    return {"input_ids": torch.tensor([[5, 9, 2, 17]])}


def fsd(inputs: dict[str, Tensor], **options: Any) -> Any:
    """Returns what `generate` returns with `fsd_generate`, losslessly unless `options` set a threshold."""
    return TARGET.generate(**inputs, **({"max_new_tokens": NEW, "draft_model": DRAFT} | LOSSLESS | options))


def plain(inputs: dict[str, Tensor], **options: Any) -> Any:
    """Returns what `generate` returns for the target alone."""
    return TARGET.generate(**inputs, **({"max_new_tokens": NEW} | options))


class EndsOn(StoppingCriteria):
    """Ends a row whose last two tokens add up to a multiple of `divisor`, or at a length, padding included."""

    def __init__(self, divisor: int, length: int = 10**6) -> None:
        self._divisor, self._length = divisor, length

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return (input_ids[:, -2:].sum(1) % self._divisor == 0) | (input_ids.shape[1] >= self._length)


class Penalty(LogitsProcessor):
    """A processor that penalises a token by the text's last one, and writes into the scores it receives."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        scores[torch.arange(len(scores)), (input_ids[:, -1] * 7) % VOCABULARY] -= 3.0
        scores[:, 20:] -= 2.0
        return scores


def allowed(row: int, ids: Tensor) -> list[int]:
    return [t for t in range(2, VOCABULARY) if (t + int(ids[-1]) + row) % 3]


class Fours:
    """A `DraftSource` that drafts nothing but the token 4."""

    def drafter(self, rows: int, slots: int, vocabulary: int) -> Any:
        return self

    def prefill(self, rows: Tensor, tokens: Tensor, until: int, start: int = 0) -> None: ...

    def catch_up(self) -> None: ...

    def copy(self, sources: Sequence[int], rows: Sequence[int], count: int) -> None: ...

    identity = "fours"

    def keep(self, rows: Sequence[int]) -> None: ...

    def logits(self, tokens: Tensor, lengths: Tensor, step: int, kv_length: int) -> Tensor:
        return 9.0 * torch.nn.functional.one_hot(torch.full((len(lengths), 1), 4), VOCABULARY).double()


@cache
def plain_batch() -> Any:
    """Returns the target's own greedy texts of `batch()`."""
    return plain(batch())


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a == b).all())
