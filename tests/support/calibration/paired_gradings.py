"""Paired gradings of target and fuzzy rule, for tests of certificates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fsd_calib.certification.outcomes import Paired
from fsd_decoding.profile.certificate import OutcomeCounts


def paired(outcomes: OutcomeCounts, rng: np.random.Generator | None = None) -> Paired:
    """Returns gradings with these counts, one seed per problem; in random order if a generator is given."""
    o = outcomes
    kind = np.repeat(np.arange(4), [o.both_right, o.lost, o.gained, o.both_wrong])
    if rng is not None:
        rng.shuffle(kind)
    return Paired((kind <= 1)[:, None], (kind % 2 == 0)[:, None])


def first(whole: Paired, problems: int) -> Paired:
    """Returns the gradings of the first problems."""
    return Paired(whole.target[:problems], whole.fuzzy[:problems])


class Prefixes:
    """Growing prefixes of one candidate's gradings; `decoded` is the size of the last prefix that was requested."""

    def __init__(self, whole: Paired, sizes: Sequence[int] = ()) -> None:
        self.whole, self.sizes, self.decoded = whole, [*sizes, whole.problems], 0

    def __iter__(self) -> Iterator[Paired]:
        for size in self.sizes:
            self.decoded = size
            yield first(self.whole, size)
