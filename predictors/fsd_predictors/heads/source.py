"""The prompts that a head learns from."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Source:
    """The prompts whose completions by the target a head learns from.

    Args:
        name: of the task.
        prompts: of problems for tuning alone, in random order.
        max_new_tokens: the longest completion.
        stop: strings that end one.
    """

    name: str
    prompts: tuple[str, ...]
    max_new_tokens: int
    stop: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all of it."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()
