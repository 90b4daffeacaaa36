"""A bounded store of graphs, which drops those that were not used for longest."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")

MOST = 256
"""Graphs kept. One setting needs about three (draft, verify, judge) for each batch size, a power of two, and each
doubling of the text: 150 cover batches up to 64 of texts up to 8k. Without a bound, a server that receives any number
of different temperatures would fill its memory."""


class RecentlyUsed(Generic[Value]):
    """The values of the keys used last, at most `MOST`. Warns once when the first is dropped."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Value] = {}  # in order of the latest use
        self._warned = False

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Returns the key's value, made where there is none."""
        value = self._kept.pop(key, None)
        return self.put(key, make() if value is None else value)

    def put(self, key: Hashable, value: Value) -> Value:
        """Stores the value as the one used last, and returns it."""
        self._kept.pop(key, None)
        self._kept[key] = value
        if len(self._kept) > MOST:
            self._kept.pop(next(iter(self._kept)), None)
            self._warn()
        return value

    def values(self) -> list[Value]:
        """The values, the one used last at the end."""
        return list(self._kept.values())

    def _warn(self) -> None:
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            f"more than {MOST} graphs were needed, so those not used for longest are dropped, and made again when they "
            "are: that takes time; use fewer batch sizes, draft lengths and sampling settings, or compile=False",
            stacklevel=2,
        )
