"""Thresholds by the share of drafted tokens they accept: quantiles of D over traces, in one pass and 8 MB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fsd_collectors.float_bins import FloatBins
from fsd_collectors.replay.blocks import Array, Traces, blocks
from fsd_common.errors import UsageError

_LOWEST, _HIGHEST = 0.1, 0.999  # of `even_shares`
_BINS = FloatBins(kept=11)  # relative width below 0.05 %


def quantiles(traces: Traces, divergence: str, shares: Sequence[float] | Array, where: Any = None) -> Array:
    """Returns, for each share, a threshold that accepts this share of all rows by D alone.

    The threshold is the largest number of the quantile's bin. So it accepts no less than its share and is less than
    0.05 % above the smallest threshold that does.

    Args:
        traces: traces that hold the divergence.
        divergence: name of the divergence.
        shares: each in (0, 1].
        where: selects rows, see `Traces.batches`.

    Returns:
        (len(shares),) float64; inf where the share exceeds that of the rows with a finite D.

    Raises:
        UsageError: a share is out of range, the traces lack the divergence, or no rows are selected.
    """
    targets = np.asarray(shares, np.float64)
    if not ((targets > 0) & (targets <= 1)).all():
        raise UsageError(f"shares are {list(shares)!r:.80}; each must be above 0 and at most 1")
    check_divergence(traces, divergence)
    counts = np.zeros(_BINS.count, np.int64)
    for block in blocks(traces, [divergence], where):
        counts += np.bincount(_BINS.of(block.columns[divergence].astype(np.float32)), minlength=_BINS.count)
    bins = np.searchsorted(counts.cumsum(), targets * counts.sum())
    return np.asarray(_BINS.edges[np.minimum(bins, _BINS.infinite)], np.float64)


def even_shares(count: int) -> Array:
    """Returns `count` shares from .1 to .999, evenly spaced in logit: retention changes where most is accepted."""
    low, high = (np.log(u / (1 - u)) for u in (_LOWEST, _HIGHEST))
    odds = np.linspace(low, high, count)
    return np.asarray(1 / (1 + np.exp(-odds)))


def check_divergence(traces: Traces, name: str) -> None:
    """Raises UsageError where the traces do not hold the divergence."""
    available = traces.manifest.divergences
    if name not in available:
        raise UsageError(
            f"these traces hold no divergence {name!r}, only {', '.join(available)}; collect again with it"
        )
