"""What is known while drafting, as numbers: the one definition that training, replay and the loop share.

Knows formulas over values that are single numbers (a row in the loop) or arrays (rows of traces, lanes of a replay)
alike: they are made of operators only, so that both give the same. Knows neither where values come from nor models.

DESIGN section 12: `a_j` is the chance that the j-th token is accepted, `b_{j+1}` that the next one would be. Both are
forecast from q_1 … q_j and the tokens drawn from them: a draft may end behind a token for what that token is. It may
not leave the token out for that, and nothing here is asked whether to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Value = float | Array  # of one row, or (n,) of n rows

ROUNDS_BACK = 3


@dataclass  # not frozen: that would take the loop half a microsecond a token
class Drafted:
    """One drafted token: the shape of q where it was drawn (raw logits, nats), and the token."""

    entropy: Value
    varentropy: Value
    top1: Value
    top2: Value
    probability: Value  # q of the token
    kind: Value  # its class, see `token_kinds.py`
    ends: Value  # 1 where it ends the text


@dataclass(frozen=True)
class Place:
    """Where a round stands: what was known before its first token."""

    position: Value  # tokens of the completion before the round
    share: Value  # T as logit(u), see `share_scale.py`
    divergence: Value  # which one T bounds: its place among the predictor's own
    accepted_back: tuple[Value, ...]  # accepted one, two, three rounds ago; -1 where there was no such round
    spared: Value  # largest divergence that alone kept a token in the last round, 0 where none did
    refused: Value  # the one that rejected one there, 0 where none did

    @classmethod
    def behind(cls, history: History, position: Value, share: Value, divergence: Value) -> Place:
        """Where a round stands that follows such rounds."""
        *accepted_back, spared, refused = history
        return cls(position, share, divergence, tuple(accepted_back), spared, refused)


History = Sequence[Value]
"""What is kept of a text's rounds: `Place`'s last three fields in a row."""

NO_HISTORY: tuple[float, ...] = (*[-1.0] * ROUNDS_BACK, 0.0, 0.0)
"""Before the first round."""


def history_after(history: History, accepted: Value, spared: Value, refused: Value) -> tuple[Value, ...]:
    """With one more round, as `Verified` tells of it, but 0 for a divergence where it has none."""
    return (accepted, *history[: ROUNDS_BACK - 1], spared, refused)


_PLACE = ("share", "divergence", "position", "step", "accepted_1_back", "accepted_2_back", "accepted_3_back",
          "spared", "refused")  # fmt: skip
_SHAPE = ("entropy", "varentropy", "top1", "top2", "margin")
_BEFORE = ("previous_entropy", "previous_top1", "previous_probability", "previous_kind", "earlier_entropy",
           "earlier_top1", "product", "entropies")  # fmt: skip
_TOKEN = ("probability", "kind", "ends")

FEATURES = (*_PLACE, *_SHAPE, *_BEFORE, *_TOKEN)
"""Names of what `known` gives."""

ROLES = ("accepting", "next")
"""The two models of a predictor: of a_j and of b_{j+1}."""

SHARE = 0  # the place of T: models must not fall in it

_SURE = Drafted(0.0, 0.0, 1.0, 0.0, 1.0, -1.0, 0.0)  # stands for tokens before the round's first


def known(steps: Sequence[Drafted], place: Place) -> list[Value]:
    """Behind j = len(steps) >= 1 tokens: was the last accepted, would one more be, if all before it are?"""
    now, before = steps[-1], steps[:-1]
    previous, earlier = (before[-1] if before else _SURE), (before[-2] if len(before) > 1 else _SURE)
    product, entropies = 1.0 + 0.0 * now.top1, 0.0 * now.top1  # the shape of the values, whatever that is
    for step in before:
        product, entropies = product * step.probability, entropies + step.entropy
    return [
        place.share, place.divergence, place.position, float(len(steps)), *place.accepted_back,
        place.spared, place.refused,
        now.entropy, now.varentropy, now.top1, now.top2, now.top1 - now.top2,
        previous.entropy, previous.top1, previous.probability, previous.kind, earlier.entropy, earlier.top1,
        product, entropies,
        now.probability, now.kind, now.ends,
    ]  # fmt: skip


def matrix(values: Sequence[Value]) -> Array:
    """Values of n rows as (n, features) in float64; numbers that all rows share are repeated."""
    return np.column_stack(np.broadcast_arrays(*values)).astype(np.float64)
