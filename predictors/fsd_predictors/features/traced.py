"""What traces along the target tell of rounds laid over them, in the words of `features.py`.

Knows columns of traces and rounds in replay. Knows no formula of features and no model.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fsd_collectors.replay.rounds import Begins, Verified
from fsd_predictors.features.draft_distribution import MEASURED
from fsd_predictors.features.features import NO_HISTORY, Array, Drafted, Place, Value, history_after
from fsd_predictors.features.share_scale import ShareScale
from fsd_predictors.features.token_kinds import TokenKinds

COLUMNS = ("drafted", *(f"draft_{name}" for name in MEASURED))
"""Those that `drafted` reads."""

STATE = "draft_hidden"


def drafted(columns: Mapping[str, Array], rows: Array, kinds: TokenKinds) -> Drafted:
    """The tokens drafted at these rows (n,)."""
    token = columns["drafted"][rows]
    entropy, varentropy, top1, top2, probability = (
        columns[f"draft_{name}"][rows].astype(np.float64) for name in MEASURED
    )
    return Drafted(entropy, varentropy, top1, top2, probability, kinds.kind[token], kinds.ends[token])


def states_of(columns: Mapping[str, Array]) -> Array | None:
    """The draft's state in every row, (rows, H); None: it is not among the columns."""
    return np.stack(list(columns[STATE])) if STATE in columns else None


def state_at(states: Array | None, rows: Array) -> tuple[Value, ...]:
    """Of these rows (n,), behind which a model reads its numbers: H of them, (n,) each."""
    return () if states is None else tuple(states[rows].T.astype(np.float64))


def place(begins: Begins, scale: ShareScale | None) -> Place:
    """Where these rounds stand; without a scale, or a divergence that T bounds, as if at T's and its zero.

    Their memory begins with what `remembered` makes.
    """
    share, divergence = np.zeros(len(begins.rows)), 0.0
    if scale is not None and begins.divergence is not None:
        share = scale.of_all(begins.divergence, begins.lanes.thresholds)
        divergence = float(scale.index(begins.divergence))
    position = begins.columns["position"][begins.rows].astype(np.float64)
    return Place.behind(_history(begins.memory), position, share, divergence)


def remembered(memory: Array, verified: Verified) -> Array:
    """History (n, 5) with one more round; of a wider memory, whose first columns it is, too."""
    spared, refused = (np.nan_to_num(found, nan=0.0) for found in (verified.spared, verified.refused))
    accepted = verified.accepted.astype(np.float64)
    return np.stack([np.asarray(value) for value in history_after(_history(memory), accepted, spared, refused)], 1)


def _history(memory: Array) -> tuple[Array, ...]:
    return tuple(memory.T[: len(NO_HISTORY)])
