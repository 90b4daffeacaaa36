"""All pairs of which a layer is chosen, and their joint law.

They are a vector of n·V + m places: V for each of the n beams that have not ended, then one for each of the m others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fsd_decoding.beams.forest import Forest
from fsd_decoding.beams.layer import STAYS, Beams, Done, Ends, Layer


@dataclass(frozen=True)
class Candidates:
    """The pairs after some beams.

    Args:
        beams: the beams.
        vocabulary: V.
        scores, ranks: (n·V + m) as of `Beams`.
    """

    beams: Beams
    vocabulary: int
    scores: Tensor
    ranks: Tensor

    @classmethod
    def of(cls, beams: Beams, scores: Tensor, ranks: Tensor) -> Candidates:
        """Returns those with these scores and ranks (n, V) after the beams that have not ended."""
        joined = [
            torch.cat([new.flatten(), old[beams.over]]) for new, old in ((scores, beams.scores), (ranks, beams.ranks))
        ]
        return cls(beams, scores.shape[1], *joined)

    def top(self, most: int) -> Tensor:
        """Returns the places of the highest ranks, at most so many, without pairs of probability 0."""
        top = self.ranks.topk(min(most, len(self.ranks)))
        return top.indices[top.values > -torch.inf]

    def possible(self, places: Sequence[int]) -> list[int]:
        """Returns those of the places that have a probability above 0."""
        finite = (self.scores[list(places)] > -torch.inf).tolist()
        return [place for place, possible in zip(places, finite, strict=True) if possible]

    def layer(self, forest: Forest, places: Tensor | Sequence[int], ends: Ends, done: tuple[Done, ...] = ()) -> Layer:
        """Returns the layer of the pairs at these places."""
        listed = places.tolist() if isinstance(places, Tensor) else list(places)
        pairs = [self.beams.pair_at(place, self.vocabulary) for place in listed]
        reasons = [None if token == STAYS else ends(forest, node, token) for node, token in pairs]
        return Layer(pairs, reasons, self.scores[places], self.ranks[places], done)


def joint(beams: Beams, log_p: Tensor) -> Tensor:
    """Returns the logarithms of a layer's joint law, of a beam's probability times its token's: (n·V + m).

    Args:
        beams: their scores weigh them, each as often as it was drawn.
        log_p: (n, V) log-probabilities of the tokens after those that have not ended.
    """
    weights = beams.scores + torch.tensor(beams.counts, device=log_p.device).log().to(log_p.dtype)
    pairs = weights[beams.live, None] + log_p
    return torch.log_softmax(torch.cat([pairs.flatten(), weights[beams.over]]), 0)


def restricted(log_joint: Tensor, beams: Beams, to: Beams, vocabulary: int) -> Tensor:
    """Returns the entries of a joint law of `beams` for the candidates of others; not normalised.

    Args:
        log_joint: what `joint` returned for `beams`.
        to: beams that are all among `beams`, except that those that have ended may be missing: their probability is 0.
    """
    live, over = beams.live_nodes, beams.over_nodes
    of_live = log_joint[: len(live) * vocabulary].view(-1, vocabulary)[[live.index(node) for node in to.live_nodes]]
    of_over = torch.cat([log_joint[len(live) * vocabulary :], log_joint.new_full((1,), -torch.inf)])
    return torch.cat([of_live.flatten(), of_over[[over.index(n) if n in over else len(over) for n in to.over_nodes]]])
