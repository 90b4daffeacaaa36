"""JudgedNodes: an observer that keeps what the two models say at every drafted token of chains or trees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_collectors.replay.walks import Walks
from fsd_decoding.acceptance import Proposal
from fsd_decoding.divergence import unchecked_divergences
from fsd_decoding.observers.round_record import RoundRecord


class JudgedNodes:
    """Keeps every round of a call of `generate`, to which it is passed as `observer`, for `walks`.

    Args:
        divergences: names.
    """

    def __init__(self, divergences: Sequence[str]) -> None:
        self._divergences = tuple(divergences)
        self._rounds: list[dict[str, np.ndarray]] = []
        self._chains = True

    def __call__(self, record: RoundRecord) -> None:
        if record.trees is None:
            proposal = record.proposal
            parents, proposed = _chain(proposal.drafted), record.proposed
        else:
            proposal, self._chains = record.trees.proposal, False
            parents, proposed = record.trees.tree.parents, record.trees.tree.depths > 0
        columns = self._columns(proposal, parents, proposed)
        self._rounds.append({name: column[record.active].cpu().numpy() for name, column in columns.items()})

    def walks(self) -> Walks:
        """Returns the rounds."""
        width = max(each["exact"].shape[1] for each in self._rounds)
        names = ("exact", "drafted", *self._divergences)
        joined = {name: np.concatenate([_padded(each[name], width) for each in self._rounds]) for name in names}
        divergences = {name: joined[name] for name in self._divergences}
        return Walks(joined["exact"], joined["drafted"], divergences, self._chains)

    def _columns(self, proposal: Proposal, parents: Tensor, proposed: Tensor) -> dict[str, Tensor]:
        """The columns of `Walks`, of all rows."""
        tokens = proposal.drafted if proposal.tree is None else proposal.tree.tokens
        y, x = proposal.target_choice, proposal.drafted
        divergences = unchecked_divergences(self._divergences, proposal.target_logits[:, :-1], proposal.draft_logits)
        return {
            "exact": _child(tokens == y.gather(1, parents), parents, proposed),
            "drafted": _child(tokens == x.gather(1, parents), parents, proposed),
            **{name: pad(each, (0, 1), value=torch.inf) for name, each in divergences.items()},
        }


def _chain(drafted: Tensor) -> Tensor:
    """The parents of a chain's tokens, as nodes: (B, L)."""
    return torch.arange(drafted.shape[1], device=drafted.device).expand_as(drafted)


def _child(wanted: Tensor, parents: Tensor, proposed: Tensor) -> Tensor:
    """The number of the proposed child of nodes 0 … N whose token is `wanted` (B, N); 0: there is none."""
    rows, nodes = wanted.shape
    numbers = torch.arange(1, nodes + 1, device=wanted.device).expand_as(wanted)
    found = torch.zeros((rows, nodes + 2), dtype=torch.int64, device=wanted.device)
    at = torch.where(wanted & proposed, parents, nodes + 1)  # the last column takes what is of no use
    return found.scatter_(1, at, numbers)[:, :-1]


def _padded(values: np.ndarray, width: int) -> np.ndarray:
    """Rounds with few nodes, as in a batch of short drafts, as wide as the widest."""
    filling = np.inf if values.dtype.kind == "f" else 0
    return np.pad(values, ((0, 0), (0, width - values.shape[1])), constant_values=filling)
