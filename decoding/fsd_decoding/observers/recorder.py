"""Recorder: an observer that keeps the divergences of every token that a rule decided on.

Divergences of several rounds are computed at once, since for one round of a small batch the overhead would dominate.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding.divergence import check_name, unchecked_divergences
from fsd_decoding.observers.round_record import RoundRecord

_PENDING = 1 << 22  # logits (positions x V) that are kept before they are reduced: 32 MB for both models in fp32


class Recorder:
    """Records divergences: pass it to `generate` as `observer`, then read `columns`.

    Args:
        names: of the divergences to record.
    """

    def __init__(self, names: Sequence[str]) -> None:
        if isinstance(names, str):
            raise UsageError(f"names is {names!r}; it must be a list of names of divergences")
        for name in names:
            check_name(name)
        self._names = list(names)
        # Logits of p and q, (B, L, V) each, and which tokens were decided, (B, L).
        self._pending: list[tuple[Tensor, Tensor, Tensor]] = []
        self._kept: dict[str, list[Tensor]] = {}

    def __call__(self, record: RoundRecord) -> None:
        proposal = record.proposal
        if not proposal.drafted.numel():
            return
        shape = proposal.drafted.shape
        prompts = torch.tensor([r.index if r else -1 for r in record.requests])
        drafts = torch.arange(shape[1], device=record.accepted.device)
        decided = record.decided
        self._pending.append((proposal.target_logits[:, :-1], proposal.draft_logits, decided))
        self._keep(
            decided=decided,
            prompt=prompts[:, None].expand(shape),
            position=proposal.positions[:, :-1],
            draft=drafts.expand(shape),
            token=proposal.drafted,
            accepted=drafts < record.accepted[:, None],
        )
        if sum(p.numel() for p, _, _ in self._pending) >= _PENDING:
            self._reduce_pending()

    def columns(self) -> dict[str, Tensor]:
        """Returns columns on the CPU with one entry per decided token, in the order of the decisions.

        prompt: its index. position: absolute. draft: the token's position in the round's draft, from 0. token: the
        drafted one. accepted: whether it was. And each of the recorded divergences, fp32 (fp64 for fp64 models).
        """
        self._reduce_pending()
        whole = {name: torch.cat([part.cpu() for part in parts]) for name, parts in self._kept.items()}
        decided = whole.pop("decided", torch.empty(0, dtype=torch.bool))
        return {name: column if name in self._names else column[decided] for name, column in whole.items()}

    def _keep(self, **columns: Tensor) -> None:
        for name, column in columns.items():
            self._kept.setdefault(name, []).append(column.flatten())

    def _reduce_pending(self) -> None:
        if self._pending:
            p, q = (torch.cat([pending[i][pending[2]] for pending in self._pending]) for i in (0, 1))
            self._pending.clear()
            self._keep(**unchecked_divergences(self._names, p, q))
