"""Rows of different lengths in one runner, all of whose logits are compared with uncached forward passes."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from fsd_decoding.models.runner import ModelRunner
from support.models.tiny_models import CONTEXT, VOCABULARY

ROWS, DRAFT = 3, 5
SLOTS = CONTEXT + DRAFT + 2  # drafts extend beyond the context; not a multiple of any block size


class Ragged:
    """A batch of rows.

    A model with recurrent layers reads rows of one length at a time, and takes no token twice in a pass, as one of a
    single token would.

    Args:
        within: the largest difference of two logits.
    """

    def __init__(
        self, model: Any, seed: int = 0, slots: int = SLOTS, lean: bool = False, within: float = 1e-10
    ) -> None:
        self.model, self.random, self._within = model, Random(seed), within
        self.runner = ModelRunner(model, ROWS, slots, VOCABULARY, lean, rolled_back=DRAFT + 2)
        self.texts: list[list[int]] = [[] for _ in range(ROWS)]

    def words(self, count: int) -> list[int]:
        return [self.random.randrange(VOCABULARY) for _ in range(count)]

    def refill(self, lengths: dict[int, int]) -> None:
        """Gives some rows (row -> length) new prompts, and keeps the others' caches."""
        for row, length in lengths.items():
            self.texts[row] = self.words(length)
        together = [[row] for row in lengths] if self.runner.has_states else [list(lengths)]
        for rows in together:
            longest = max(lengths[row] for row in rows)
            padded = [self.texts[row] + self.words(longest - lengths[row]) for row in rows]
            self.runner.prefill(torch.tensor(rows), torch.tensor(padded), longest - 1)

    def round(self, drafted: int, again: int, keep: int) -> None:
        """Feeds each row its last `again` tokens and some drafts, checks the logits, and accepts some of the drafts."""
        length = torch.tensor([len(text) for text in self.texts])
        if self.runner.has_states:
            again = min(again, int(length.min()))
            keep = min(keep, again + drafted)
        positions = (length[:, None] - again + torch.arange(again + drafted)).clamp_min(0)
        texts = [text + self.words(drafted) for text in self.texts]
        fed = [[text[at] for at in row] for text, row in zip(texts, positions.tolist(), strict=True)]
        actual = self.runner.logits(torch.tensor(fed), positions, int(positions.max()) + 1, keep)
        for text, row, at in zip(texts, actual, positions[:, -keep:].tolist(), strict=True):
            self.check(text, row, at)
        self.texts = [
            text[: len(text) - self.random.randint(0, drafted)] + self.words(1) for text in texts
        ]  # the last token is the fallback or the bonus

    def check(self, text: list[int], actual: Tensor, positions: list[int]) -> None:
        fresh = self.model(torch.tensor([text[:CONTEXT]]), use_cache=False).logits[0]
        for logits, at in zip(actual, positions, strict=True):
            if at < CONTEXT:
                torch.testing.assert_close(logits, fresh[at], atol=self._within, rtol=0)

    def refill_ended(self) -> None:
        """Replaces rows at the end of the context, and some other ones, by new prompts."""
        ended = [i for i, text in enumerate(self.texts) if len(text) >= CONTEXT or self.random.random() < 0.05]
        if ended:
            self.refill({i: self.random.choice((1, 2, 3, 9, 17, CONTEXT - 5)) for i in ended})

    def rounds(self, count: int) -> None:
        """Plays rounds with random acceptances, one-token prompts, refills, and texts beyond windows and contexts."""
        self.refill({0: 1, 1: 7, 2: 19})
        for _ in range(count):
            drafted, again = self.random.randint(0, DRAFT), self.random.randint(1, 2)
            self.round(drafted, again, keep=self.random.randint(1, drafted + again))
            self.refill_ended()
