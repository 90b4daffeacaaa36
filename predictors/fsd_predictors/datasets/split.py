"""The split of a predictor's problems into training, calibration and evaluation.

Only problems of the tuning part are used: a certificate must not rest on problems that the predictor was trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fsd_collectors.store.reading import Traces
from fsd_common.errors import UsageError

LEAST = 50  # problems: with fewer, the calibration and the evaluation are noise
_TUNING = ("split", "==", "tuning")

_SALT = b"fsd-calib/predictor/1\n"
_CALIBRATION, _EVALUATION = 0.2, 0.2  # shares


@dataclass(frozen=True)
class ProblemSplit:
    """Ids of the problems of each part; the parts are disjoint."""

    training: tuple[int, ...]
    calibration: tuple[int, ...]
    evaluation: tuple[int, ...]


def split_problems(traces: Traces, limit: int | None = None) -> ProblemSplit:
    """Splits the first `limit` tuning problems of the traces by a hash of their ids.

    Raises:
        UsageError: there are too few.
    """
    table = traces.to_pandas(["problem"], where=[_TUNING], table="completions")
    ids = [int(each) for each in table["problem"].unique()[:limit]]
    if len(ids) < LEAST:
        raise UsageError(
            f"the traces hold {len(ids)} problems of the tuning part{'' if limit is None else ' within --limit'}; a "
            f"predictor needs at least {LEAST}, better 1000: collect more with fsd-collect"
        )
    ids.sort(key=_hash)  # shares of the sorted ids: exact even where there are few
    first, second = round(len(ids) * (1 - _CALIBRATION - _EVALUATION)), round(len(ids) * (1 - _EVALUATION))
    return ProblemSplit(tuple(ids[:first]), tuple(ids[first:second]), tuple(ids[second:]))


def problem_filter(ids: Sequence[int]) -> list[tuple[str, str, Any]]:
    """Returns the `where` of `Traces.batches` that selects the rows of these problems."""
    return [("problem", "in", list(ids))]


def _hash(problem: int) -> bytes:
    return hashlib.sha256(_SALT + str(problem).encode()).digest()
