"""Thresholds by how much of the draft they accept: quantiles of D over a trace, in one pass and 8 MB.

Knows one column of a trace. Knows nothing of rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fsd_collectors.float_bins import FloatBins
from fsd_collectors.replay.blocks import Array, Traces, blocks
from fsd_decoding.errors import UsageError

_LOWEST, _HIGHEST = 0.1, 0.999  # shares of a grid
_BINS = FloatBins(kept=11)  # narrower than 0.05 % of what they hold


def quantiles(traces: Traces, divergence: str, shares: Sequence[float] | Array, where: Any = None) -> Array:
    """For each share the smallest threshold in sight that accepts so much of all rows by D alone.

    A quantile is the largest number of its bin. It thus accepts no less than its share, and lies above the smallest
    threshold that does by less than 0.05 %.

    Args:
        shares: each in (0, 1].

    Returns:
        (len(shares),) float64; inf where the share takes more rows than have a finite D.
    """
    wanted = np.asarray(shares, np.float64)
    if not ((wanted > 0) & (wanted <= 1)).all():
        raise UsageError(f"shares are {list(shares)!r:.80}; each must be above 0 and at most 1")
    check_divergence(traces, divergence)
    counts = np.zeros(_BINS.count, np.int64)
    for block in blocks(traces, [divergence], where):
        counts += np.bincount(_BINS.of(block.columns[divergence].astype(np.float32)), minlength=_BINS.count)
    bins = np.searchsorted(counts.cumsum(), wanted * counts.sum())
    return np.asarray(_BINS.edges[np.minimum(bins, _BINS.infinite)], np.float64)


def even_shares(count: int) -> Array:
    """So many shares from .1 to .999, even in their logit: retention moves where nearly all is accepted."""
    low, high = (np.log(u / (1 - u)) for u in (_LOWEST, _HIGHEST))
    odds = np.linspace(low, high, count)
    return np.asarray(1 / (1 + np.exp(-odds)))


def check_divergence(traces: Traces, name: str) -> None:
    """UsageError where the traces hold no such divergence."""
    held = traces.manifest.divergences
    if name not in held:
        raise UsageError(f"these traces hold no divergence {name!r}, only {', '.join(held)}; collect again with it")
