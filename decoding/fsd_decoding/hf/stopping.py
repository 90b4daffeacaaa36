"""Asks the stopping criteria that transformers' `generate` prepared about one row, token by token.

Knows transformers' criteria and the texts as `generate` shows them. Knows nothing of decoding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

from fsd_decoding.batch import Request


class StopsOfGenerate:
    """`engine.Settings.stops`. An EOS is one more criterion here, so that it stays in the row's tokens."""

    def __init__(self, criteria: StoppingCriteriaList, input_ids: Tensor) -> None:
        """`input_ids` (B, P) as `generate` has them: criteria that count positions count the padding too."""
        self._input_ids = input_ids
        self._eos = {
            token for one in criteria if isinstance(one, EosTokenCriteria) for token in one.eos_token_id.tolist()
        }
        counted = (EosTokenCriteria, MaxLengthCriteria)  # here, and as `Request.max_new_tokens`
        self._others = StoppingCriteriaList(one for one in criteria if not isinstance(one, counted))

    @property
    def may_stop(self) -> bool:
        return bool(self._eos or self._others)

    def __call__(self, request: Request, tokens: list[int], new: int) -> int | None:
        ends = range(len(tokens) - new + 1, len(tokens) + 1)
        return next((end for end in ends if self._ends(request.index, tokens[:end])), None)

    def _ends(self, row: int, tokens: list[int]) -> bool:
        if tokens[-1] in self._eos:
            return True
        if not self._others:
            return False
        prompt = self._input_ids[row : row + 1]
        ids: Any = torch.cat([prompt, torch.tensor([tokens], dtype=prompt.dtype, device=prompt.device)], 1)
        return bool(self._others(ids, None).all())
