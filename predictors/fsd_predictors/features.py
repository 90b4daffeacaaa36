"""Features of a drafted token: one definition for training, replay and decoding.

Values are floats (one row while decoding) or arrays (rows of traces, lanes of a replay). The formulas use operators
only, so that both give the same numbers.

Two probabilities are forecast from q_1 … q_j and the tokens drawn from them: `a_j`, that the j-th token is accepted,
and `b_{j+1}`, that the next one would be. A draft may end after a token because of what that token is; leaving the
token out for that reason would change the distribution of the text, so no feature serves that decision.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsd_collectors.replay.rounds import RoundStarts, Verified
from fsd_predictors.share_scale import ShareScale

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
    score: Value  # index, among the predictor's scores, of the one that T bounds
    accepted_back: tuple[Value, ...]  # tokens accepted one, two, three rounds ago; -1 where there was no such round
    largest_accepted: Value  # score of the tokens that only D <= T accepted in the last round; 0: there were none
    smallest_rejected: Value  # score of the token rejected in the last round; 0: there was none

    @classmethod
    def after(cls, history: History, position: Value, share: Value, score: Value) -> RoundContext:
        """Returns the context of a round that follows rounds with this history."""
        *accepted_back, largest_accepted, smallest_rejected = history
        return cls(position, share, score, tuple(accepted_back), largest_accepted, smallest_rejected)


History = Sequence[Value]
"""What is kept of a text's earlier rounds: the last three fields of `RoundContext`, flattened."""

NO_HISTORY: tuple[float, ...] = (*[-1.0] * ROUNDS_BACK, 0.0, 0.0)
"""The history before a text's first round."""


def history_after(
    history: History, accepted: Value, largest_accepted: Value, smallest_rejected: Value
) -> tuple[Value, ...]:
    """Returns the history with one more round.

    The arguments are fields of the engine's `Verified`, with 0 where it has no score.
    """
    return (accepted, *history[: ROUNDS_BACK - 1], largest_accepted, smallest_rejected)


_PLACE = ("share", "score", "position", "step", "accepted_1_back", "accepted_2_back", "accepted_3_back",
          "spared", "refused")  # fmt: skip
_SHAPE = ("entropy", "varentropy", "top1", "top2", "margin")
_BEFORE = ("previous_entropy", "previous_top1", "previous_probability", "previous_kind", "earlier_entropy",
           "earlier_top1", "product", "entropies")  # fmt: skip
_TOKEN = ("probability", "kind", "ends")

FEATURES = (*_PLACE, *_SHAPE, *_BEFORE, *_TOKEN)
"""Names of the features, in the order of `feature_values`."""

Forecast = Literal["accepting", "next"]
"""What the two models of a predictor forecast: `accepting` a_j, `next` b_{j+1}."""

ROLES: tuple[Forecast, ...] = ("accepting", "next")

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
        context.share, context.score, context.position, float(len(steps)), *context.accepted_back,
        context.largest_accepted, context.smallest_rejected,
        now.entropy, now.varentropy, now.top1, now.top2, now.top1 - now.top2,
        previous.entropy, previous.top1, previous.probability, previous.kind, earlier.entropy, earlier.top1,
        product, entropies,
        now.probability, now.kind, now.ends,
    ]  # fmt: skip


def matrix(values: Sequence[Value]) -> Array:
    """Stacks the values of n rows into (n, features) in float64; a float is repeated for all rows."""
    return np.column_stack(np.broadcast_arrays(*values)).astype(np.float64)


MEASURED = ("entropy", "varentropy", "top1", "top2", "probability")
"""Names of the columns that `measure` returns; in traces they have the prefix draft_."""

_NEVER = -1e4  # stands for -inf, since 0 · -inf is NaN; its exponential is 0 too


def measure(logits: Tensor, drawn: Tensor) -> Tensor:
    """Returns the statistics `MEASURED` of each row, (B, 5) in fp32.

    Tokens with a logit of -inf have probability 0. A row with a logit of NaN or +inf has NaN at least in `top1`.

    Args:
        logits: (B, V) raw logits of any floating type, V >= 2.
        drawn: (B,) ids of the drafted tokens.
    """
    log = torch.log_softmax(logits.float(), -1).clamp_min_(_NEVER)
    q = log.exp()
    weighted = q * log
    first = weighted.sum(-1, True)  # -entropy
    second = weighted.mul_(log).sum(-1, True)
    varentropy = second.addcmul_(first, first, value=-1.0)
    parts = first, varentropy, q.topk(2).values, q.gather(-1, drawn.unsqueeze(-1))
    return torch.cat(parts, -1).abs_()  # all are >= 0: this turns -entropy round, and rounding errors of 0


