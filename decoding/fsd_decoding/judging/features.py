"""Features of a mismatch, computed alike where labels are collected and in decoding.

x is the drafted token, y the target's likeliest one, b the token before them; p and q are of raw logits. A round waits
for them, so those that share terms are computed together, by few operations on both models at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

from fsd_decoding.divergence import DIVERGENCES, LOG_ZERO, log_softmax
from fsd_decoding.judging.token_classes import CLASSES
from fsd_decoding.scores import Seen
from fsd_decoding.tensors import argmax, lazy

_LEAST_LOG = -30.0  # of a probability, below which none is told from 0


@dataclass(frozen=True)
class Feature:
    """A feature of a mismatch.

    Args:
        meaning: in a line.
        sign: 1 where a larger value never lowers P(harmful), -1 where it never raises it, 0 where it may do either.
        context: whether it depends on the text before, which not every engine shows.
        classed: whether it depends on tokens' classes.
    """

    meaning: str
    sign: Literal[-1, 0, 1] = 0
    context: bool = False
    classed: bool = False


_SUMS: Mapping[str, tuple[float, ...]] = {  # m = (p + q) / 2
    # sum of  p log p  p log q  q log p  q log q  -m log m  |p - q|  (root p - root q)^2, of which the root
    "entropy_p": (-1.0, 0.0,  0.0,  0.0,   0.0, 0.0, 0.0),
    "entropy_q": (0.0,  0.0,  0.0, -1.0,   0.0, 0.0, 0.0),
    "js":        (0.5,  0.0,  0.0,  0.5,   1.0, 0.0, 0.0),
    "ag":       (-0.25, -0.25, -0.25, -0.25, -1.0, 0.0, 0.0),
    "kl_qp":     (0.0,  0.0, -1.0,  1.0,   0.0, 0.0, 0.0),
    "kl_pq":     (1.0, -1.0,  0.0,  0.0,   0.0, 0.0, 0.0),
    "tv":        (0.0,  0.0,  0.0,  0.0,   0.0, 0.5, 0.0),
    "hellinger": (0.0,  0.0,  0.0,  0.0,   0.0, 0.0, math.sqrt(0.5)),
    "doubt":     (1.5,  0.0,  0.0, -0.5,   1.0, 0.0, 0.0),  # where the draft is less sure than the target, else js
}  # fmt: skip
"""Entropies and divergences as `divergence` has them, of sums over the vocabulary that they share."""
_JS, _DOUBT = (list(_SUMS).index(name) for name in ("js", "doubt"))


class Constants(NamedTuple):
    """What features are made of beside mismatches, on their device."""

    kinds: Tensor  # (V, kinds) 1 where a token is of the kind, else 0
    sums: Tensor  # (9, 7, 1) see `_SUMS`

    @classmethod
    def of(cls, classes: Tensor) -> Constants:
        """Of the class of every token, (V,) uint8; see `token_classes`."""
        device = classes.device
        kinds = (classes.unsqueeze(-1) == torch.arange(1, len(CLASSES), device=device)).float()
        return cls(kinds, torch.tensor([*_SUMS.values()], device=device).unsqueeze(-1))


class Mismatches:
    """What features of n mismatches are made of, each part computed at most once.

    Args:
        seen: at positions of any shape, of which there are n.
    """

    def __init__(self, seen: Seen, constants: Constants) -> None:
        self.seen, self.constants, self.count = seen, constants, seen.drafted.numel()

    @lazy
    def tokens(self) -> Tensor:
        """x and y: (n, 2)."""
        return torch.stack([self.seen.drafted, argmax(self.seen.target_logits)], -1).view(self.count, 2)

    @lazy
    def logs(self) -> Tensor:
        """log p and log q: (2, n, V)."""
        both = torch.stack([self.seen.target_logits, self.seen.draft_logits])
        return log_softmax(both.view(2, self.count, both.shape[-1]))

    @lazy
    def of_tokens(self) -> Tensor:
        """log p and log q of x and y: (2, n, 2)."""
        return self.logs.gather(-1, self.tokens.expand(2, -1, -1))


def _likelihoods(mismatches: Mismatches) -> Tensor:
    logs = mismatches.of_tokens.clamp_min(_LEAST_LOG).transpose(1, 2).flatten(0, 1)
    p_x, p_y = logs[:2].exp()
    relaxed = p_y - p_x
    return torch.cat([logs, torch.stack([relaxed, relaxed / p_y])])


def _ranks(mismatches: Mismatches) -> Tensor:
    ranked = mismatches.of_tokens.diagonal(dim1=0, dim2=2)  # (n, 2) log p(x) and log q(y)
    return (mismatches.logs > ranked.T.unsqueeze(-1)).sum(-1).log1p()


def _divergences(mismatches: Mismatches) -> Tensor:
    shares, logs = mismatches.logs.exp(), mismatches.logs.clamp_min(LOG_ZERO)
    crossed = (shares.unsqueeze(1) * logs).sum(-1)  # (2, 2, n)
    (p, q), (root_p, root_q) = shares.unbind(), shares.sqrt().unbind()
    others = torch.special.entr(shares.mean(0)).sum(-1), (p - q).abs().sum(-1), vector_norm(root_p - root_q, 2, -1)
    sums = torch.cat([crossed.flatten(0, 1), torch.stack(others)])
    found = (mismatches.constants.sums * sums).sum(1).clamp_(0.0, -_LEAST_LOG)
    torch.maximum(found[_JS], found[_DOUBT], out=found[_DOUBT])
    return found


def _kinds(mismatches: Mismatches) -> Tensor:
    return mismatches.constants.kinds[mismatches.tokens].flatten(1).T


def _kinds_before(mismatches: Mismatches) -> Tensor:
    assert mismatches.seen.before is not None
    return mismatches.constants.kinds[mismatches.seen.before().flatten()].T


def _place(mismatches: Mismatches) -> Tensor:
    assert mismatches.seen.places is not None
    return mismatches.seen.places().view(1, -1).log1p()


def _past(mismatches: Mismatches) -> Tensor:
    assert mismatches.seen.past is not None
    return mismatches.seen.past().view(-1, 3).T


class _Block(NamedTuple):
    """Features that are computed together: (features, n)."""

    of: Callable[[Mismatches], Tensor]
    features: Mapping[str, Feature]


_BLOCKS = (
    _Block(_likelihoods, {
        "log_p_x": Feature("log p(x)", -1),
        "log_p_y": Feature("log p(y)"),
        "log_q_x": Feature("log q(x)"),
        "log_q_y": Feature("log q(y)"),
        "relaxed": Feature("p(y) - p(x)", 1),
        "margin": Feature("1 - p(x)/p(y)", 1),
    }),
    _Block(_ranks, {
        "rank_x": Feature("log(1 + how many tokens are likelier than x under p)", 1),
        "rank_y": Feature("log(1 + how many tokens are likelier than y under q)"),
    }),
    _Block(_divergences, {
        "entropy_p": Feature("entropy of p"),
        "entropy_q": Feature("entropy of q"),
        **{name: Feature(f"divergence {name}") for name in DIVERGENCES},
    }),
    _Block(_kinds, {
        f"{token}_{kind}": Feature(f"{token} is {kind}", classed=True) for token in ("x", "y") for kind in CLASSES[1:]
    }),
    _Block(_kinds_before, {
        f"before_{kind}": Feature(f"b is {kind}", context=True, classed=True) for kind in CLASSES[1:]
    }),
    _Block(_place, {"place": Feature("log(1 + tokens of the text before x", context=True)}),
    _Block(_past, {
        "since": Feature("log(1 + tokens since the target replaced one)", context=True),
        "lately": Feature("tokens that the target replaced lately, half as much each 8 tokens back", context=True),
        "phase": Feature("x is inside the phase, such as that of thinking", context=True),
    }),
)  # fmt: skip
"""Divergences have no sign: a draft may be surest, and so farthest from the target, where it says the same in other
words."""

TABLE: Mapping[str, Feature] = {name: feature for block in _BLOCKS for name, feature in block.features.items()}
"""Features by name."""

FEATURES: tuple[str, ...] = tuple(TABLE)
"""Their names, in the order of columns."""

PAST = tuple(_BLOCKS[-1].features)
"""The last of them, which depend on earlier rounds of a text, or on its phase, and not on logits; see `past`."""


class Features:
    """Computes features of mismatches.

    Args:
        classes: (V,) uint8, see `token_classes`, on the logits' device.
        wanted: names, in the order of the columns.
    """

    def __init__(self, classes: Tensor, wanted: Sequence[str] = FEATURES) -> None:
        self._constants = Constants.of(classes)
        self._blocks = [block for block in _BLOCKS if not block.features.keys().isdisjoint(wanted)]
        names = [name for block in self._blocks for name in block.features]
        self._places = torch.tensor([names.index(name) for name in wanted], device=classes.device)

    def __call__(self, seen: Seen) -> Tensor:
        """Returns the features (…, F) in fp32, finite wherever the logits are.

        Args:
            seen: raw logits and drafted tokens at positions of any shape (…), and where wanted the tokens `before`,
                their `places` and their `past`.
        """
        mismatches = Mismatches(seen, self._constants)
        found = torch.cat([block.of(mismatches) for block in self._blocks]).float()
        columns: Tensor = found.index_select(0, self._places).T
        return columns.view(*seen.drafted.shape, len(self._places))
