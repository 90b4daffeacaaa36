"""Digests of facts, for keys, names and checks, and where two sets of facts differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def facts_digest(facts: Any) -> str:
    """Returns the SHA-256 (hex) of facts, written as JSON with sorted keys; what JSON has no type for is its text."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def difference(own: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Returns name (`outer.inner`), own and other value of the first innermost entry that differs; None: all agree."""
    for name in dict.fromkeys((*own, *other)):
        mine, theirs = own.get(name), other.get(name)
        if isinstance(mine, dict) and isinstance(theirs, dict) and mine.keys() == theirs.keys():
            if inner := difference(mine, theirs):
                return f"{name}.{inner[0]}", *inner[1:]
        elif mine != theirs:
            return name, mine, theirs
    return None
