"""Rounds over chains, in which every drafted token follows the one before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fsd_decoding.acceptance.proposal import Proposal
from fsd_decoding.engine.draft import Draft, Steps, StepsAhead, draft_step, draft_steps, draft_until
from fsd_decoding.engine.kv_pool import PooledCaches
from fsd_decoding.engine.rounds import Rounds
from fsd_decoding.engine.row import Row
from fsd_decoding.engine.settings import Settings
from fsd_decoding.engine.verify import JudgedRound, judge_and_settle, propose, settle, verify
from fsd_decoding.graphs.callers import Eager, GraphKey
from fsd_decoding.models.runner import PREFILL_CHUNK
from fsd_decoding.policies.stopping import StopPolicy


class ChainRounds(Rounds):
    """The phases of rounds over chains."""

    def __init__(self, caches: PooledCaches, settings: Settings) -> None:
        super().__init__(caches, settings)
        self._drafter = caches.drafter if settings.rule.drafts else None
        # Length of the longest prompt, where the next verification also prefills the prompts.
        self._pending_prompt_tokens = 0

    def take_prompts(self, longest: int) -> bool:
        self._pending_prompt_tokens = longest if longest <= PREFILL_CHUNK else 0
        return self._pending_prompt_tokens > 0

    def scratch(self, most: int) -> int:
        return most

    def draft(self, rows: Sequence[Row | None], most: int, reach: int) -> Draft:
        batch, drafter = self._batch, self._drafter
        sampling, policy = self._settings.sampling, self._settings.stop_policy
        if drafter is None:
            return Draft([], torch.zeros_like(batch.lengths))
        if policy is None:
            key = GraphKey((self._kind, most), (sampling, reach))
            return Draft(self._call(key, draft_steps, drafter, batch, sampling, most, reach), batch.draft_lengths)
        call = Eager() if policy.watches else self._call.uncompiled

        def take(step: int) -> Tensor:
            return call(
                GraphKey((self._kind, step), (sampling, reach)), draft_step, drafter, batch, sampling, step, reach
            )

        return draft_until(policy, rows, batch, most, self._steps(policy, take, most))

    def _steps(self, policy: StopPolicy, take: Callable[[int], Tensor], most: int) -> Steps:
        if self._caches.side is None or policy.watches or not policy.looks:
            return Steps(take, most)
        return StepsAhead(take, most, self._caches.side)

    def verify(self, draft: Draft, reach: int) -> Tensor:
        drafts = len(draft.logits)
        if not self._pending_prompt_tokens:
            return self._call(GraphKey((self._kind, drafts), reach), verify, self._target, self._batch, drafts, reach)
        pending, self._pending_prompt_tokens = self._pending_prompt_tokens, 0
        return verify(self._target, self._batch, drafts, reach, pending)

    def propose(self, draft: Draft, logits: Tensor) -> Proposal:
        return propose(self._batch, self._settings.criterion, self._settings.sampling, logits, draft.logits)

    def judge_and_settle(self, draft: Draft, logits: Tensor) -> Tensor:
        settings = self._settings
        proposing = (settings.criterion, settings.sampling)
        key = GraphKey((self._kind, len(draft.logits), settings.rule.name), (proposing, settings.stop_policy is None))
        given = (settings.rule, *proposing, logits, draft.logits, draft.counts)
        return self._call(key, judge_and_settle, self._batch, *given)

    def settle(self, judged: JudgedRound) -> Tensor:
        return settle(judged, self._batch)