KINDS = ("inside a word", "digit", "begins a word", "punctuation", "line break", "space")
"""Names of the kinds, by their index."""

_INSIDE, _DIGIT, _BEGINS, _PUNCTUATION, _BREAK, _SPACE = range(len(KINDS))
# How byte-level and SentencePiece tokenizers write white space.
_WRITTEN = {"Ġ": " ", "▁": " ", "Ċ": "\n", "č": "\r", "ĉ": "\t", "<0x0A>": "\n", "</w>": ""}


@dataclass(frozen=True)
class TokenKinds:
    """Tables over the vocabulary.

    V exceeds every id of the tokenizer and leaves room for ids that only models have: their output layers are padded,
    and a draft may draw a token from the padding.

    Args:
        kind: (V,) float64 indices into `KINDS`.
        ends: (V,) float64, 1 where the id ends a text, else 0.
    """

    kind: Array
    ends: Array

    @classmethod
    def of(cls, tokenizer: Any, eos: Collection[int]) -> Self:
        """Builds the tables of a `transformers` tokenizer and the ids that end a text."""
        known = len(tokenizer)
        size = max(1 << known.bit_length(), 1 + max(eos, default=0))
        kind, ends = np.zeros(size), np.zeros(size)
        kind[:known] = [_kind(written) for written in tokenizer.convert_ids_to_tokens(range(known))]
        ends[list(eos)] = 1.0
        return cls(kind, ends)


def _kind(written: str | None) -> int:
    """Returns the index of a token's kind by its text; None is an id that the tokenizer does not use."""
    text = written or ""
    for mark, meaning in _WRITTEN.items():
        text = text.replace(mark, meaning)
    if "\n" in text or "\r" in text:
        return _BREAK
    if any(character.isdecimal() for character in text):
        return _DIGIT
    if text.isspace():
        return _SPACE
    if text and not any(character.isalnum() for character in text):
        return _PUNCTUATION
    return _BEGINS if text[:1].isspace() else _INSIDE


COLUMNS = ("drafted", *(f"draft_{name}" for name in MEASURED))
"""Columns of the traces that `drafted` reads."""

STATE = "draft_hidden"  # column of the draft's last hidden state


def drafted(columns: Mapping[str, Array], rows: Array, kinds: TokenKinds) -> Drafted:
    """Returns the tokens drafted at these rows (n,)."""
    token = columns["drafted"][rows]
    entropy, varentropy, top1, top2, probability = (
        columns[f"draft_{name}"][rows].astype(np.float64) for name in MEASURED
    )
    return Drafted(entropy, varentropy, top1, top2, probability, kinds.kind[token], kinds.ends[token])


def states_of(columns: Mapping[str, Array]) -> Array | None:
    """Returns the draft's hidden state in every row, (rows, H), or None where the columns do not hold it."""
    return np.stack(list(columns[STATE])) if STATE in columns else None


def state_at(states: Array | None, rows: Array) -> tuple[Value, ...]:
    """Returns the hidden state at these rows (n,) as H arrays (n,), or nothing where there are no states."""
    return () if states is None else tuple(states[rows].T.astype(np.float64))


def round_context(starts: RoundStarts, scale: ShareScale | None) -> RoundContext:
    """Returns the context of rounds whose memory begins with a history, see `updated_history`.

    Without a scale, or where the rule has no threshold, the share and the score are 0.
    """
    share, score = np.zeros(len(starts.rows)), 0.0
    if scale is not None and starts.score is not None:
        share = scale.of_all(starts.score, starts.lanes.thresholds)
        score = float(scale.index(starts.score))
    position = starts.columns["position"][starts.rows].astype(np.float64)
    return RoundContext.after(_history(starts.memory), position, share, score)


def updated_history(memory: Array, verified: Verified) -> Array:
    """Returns the history (n, 5) with one more round; columns of `memory` beyond the history are left out."""
    largest_accepted, smallest_rejected = (
        np.nan_to_num(each, nan=0.0) for each in (verified.largest_accepted, verified.smallest_rejected)
    )
    accepted = verified.accepted.astype(np.float64)
    return np.stack(
        [np.asarray(value) for value in history_after(_history(memory), accepted, largest_accepted, smallest_rejected)],
        1,
    )


def _history(memory: Array) -> tuple[Array, ...]:
    return tuple(memory.T[: len(NO_HISTORY)])
