"""Evaluation of the stopping criteria that transformers' `generate` prepared, as rows advance by different lengths."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)

from fsd_decoding.batch import Request


class StopsOfGenerate:
    """The stopping criteria of `generate` in the form of `engine.Settings.stops`.

    EOS tokens count as a criterion, so that they remain in the row's tokens. Transformers' own criteria judge each row
    by itself. Others may keep a state for every row of the batch, or end all rows at once; they are called as in
    `generate`, by `LockStep`.
    """

    def __init__(self, criteria: StoppingCriteriaList, input_ids: Tensor, pad: int) -> None:
        """Takes `input_ids` (B, P) with padding, since criteria that count positions count the padding too."""
        self._input_ids, self.pad = input_ids, pad
        self._eos = {
            token
            for criterion in criteria
            if isinstance(criterion, EosTokenCriteria)
            for token in criterion.eos_token_id.tolist()
        }
        handled = (EosTokenCriteria, MaxLengthCriteria)  # by `_eos`, and by `Request.max_new_tokens`
        # Without EOS ids, rows of `generate` go on after a stop string until all rows have one.
        by_row = (MaxTimeCriteria, StopStringCriteria) if self._eos else (MaxTimeCriteria,)
        others = [c for c in criteria if not isinstance(c, handled)]
        self._by_row = StoppingCriteriaList(c for c in others if type(c) in by_row)
        together = StoppingCriteriaList(c for c in others if type(c) not in by_row)
        self._lock_step = LockStep(together, input_ids, pad, at_once=not self._eos) if together else None

    @property
    def may_stop(self) -> bool:
        """Whether a text may end before its maximum length, and before others."""
        return bool(self._eos or self._by_row)

    @property
    def joint(self) -> bool:
        """Whether the end of a row may depend on other rows."""
        return self._lock_step is not None and len(self._input_ids) > 1

    def __call__(self, request: Request, tokens: list[int], new: int) -> int | None:
        """Returns the length at which the text ends within its `new` latest tokens; None if it goes on."""
        ends = range(len(tokens) - new + 1, len(tokens) + 1)
        end = next((end for end in ends if self._ends(request.index, tokens[:end])), None)
        if self._lock_step is None:
            return end
        over = end is not None or len(tokens) == request.max_new_tokens
        self._lock_step.add(request.index, tokens[:end], over)
        end = self._lock_step.ends[request.index]
        return None if end is None else max(end, ends[0])  # the engine cannot take back tokens: see `text`

    def text(self, row: int, tokens: list[int]) -> list[int]:
        """Returns a finished row's tokens up to its end, which may lie before the round in which it became known."""
        return tokens if self._lock_step is None else tokens[: self._lock_step.ends[row]]

    def _ends(self, row: int, tokens: list[int]) -> bool:
        if tokens[-1] in self._eos:
            return True
        if not self._by_row:
            return False
        prompt = self._input_ids[row : row + 1]
        ids: Any = torch.cat([prompt, torch.tensor([tokens], dtype=prompt.dtype, device=prompt.device)], 1)
        return bool(self._by_row(ids, None).all())


class LockStep:
    """Criteria that are called once per length with all rows, as in `generate`, once every row is known that far.

    Args:
        criteria: called with (B, n) ids, in which ended rows are padded.
        input_ids: (B, P) the prompts.
        pad: token that pads ended rows.
        at_once: rows that are done go on until all are, as those of `generate` do without EOS ids.
    """

    def __init__(self, criteria: StoppingCriteriaList, input_ids: Tensor, pad: int, at_once: bool) -> None:
        self._criteria, self._ids, self._prompt = criteria, input_ids, input_ids.shape[1]
        self._pad, self._at_once = pad, at_once
        self._tokens: list[list[int]] = [[] for _ in input_ids]
        self._done = [False] * len(input_ids)
        self.ends: list[int | None] = [None] * len(input_ids)
        """Where each row ends, in new tokens; None: not known."""

    def add(self, row: int, tokens: list[int], over: bool) -> None:
        """Takes a row's new tokens so far; `over`: they end there."""
        self._tokens[row] = tokens
        if over and self.ends[row] is None:
            self.ends[row] = len(tokens)
        while (column := self._next()) is not None:
            self._ids = torch.cat([self._ids, torch.tensor(column).to(self._ids)[:, None]], 1)
            ids: Any = self._ids
            self._note(self._criteria(ids, None).tolist())

    def _next(self) -> list[int] | None:
        """The tokens of all rows at the next length; None if not all are known, or no row is left."""
        at = self._length
        over = [end is not None and end <= at for end in self.ends]
        known = all(ended or at < len(tokens) for ended, tokens in zip(over, self._tokens, strict=True))
        if all(over) or not known:
            return None
        return [self._pad if ended else tokens[at] for ended, tokens in zip(over, self._tokens, strict=True)]

    @property
    def _length(self) -> int:
        """Number of new tokens that the criteria have seen."""
        return self._ids.shape[1] - self._prompt

    def _note(self, done: list[bool]) -> None:
        """Ends rows at the current length: those that are done or, `at_once`, all rows once all are."""
        self._done = [before or now for before, now in zip(self._done, done, strict=True)]
        if self._at_once and not all(self._done):
            return
        for row, ended in enumerate(self._done):
            end = self.ends[row]
            if ended and (end is None or end > self._length):
                self.ends[row] = self._length
