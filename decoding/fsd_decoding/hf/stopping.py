"""Evaluation of the stopping criteria that transformers' `generate` prepared, for one row and token by token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

from fsd_decoding.batch import Request


class StopsOfGenerate:
    """The stopping criteria of `generate` in the form of `engine.Settings.stops`. EOS tokens count as a criterion, so
    that they remain in the row's tokens."""

    def __init__(self, criteria: StoppingCriteriaList, input_ids: Tensor) -> None:
        """Takes `input_ids` (B, P) with padding, since criteria that count positions count the padding too."""
        self._input_ids = input_ids
        self._eos = {
            token
            for criterion in criteria
            if isinstance(criterion, EosTokenCriteria)
            for token in criterion.eos_token_id.tolist()
        }
        handled = (EosTokenCriteria, MaxLengthCriteria)  # by `_eos`, and by `Request.max_new_tokens`
        self._others = StoppingCriteriaList(c for c in criteria if not isinstance(c, handled))

    @property
    def may_stop(self) -> bool:
        """Whether a text may end before its maximum length."""
        return bool(self._eos or self._others)

    def __call__(self, request: Request, tokens: list[int], new: int) -> int | None:
        """Returns the length at which the text ends within its `new` latest tokens; None if it goes on."""
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
