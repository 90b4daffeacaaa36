"""Drafters: where the draft distribution q comes from.

Knows how a model, or anything else that names a next-token distribution, is asked for it step by step.
Knows nothing of sampling, of when to stop (`drafting.py`) or of acceptance.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fsd_decoding.models.runner import ModelRunner


class Drafter(Protocol):
    """Gives q, step by step.

    A round asks for steps 0, 1, …, after each of which one token is appended to every row. The next round
    starts at step 0 again, with whatever length the rows have then: asking again is the rollback.

    Steps may be put into graphs, which know tensors by their place in memory: what a drafter keeps from one step to
    another it writes in place, and `logits` looks at no value.
    """

    @property
    def identity(self) -> Hashable:
        """What a graph of this drafter is bound to: whatever but tensors' values makes it answer otherwise."""

    def prefill(self, rows: Tensor, tokens: Tensor, until: int) -> None:
        """Reads prompts into `rows` (R,): `tokens` (R, >= until), padded on the right.

        Positions from `until` on, and the last token of every row, are read when a round begins.
        """

    def keep(self, rows: Tensor) -> None:
        """Gives up all rows but these (R,), which are numbered anew in this order."""

    def logits(self, tokens: Tensor, lengths: Tensor, step: int, reach: int) -> Tensor:
        """Raw logits (B, 1, V) of the token after the first `lengths + step` of every row.

        Args:
            tokens: (B, slots) the rows' texts; what lies beyond `lengths + step` is rubbish.
            lengths: (B,) at the beginning of the round.
            reach: at least the largest `lengths + step`, on the host.
        """


@runtime_checkable
class DraftSource(Protocol):
    """What may stand where a draft model stands, without being one."""

    def drafter(self, rows: int, slots: int, vocabulary: int) -> Drafter:
        """A drafter for texts of up to `slots` tokens in `rows` rows, over `vocabulary` token ids."""


class ModelDrafter:
    """Drafts with a causal LM."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    @property
    def identity(self) -> Hashable:
        return self._runner.identity

    def prefill(self, rows: Tensor, tokens: Tensor, until: int) -> None:
        self._runner.prefill(rows, tokens, until)

    def keep(self, rows: Tensor) -> None:
        self._runner.cache.keep(rows)

    def logits(self, tokens: Tensor, lengths: Tensor, step: int, reach: int) -> Tensor:
        # The first step feeds the last two tokens, because after a full round the draft has not read its own
        # last one; then the shape never depends on the last round. A one-token row feeds its token twice.
        last = lengths[:, None] + (step - 1)
        positions = torch.cat([(last - 1).clamp_min(0), last], 1) if step == 0 else last
        return self._runner.logits(tokens.gather(1, positions), positions, reach, keep=1)
