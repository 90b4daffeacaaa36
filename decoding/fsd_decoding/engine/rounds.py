"""The phases of a round that run on the device: draft, verify, judge, settle."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from fsd_decoding.acceptance.proposal import Proposal
from fsd_decoding.engine.draft import Draft
from fsd_decoding.engine.kv_pool import PooledCaches
from fsd_decoding.engine.row import Row
from fsd_decoding.engine.settings import Settings
from fsd_decoding.engine.verify import JudgedRound


class Rounds(ABC):
    """The phases of rounds over one kind of draft. Steps go through the caches' caller, which may capture them.

    Args:
        caches: the models and the batch.
        settings: how requests are decoded.
    """

    def __init__(self, caches: PooledCaches, settings: Settings) -> None:
        self._caches, self._settings = caches, settings
        self._batch, self._target, self._call = caches.batch, caches.target, caches.call
        drafter = caches.drafter if settings.rule.drafts else None
        models = self._target.identity, drafter.identity if drafter else None
        self._kind = (*models, caches.rows, caches.slots)

    def race(self, most: int) -> Tensor | None:
        """Returns the noise by which draft and target draw tokens, for all positions of a round at once.

        Not in graphs, which own their memory, nor where a policy may end drafts early.
        """
        if not self._call.can_reshape or self._settings.stop_policy is not None:
            return None
        batch, target = self._batch, self._target
        positions = batch.lengths[:, None] + torch.arange(most + 1, device=batch.lengths.device)
        dtype = torch.float64 if target.model.dtype == torch.float64 else torch.float32  # that of logits
        return self._settings.sampling.race(batch.keys, positions, target.vocabulary, dtype)

    def take_prompts(self, longest: int) -> bool:
        """Asks that the next verification read the prompts of all rows too. Returns whether it will.

        Args:
            longest: length of the longest prompt.
        """
        return False

    @abstractmethod
    def scratch(self, most: int) -> int:
        """Returns the number of slots that a round needs behind each text, at draft lengths of up to `most`."""

    @abstractmethod
    def draft(self, rows: Sequence[Row | None], most: int, reach: int) -> Draft:
        """Drafts up to `most` tokens after one another in every row.

        Args:
            rows: the rows of the batch on the host.
            most: the largest draft length.
            reach: an upper bound of the slots in use.
        """

    @abstractmethod
    def verify(self, draft: Draft, reach: int) -> Tensor:
        """Returns the target's raw logits after each row's last token and after each drafted one."""

    @abstractmethod
    def propose(self, draft: Draft, logits: Tensor) -> Proposal:
        """Collects a draft and the target's logits for the rule."""

    @abstractmethod
    def judge_and_settle(self, draft: Draft, logits: Tensor) -> Tensor:
        """`propose`, the rule and `settle` as one step."""

    @abstractmethod
    def settle(self, judged: JudgedRound) -> Tensor:
        """Makes accepted tokens text, and packs the round for `Decided.of`: (B, columns) float64."""
