"""Beams, and the layer of (beam, token) pairs that comes after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fsd_decoding.beams.forest import Forest

STAYS = -1
"""In place of a token: the beam has ended, and stays as it is."""

Pair = tuple[int, int]
"""The node of a beam, and the token after it."""

Ending = Literal["eos", "stop", "length"]
Ends = Callable[[Forest, int, int], Ending | None]
"""Whether a text ends when a token comes after a node, and why."""


@dataclass(frozen=True)
class Done:
    """A text of beam search that has ended."""

    tokens: list[int]  # without EOS
    score: float  # penalised
    log_probability: float
    reason: Ending
    eos: int | None = None  # the token that ended it; None: another reason


@dataclass(frozen=True)
class Beams:
    """The beams of one prompt after some layers, each once.

    Args:
        length: tokens of those that have not ended.
        nodes: their last tokens in the forest.
        scores: (n,) log-probabilities of their texts.
        ranks: (n,) what beams are chosen by without replacement: the score, perturbed if there is noise.
        counts: how often each was drawn; 1 without replacement.
        ended: why each has ended; None: it has not.
        done: texts of beam search that ended before, the best first.
    """

    length: int
    nodes: list[int]
    scores: Tensor
    ranks: Tensor
    counts: list[int]
    ended: list[Ending | None]
    done: tuple[Done, ...] = ()

    @classmethod
    def first(cls, device: torch.device, dtype: torch.dtype) -> Beams:
        """The one beam before any layer, the prompt."""
        zero = torch.zeros(1, device=device, dtype=dtype)
        return cls(0, [0], zero, zero, [1], [None])

    @cached_property
    def live(self) -> list[int]:
        """Which beams have not ended."""
        return [i for i, reason in enumerate(self.ended) if reason is None]

    @cached_property
    def over(self) -> list[int]:
        """Which beams have ended."""
        return [i for i, reason in enumerate(self.ended) if reason is not None]

    @cached_property
    def live_nodes(self) -> list[int]:
        return [self.nodes[i] for i in self.live]

    @cached_property
    def over_nodes(self) -> list[int]:
        return [self.nodes[i] for i in self.over]

    def pair_at(self, place: int, vocabulary: int) -> Pair:
        """Returns the pair at a place of `Candidates`."""
        live = self.live_nodes
        beam, token = divmod(place, vocabulary)
        return (live[beam], token) if beam < len(live) else (self.over_nodes[place - len(live) * vocabulary], STAYS)

    def place_of(self, pair: Pair, vocabulary: int) -> int | None:
        """Returns the place of a pair in `Candidates`; None: it is none of these beams'."""
        (node, token), live = pair, self.live_nodes
        if token != STAYS:
            return live.index(node) * vocabulary + token if node in live else None
        over = self.over_nodes
        return len(live) * vocabulary + over.index(node) if node in over else None

    def grown(self, forest: Forest, layer: Layer) -> Beams:
        """Returns the beams that a layer makes of these."""
        before = dict(zip(self.nodes, self.ended, strict=True))
        first: dict[int, int] = {}  # where each node comes first in the layer
        counts: dict[int, int] = {}
        for place, (parent, token) in enumerate(layer.pairs):
            node = parent if token == STAYS else forest.child(parent, token)
            first.setdefault(node, place)
            counts[node] = counts.get(node, 0) + 1
        places = list(first.values())
        ended = [before[node] if layer.pairs[i][1] == STAYS else layer.ends[i] for node, i in first.items()]
        scores, ranks = layer.scores[places], layer.ranks[places]
        return Beams(self.length + 1, list(first), scores, ranks, list(counts.values()), ended, layer.done)


@dataclass(frozen=True)
class Layer:
    """Pairs of a beam and a token, in the order in which they were chosen or drawn.

    Args:
        pairs: they may repeat where they were drawn with replacement.
        ends: why the text ends with each, see `Beams.ended`.
        scores, ranks, done: as of `Beams`, of each pair.
    """

    pairs: list[Pair]
    ends: list[Ending | None]
    scores: Tensor
    ranks: Tensor
    done: tuple[Done, ...] = ()


@dataclass(frozen=True)
class Drafted:
    """A layer that the draft proposes.

    Args:
        before, after: the draft's beams before it and with it, with the draft's scores.
        logits: (n, V) the draft's raw logits after those beams that had not ended.
        log_q: (n, V) the log-probabilities after the sampling settings.
        layer: its pairs.
    """

    before: Beams
    logits: Tensor
    log_q: Tensor
    layer: Layer
    after: Beams
