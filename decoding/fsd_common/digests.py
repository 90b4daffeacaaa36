"""Digests of facts, for keys, names and checks."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def facts_digest(facts: Any) -> str:
    """Returns the SHA-256 (hex) of facts of JSON types, written as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
