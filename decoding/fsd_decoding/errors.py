"""Exceptions of the decoding package."""

from __future__ import annotations

from typing import Any


class UsageError(ValueError):
    """An invalid input. The message is one line: the input, its value, the rule it breaks and the way out."""


class UnfinishedError(UsageError):
    """Decoding had to stop early. `finished` holds the results completed by then: prompt index -> `Result`."""

    finished: dict[int, Any]


class NumericalError(UnfinishedError):
    """A model returned logits that are NaN or +inf."""


class ThresholdError(UnfinishedError):
    """A threshold policy returned a T that is NaN, or a negative scale."""


class OutOfMemoryError(UnfinishedError):
    """The batch does not fit into memory."""
