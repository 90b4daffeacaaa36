"""What is looked up in a whole vocabulary, once for a tokenizer. Knows tokenizers by their identity and size alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Table = TypeVar("Table")


def per_tokenizer(look: Callable[[Any], Table]) -> Callable[[Any], Table]:
    """`look`, which remembers: policies are made anew for every call of the decoder, and a look takes seconds."""
    known: WeakKeyDictionary[Any, dict[int, Table]] = WeakKeyDictionary()  # by size: tokens may be added

    def found(tokenizer: Any) -> Table:
        tables = known.setdefault(tokenizer, {})
        if len(tokenizer) not in tables:
            tables[len(tokenizer)] = look(tokenizer)
        return tables[len(tokenizer)]

    return found
