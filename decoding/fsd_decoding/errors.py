"""What can be wrong with what a user gave. Knows no other module."""

from __future__ import annotations

from typing import Any


class UsageError(ValueError):
    """An input breaks a rule. The message is one line: the thing, its value, the rule, the way out."""


class NumericalError(UsageError):
    """A model gave logits that are NaN or +inf. `finished` holds what was done by then: index -> `Result`."""

    finished: dict[int, Any]
