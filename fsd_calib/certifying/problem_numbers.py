"""Problems by the numbers that the ledger knows them by: two each, the id and the content key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]  # (n, 2): id and key of each problem


class Numbered(Protocol):
    """`id` is of the raw content, `key` of the normalised one: problems of one key are the same problem."""

    @property
    def id(self) -> int: ...

    @property
    def key(self) -> int: ...


class ById(NamedTuple):
    """A problem of which an id is all that was recorded. It is the key too where the text was in its normal form."""

    id: int

    @property
    def key(self) -> int:
        return self.id


def numbers(problems: Iterable[Numbered]) -> Numbers:
    """In the problems' order."""
    return np.array([(problem.id, problem.key) for problem in problems], np.int64).reshape(-1, 2)


def as_set(found: Numbers) -> Numbers:
    """Each problem once, sorted: equal sets are equal arrays."""
    return np.unique(found, axis=0)


def known(asked: Numbers, before: Numbers) -> NDArray[np.bool_]:
    """(n,): whether a problem is one of those before: by its key, or by its id where of them an id was all that was
    recorded. Ids by themselves tell nothing apart, since another task may count its problems from 0 as well."""
    return np.asarray(np.isin(asked, before[:, 1]).any(1))
