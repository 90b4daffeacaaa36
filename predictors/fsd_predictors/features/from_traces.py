"""Inputs of the features, read from traces along the target and from the rounds simulated over them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fsd_collectors.replay.rounds import RoundStarts, Verified
from fsd_predictors.features.draft_distribution import MEASURED
from fsd_predictors.features.features import NO_HISTORY, Array, Drafted, RoundContext, Value, history_after
from fsd_predictors.features.share_scale import ShareScale
from fsd_predictors.features.token_kinds import TokenKinds

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

    Without a scale, or where the rule has no threshold, the share and the divergence are 0.
    """
    share, divergence = np.zeros(len(starts.rows)), 0.0
    if scale is not None and starts.divergence is not None:
        share = scale.of_all(starts.divergence, starts.lanes.thresholds)
        divergence = float(scale.index(starts.divergence))
    position = starts.columns["position"][starts.rows].astype(np.float64)
    return RoundContext.after(_history(starts.memory), position, share, divergence)


def updated_history(memory: Array, verified: Verified) -> Array:
    """Returns the history (n, 5) with one more round; columns of `memory` beyond the history are left out."""
    spared, refused = (np.nan_to_num(each, nan=0.0) for each in (verified.spared, verified.refused))
    accepted = verified.accepted.astype(np.float64)
    return np.stack([np.asarray(value) for value in history_after(_history(memory), accepted, spared, refused)], 1)


def _history(memory: Array) -> tuple[Array, ...]:
    return tuple(memory.T[: len(NO_HISTORY)])
