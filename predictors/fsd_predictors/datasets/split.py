"""Which problems fit the models, which calibrate them, and which say how good they are.

Knows problems' ids, and the part that a problem has in a calibration of thresholds: only tuning ones may be used, or
certificates would be given on problems that the predictor has seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fsd_collectors.store.reading import Traces
from fsd_decoding.errors import UsageError

LEAST = 50  # problems: with fewer, calibration and figures are noise
_TUNING = ("split", "==", "tuning")

_SALT = b"fsd-calib/predictor/1\n"
_CALIBRATION, _EVALUATION = 0.2, 0.2  # shares


@dataclass(frozen=True)
class Division:
    """Ids of problems; none is in two."""

    training: tuple[int, ...]
    calibration: tuple[int, ...]
    evaluation: tuple[int, ...]


def divide(traces: Traces, limit: int | None = None) -> Division:
    """The traces' tuning problems, the first `limit` of them, by a hash that their ids alone decide.

    UsageError: they are too few.
    """
    table = traces.to_pandas(["problem"], where=[_TUNING], table="completions")
    ids = [int(each) for each in table["problem"].unique()[:limit]]
    if len(ids) < LEAST:
        raise UsageError(
            f"the traces hold {len(ids)} problems of the tuning part{'' if limit is None else ', by --limit'}; a "
            f"predictor needs {LEAST} at least, better 1000: collect more with fsd-collect"
        )
    ids.sort(key=_place)  # so that every part has its share, however few there are
    first, second = round(len(ids) * (1 - _CALIBRATION - _EVALUATION)), round(len(ids) * (1 - _EVALUATION))
    return Division(tuple(ids[:first]), tuple(ids[first:second]), tuple(ids[second:]))


def of_problems(ids: Sequence[int]) -> list[tuple[str, str, Any]]:
    """What chooses their rows, as `Traces.batches` takes it."""
    return [("problem", "in", list(ids))]


def _place(problem: int) -> bytes:
    return hashlib.sha256(_SALT + str(problem).encode()).digest()
