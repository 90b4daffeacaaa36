"""Features of a mismatch, computed alike where labels are collected and in decoding.

x is the drafted token, y the target's likeliest one, b the token before them; p and q are of raw logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fsd_decoding.divergence import DIVERGENCES, DistributionPair, divergences_of_pair, log_softmax
from fsd_decoding.judging.token_classes import CLASSES
from fsd_decoding.scores import Seen
from fsd_decoding.tensors import argmax, lazy

_LEAST_LOG = -30.0  # of a probability, below which none is told from 0


@dataclass(frozen=True)
class Feature:
    """A feature of a mismatch.

    Args:
        of: computes it, (…).
        meaning: in a line.
        sign: 1 where a larger value never lowers P(harmful), -1 where it never raises it, 0 where it may do either.
        context: whether it depends on the text before, which not every engine shows.
        classed: whether it depends on tokens' classes.
    """

    of: Callable[[Mismatches], Tensor]
    meaning: str
    sign: Literal[-1, 0, 1] = 0
    context: bool = False
    classed: bool = False


class Mismatches:
    """What features are made of, each part computed at most once.

    Args:
        seen: at positions of any shape (…).
        classes: (V,) uint8, see `token_classes`.
    """

    def __init__(self, seen: Seen, classes: Tensor) -> None:
        self._seen, self._classes = seen, classes

    @lazy
    def x(self) -> Tensor:
        return self._seen.drafted

    @lazy
    def y(self) -> Tensor:
        return argmax(self._seen.target_logits)

    @lazy
    def before(self) -> Tensor:
        assert self._seen.before is not None
        return self._seen.before()

    @lazy
    def place(self) -> Tensor:
        assert self._seen.places is not None
        return self._seen.places()

    @lazy
    def pair(self) -> DistributionPair:
        return DistributionPair(log_softmax(self._seen.target_logits), log_softmax(self._seen.draft_logits))

    def log(self, model: str, token: str) -> Tensor:
        """log p or log q of x or y, not below -30: (…)."""
        log: Tensor = self.pair.log_p if model == "p" else self.pair.log_q
        token_ids: Tensor = getattr(self, token)
        return log.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1).clamp_min(_LEAST_LOG)

    def rank(self, model: str, token: str) -> Tensor:
        """log(1 + how many tokens are likelier than x or y under p or q): (…)."""
        log: Tensor = self.pair.log_p if model == "p" else self.pair.log_q
        token_ids: Tensor = getattr(self, token)
        return (log > log.gather(-1, token_ids.unsqueeze(-1))).sum(-1).float().log1p()

    def entropy(self, model: str) -> Tensor:
        """In nats: (…)."""
        share: Tensor = self.pair.p if model == "p" else self.pair.q
        return -(share * self.pair.finite_logs[0 if model == "p" else 1]).sum(-1)

    def divergence(self, name: str) -> Tensor:
        """D, not above 30, as some divergences may be infinite: (…)."""
        return divergences_of_pair([name], self.pair)[name].clamp_max(-_LEAST_LOG)

    def is_class(self, token: str, number: int) -> Tensor:
        """Whether a token is of a class: (…) bool."""
        return self._class_of(token) == number

    def _class_of(self, token: str) -> Tensor:
        ids: Tensor = getattr(self, token)
        return self._classes[ids]


def _log(model: str, token: str) -> Callable[[Mismatches], Tensor]:
    return lambda seen: seen.log(model, token)


def _rank(model: str, token: str) -> Callable[[Mismatches], Tensor]:
    return lambda seen: seen.rank(model, token)


def _relaxed(seen: Mismatches) -> Tensor:
    return (seen.log("p", "y").exp() - seen.log("p", "x").exp()).clamp_min(0.0)


def _class(token: str, number: int) -> Callable[[Mismatches], Tensor]:
    return lambda seen: seen.is_class(token, number)


_OF_CLASSES = {
    f"{token}_{name}": Feature(_class(token, number), f"{letter} is {name}", context=token == "before", classed=True)
    for token, letter in (("x", "x"), ("y", "y"), ("before", "b"))
    for number, name in enumerate(CLASSES)
    if name != "other"
}

TABLE: dict[str, Feature] = {
    "log_p_x": Feature(_log("p", "x"), "log p(x)", -1),
    "log_p_y": Feature(_log("p", "y"), "log p(y)"),
    "log_q_x": Feature(_log("q", "x"), "log q(x)"),
    "log_q_y": Feature(_log("q", "y"), "log q(y)"),
    "relaxed": Feature(_relaxed, "p(y) - p(x)", 1),
    "margin": Feature(lambda seen: -torch.expm1(seen.log("p", "x") - seen.log("p", "y")), "1 - p(x)/p(y)", 1),
    "rank_x": Feature(_rank("p", "x"), "log(1 + how many tokens are likelier than x under p)", 1),
    "rank_y": Feature(_rank("q", "y"), "log(1 + how many tokens are likelier than y under q)"),
    "entropy_p": Feature(lambda seen: seen.entropy("p"), "entropy of p"),
    "entropy_q": Feature(lambda seen: seen.entropy("q"), "entropy of q"),
    **{name: Feature(partial(Mismatches.divergence, name=name), f"divergence {name}") for name in DIVERGENCES},
    **_OF_CLASSES,
    "place": Feature(lambda seen: seen.place.float().log1p(), "log(1 + tokens of the text before x)", context=True),
}
"""Features by name.

Divergences have no sign: a draft may be surest, and so farthest from the target, where it says the same in other words.
"""

FEATURES: tuple[str, ...] = tuple(TABLE)
"""Their names, in the order of columns."""


def features_of(seen: Seen, classes: Tensor, wanted: Sequence[str] = FEATURES) -> Tensor:
    """Returns features of mismatches: (…, F) in fp32, finite wherever the logits are.

    Args:
        seen: raw logits and drafted tokens at positions of any shape (…), and where wanted the tokens `before` and
            their `places`.
        classes: (V,) uint8, see `token_classes`, on the logits' device.
        wanted: names, in the order of the columns.
    """
    mismatches = Mismatches(seen, classes)
    return torch.stack([TABLE[name].of(mismatches).float() for name in wanted], -1)
