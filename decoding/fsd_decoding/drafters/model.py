"""Drafting with a causal language model."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from fsd_decoding.drafters.base import Frontier
from fsd_decoding.models.branches import Branches, move_path
from fsd_decoding.models.runner import ModelRunner


class ModelDrafter:
    """A `Drafter` whose q is a causal LM's next-token distribution."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    @property
    def identity(self) -> Hashable:
        return self._runner.identity

    def prefill(self, rows: Tensor, tokens: Tensor, until: int) -> None:
        self._runner.prefill(rows, tokens, until)

    def keep(self, rows: Sequence[int]) -> None:
        self._runner.cache.keep(rows)

    def logits(self, tokens: Tensor, lengths: Tensor, step: int, reach: int) -> Tensor:
        # Step 0 feeds the last two tokens, because after a draft accepted whole the model has not read its own last
        # token yet. It always feeds two, so that shapes do not depend on the previous round; a row of one token feeds
        # that token twice.
        last = lengths[:, None] + (step - 1)
        positions = torch.cat([(last - 1).clamp_min(0), last], 1) if step == 0 else last
        return self._runner.logits(tokens.gather(1, positions), positions, reach, keep=1)

    def expand(self, tokens: Tensor, lengths: Tensor, frontier: Frontier, reach: int) -> Tensor:
        drafted, scratch = frontier.tokens, frontier.seen.shape[2]
        depths = torch.arange(scratch, device=lengths.device)[None] // frontier.width + 1
        branches = Branches(lengths, lengths[:, None] + frontier.places, frontier.seen, depths)
        positions = (lengths[:, None] + (frontier.depth - 1)).expand_as(drafted)
        return self._runner.logits(drafted, positions, reach, keep=drafted.shape[1], branches=branches)

    def commit(self, lengths: Tensor, places: Tensor) -> None:
        move_path(self._runner.cache, lengths, places)
