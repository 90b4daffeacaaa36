"""Ids of problems as one text: what a trained draft or predictor was trained on, for a JSON file."""

from __future__ import annotations

import base64
from collections.abc import Iterable

import numpy as np

PATTERN = r"^[A-Za-z0-9+/]*=*$"
_ID = "<i8"


def pack_ids(ids: Iterable[int]) -> str:
    """Encodes ids, sorted, in base64: as a list each would take a line."""
    return base64.b64encode(np.array(sorted(ids), _ID).tobytes()).decode()


def unpack_ids(packed: str) -> frozenset[int]:
    """Returns what `pack_ids` encoded. ValueError: it is no such text."""
    return frozenset(np.frombuffer(base64.b64decode(packed, validate=True), _ID).tolist())
