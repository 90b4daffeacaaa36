"""Digests of facts, for keys, names and checks."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def facts_digest(facts: Any) -> str:
    """Returns the SHA-256 (hex) of facts, written as JSON with sorted keys; what JSON has no type for is its text."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
