"""Features of a drafted token: one definition for training, replay and decoding.

Values are floats (one row while decoding) or arrays (rows of traces, lanes of a replay). The formulas use operators
only, so that both give the same numbers.

Two probabilities are forecast from q_1 … q_j and the tokens drawn from them: `a_j`, that the j-th token is accepted,
and `b_{j+1}`, that the next one would be. A draft may end after a token because of what that token is; leaving the
token out for that reason would change the distribution of the text, so no feature serves that decision.
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


@dataclass  # not frozen: creating a frozen one takes half a microsecond more for each token decoded
class Drafted:
    """A drafted token: statistics of the q it was drawn from (raw logits, in nats), and facts about the token."""

    entropy: Value
    varentropy: Value
    top1: Value
    top2: Value
    probability: Value  # q of the token
    kind: Value  # index of its kind, see `token_kinds.KINDS`
    ends: Value  # 1 where it ends the text, else 0


@dataclass(frozen=True)
class RoundContext:
    """What is known of a round before its first token."""

    position: Value  # tokens of the completion before the round
    share: Value  # T as logit(u), see `share_scale.py`
    divergence: Value  # index, among the predictor's divergences, of the one that T bounds
    accepted_back: tuple[Value, ...]  # tokens accepted one, two, three rounds ago; -1 where there was no such round
    spared: Value  # largest divergence of a token that only D <= T accepted in the last round; 0 where there was none
    refused: Value  # divergence of the token rejected in the last round; 0 where there was none

    @classmethod
    def after(cls, history: History, position: Value, share: Value, divergence: Value) -> RoundContext:
        """Returns the context of a round that follows rounds with this history."""
        *accepted_back, spared, refused = history
        return cls(position, share, divergence, tuple(accepted_back), spared, refused)


History = Sequence[Value]
"""What is kept of a text's earlier rounds: the last three fields of `RoundContext`, flattened."""

NO_HISTORY: tuple[float, ...] = (*[-1.0] * ROUNDS_BACK, 0.0, 0.0)
"""The history before a text's first round."""


def history_after(history: History, accepted: Value, spared: Value, refused: Value) -> tuple[Value, ...]:
    """Returns the history with one more round.

    The arguments are fields of the engine's `Verified`, with 0 where it has no divergence.
    """
    return (accepted, *history[: ROUNDS_BACK - 1], spared, refused)


_PLACE = ("share", "divergence", "position", "step", "accepted_1_back", "accepted_2_back", "accepted_3_back",
          "spared", "refused")  # fmt: skip
_SHAPE = ("entropy", "varentropy", "top1", "top2", "margin")
_BEFORE = ("previous_entropy", "previous_top1", "previous_probability", "previous_kind", "earlier_entropy",
           "earlier_top1", "product", "entropies")  # fmt: skip
_TOKEN = ("probability", "kind", "ends")

FEATURES = (*_PLACE, *_SHAPE, *_BEFORE, *_TOKEN)
"""Names of the features, in the order of `feature_values`."""

ROLES = ("accepting", "next")
"""The two models of a predictor: `accepting` forecasts a_j, `next` forecasts b_{j+1}."""

SHARE = 0  # column of T, in which models must not fall

_SURE = Drafted(0.0, 0.0, 1.0, 0.0, 1.0, -1.0, 0.0)  # stands for the tokens before the round's first one


def feature_values(steps: Sequence[Drafted], context: RoundContext) -> list[Value]:
    """Returns the values of `FEATURES` after j = len(steps) >= 1 drafted tokens, for a_j and b_{j+1} alike."""
    now, before = steps[-1], steps[:-1]
    previous, earlier = (before[-1] if before else _SURE), (before[-2] if len(before) > 1 else _SURE)
    product, entropies = 1.0 + 0.0 * now.top1, 0.0 * now.top1  # floats or arrays, as the values are
    for step in before:
        product, entropies = product * step.probability, entropies + step.entropy
    return [
        context.share, context.divergence, context.position, float(len(steps)), *context.accepted_back,
        context.spared, context.refused,
        now.entropy, now.varentropy, now.top1, now.top2, now.top1 - now.top2,
        previous.entropy, previous.top1, previous.probability, previous.kind, earlier.entropy, earlier.top1,
        product, entropies,
        now.probability, now.kind, now.ends,
    ]  # fmt: skip


def matrix(values: Sequence[Value]) -> Array:
    """Stacks the values of n rows into (n, features) in float64; a float is repeated for all rows."""
    return np.column_stack(np.broadcast_arrays(*values)).astype(np.float64)
