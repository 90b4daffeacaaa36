"""Recorder: an observer that keeps the divergences of every token a rule decided on.

Knows rounds. Holds their logits back until there are enough to work on at once, since one round of a small batch
is mostly overhead. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fsd_decoding.divergence import check_name, unchecked_divergences
from fsd_decoding.errors import UsageError
from fsd_decoding.observers.round_record import RoundRecord

_HELD = 1 << 22  # logits (positions x V) held back: 32 MB of both models in fp32


class Recorder:
    """Give it to `generate` as `observer`, then ask for its `columns`."""

    def __init__(self, names: Sequence[str]) -> None:
        if isinstance(names, str):
            raise UsageError(f"names is {names!r}; it must be a list of divergences")
        for name in names:
            check_name(name)
        self._names = list(names)
        self._held: list[
            tuple[Tensor, Tensor, Tensor]
        ] = []  # logits of p and q, (B, L, V) each, and which were decided
        self._kept: dict[str, list[Tensor]] = {}

    def __call__(self, round_: RoundRecord) -> None:
        proposal = round_.proposal
        if not proposal.drafted.numel():
            return
        shape = proposal.drafted.shape
        prompts = torch.tensor([r.index if r else -1 for r in round_.requests])
        drafts = torch.arange(shape[1], device=round_.accepted.device)
        decided = round_.decided
        self._held.append((proposal.target_logits[:, :-1], proposal.draft_logits, decided))
        self._keep(
            decided=decided,
            prompt=prompts[:, None].expand(shape),
            position=proposal.positions[:, :-1],
            draft=drafts.expand(shape),
            token=proposal.drafted,
            accepted=drafts < round_.accepted[:, None],
        )
        if sum(p.numel() for p, _, _ in self._held) >= _HELD:
            self._work_off()

    def columns(self) -> dict[str, Tensor]:
        """One entry a decided token, in the order they were decided, on the CPU.

        prompt: its index. position: absolute. draft: its place in the round's draft, from 0. token: the one
        drafted. accepted: whether it stayed. And every divergence asked for, fp32 (fp64 of fp64 models).
        """
        self._work_off()
        whole = {name: torch.cat([part.cpu() for part in parts]) for name, parts in self._kept.items()}
        decided = whole.pop("decided", torch.empty(0, dtype=torch.bool))
        return {name: column if name in self._names else column[decided] for name, column in whole.items()}

    def _keep(self, **columns: Tensor) -> None:
        for name, column in columns.items():
            self._kept.setdefault(name, []).append(column.flatten())

    def _work_off(self) -> None:
        if self._held:
            p, q = (torch.cat([held[i][held[2]] for held in self._held]) for i in (0, 1))
            self._held.clear()
            self._keep(**unchecked_divergences(self._names, p, q))
