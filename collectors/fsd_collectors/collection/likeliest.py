"""The k likeliest tokens of p and of q at drafted tokens, as traces hold them, and distributions made of them again.

What is known is p and q of every token among them, and of x. The rest of each is spread evenly over the other tokens.
So a score that reads no other tokens is exact, the likeliest tokens have their places, and a divergence that does not
grow when tokens are merged, as all but `doubt`, is at most what it is of the whole distributions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from fsd_decoding.divergence import DistributionPair

_LEAST = 1e-12  # that is left of a distribution: rounding may leave nothing, which would make divergences infinite


@dataclass(frozen=True)
class Likeliest:
    """The k likeliest tokens of both distributions at N places, the likeliest first, by raw logits.

    The fields are named as the columns of traces.
    """

    target_top: Tensor  # (N, k) tokens, of p
    target_top_log_p: Tensor  # (N, k)
    target_top_log_q: Tensor  # (N, k)
    draft_top: Tensor  # (N, k) tokens, of q
    draft_top_log_p: Tensor  # (N, k)
    draft_top_log_q: Tensor  # (N, k)

    @classmethod
    def of(cls, pair: DistributionPair, k: int) -> Self:
        """Returns those of distributions (N, V)."""
        found = []
        for log in (pair.log_p, pair.log_q):
            tokens = log.topk(k, -1).indices
            found += [tokens, pair.log_p.gather(-1, tokens), pair.log_q.gather(-1, tokens)]
        return cls(*found)

    def __getitem__(self, part: slice) -> Likeliest:
        """Some of the places."""
        return Likeliest(*(values[part] for values in vars(self).values()))

    @property
    def columns(self) -> Tensor:
        """One below the other: (6 k, N), in floats, which hold token ids exactly."""
        return torch.cat([values.T.to(self.target_top_log_p.dtype) for values in vars(self).values()])

    @property
    def left_out(self) -> tuple[Tensor, Tensor]:
        """The share of p beyond its own k likeliest tokens, and that of q: (N,) each."""
        of_target, of_draft = (log.double().exp().sum(-1) for log in (self.target_top_log_p, self.draft_top_log_q))
        return 1.0 - of_target, 1.0 - of_draft

    def logits(self, drafted: Tensor, p_x: Tensor, q_x: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
        """Returns log p and log q, with what is left spread evenly over the other tokens: (N, V) each, in fp64.

        Args:
            drafted, p_x, q_x: (N,) x, and its probabilities.
            vocabulary: V.
        """
        tokens = torch.cat([self.target_top, self.draft_top], -1).long()
        known = torch.zeros(len(drafted), vocabulary, dtype=torch.bool, device=drafted.device)
        known.scatter_(-1, tokens, True).scatter_(-1, drafted.unsqueeze(-1), True)
        both = []
        for x, of_target, of_draft, own in (
            (p_x, self.target_top_log_p, self.draft_top_log_p, self.target_top_log_p),
            (q_x, self.target_top_log_q, self.draft_top_log_q, self.draft_top_log_q),
        ):
            log = torch.full(known.shape, -torch.inf, dtype=torch.float64, device=drafted.device)
            log.scatter_(-1, drafted.unsqueeze(-1), x.double().log().unsqueeze(-1))
            log.scatter_(-1, tokens, torch.cat([of_target, of_draft], -1).double())
            left = (1.0 - log.exp().sum(-1)).clamp_min(_LEAST) / (~known).sum(-1).clamp_min(1)  # to each other token
            # Of rounding there may be more left than a token beyond the likeliest can have.
            least = torch.nextafter(own[:, -1].double(), torch.full_like(left, -torch.inf))
            both.append(log.where(known, torch.minimum(left.log(), least).unsqueeze(-1)))
        return both[0], both[1]


COLUMNS = tuple(field.name for field in fields(Likeliest))
