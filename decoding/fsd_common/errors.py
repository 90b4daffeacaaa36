"""Exceptions of the decoding package."""

from __future__ import annotations

from typing import Any


class UsageError(ValueError):
    """An invalid input. The message is one line: the input, its value, the rule it breaks and the way out."""


def in_one_line(error: BaseException) -> str:
    """Returns what a library's error says in one line of at most 300 characters; its type if it says nothing.

    Checks of pydantic and transformers name a field in the first line, and what is wrong with it in the next.
    """
    return " ".join(str(error).split())[:300].rstrip(". ") or type(error).__name__


class UnfinishedError(UsageError):
    """Decoding had to stop early. `finished` holds the results completed by then: prompt index -> `Result`."""

    finished: dict[int, Any]


class NumericalError(UnfinishedError):
    """A model returned logits that are NaN or +inf."""


class ThresholdError(UnfinishedError):
    """A threshold policy returned a T that is NaN, or a negative scale."""


class OutOfMemoryError(UnfinishedError):
    """The batch does not fit into memory."""
