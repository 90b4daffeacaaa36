"""What can be wrong with what a user gave. Knows no other module."""

from __future__ import annotations

from typing import Any


class UsageError(ValueError):
    """An input breaks a rule. The message is one line: the thing, its value, the rule, the way out."""


class UnfinishedError(UsageError):
    """Decoding had to stop. `finished` holds what was done by then: prompt index -> `Result`."""

    finished: dict[int, Any]


class NumericalError(UnfinishedError):
    """A model gave logits that are NaN or +inf."""


class ThresholdError(UnfinishedError):
    """A threshold policy gave a T that is NaN, or a negative scale."""


class OutOfMemoryError(UnfinishedError):
    """The batch does not fit into memory."""
