"""A random sample of bounded size from a stream of rows, which keeps groups of rows whole.

Every group has a random key, and the groups with the smallest keys are kept (bottom-k sampling, Cohen and Kaplan
2007): all groups are equally likely to be kept, however many follow.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fsd_predictors.features.features import Array

_KEY = "key"


class Sample:
    """Named tables of rows, of which the largest keeps at most `limit` rows.

    `below` bounds the keys: groups whose key is not smaller need not be added any more.
    """

    def __init__(self, limit: int) -> None:
        self.below = 1.0
        self._limit = limit
        self._tables: dict[str, list[Mapping[str, Array]]] = {}

    def add(self, table: str, keys: Array, columns: Mapping[str, Array]) -> None:
        """Adds rows to a table.

        Args:
            keys: (n,) keys of the rows' groups, in [0, 1).
            columns: (n, …) each; the same names in every call.
        """
        parts = self._tables.setdefault(table, [])
        parts.append({_KEY: keys, **columns})
        if sum(len(part[_KEY]) for part in parts) > 2 * self._limit:
            self._thin()

    def columns(self, table: str) -> Mapping[str, Array]:
        """Returns the kept rows of a table, with their keys."""
        self._thin()
        return self._tables[table][0]

    def _thin(self) -> None:
        whole = {table: _joined(parts) for table, parts in self._tables.items()}
        for columns in whole.values():
            if len(keys := columns[_KEY]) > self._limit:
                self.below = min(self.below, float(np.partition(keys, self._limit)[self._limit]))
        self._tables = {table: [_below(columns, self.below)] for table, columns in whole.items()}


def _joined(parts: list[Mapping[str, Array]]) -> Mapping[str, Array]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _below(columns: Mapping[str, Array], key: float) -> Mapping[str, Array]:
    kept = columns[_KEY] < key
    return columns if kept.all() else {name: column[kept] for name, column in columns.items()}
