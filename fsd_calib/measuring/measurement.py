"""The outcomes and counts of problems decoded under one configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fsd_calib.engines.configuration import Configuration
from fsd_collectors.split import Part


@dataclass(frozen=True)
class Decoding:
    """One problem under one configuration, with the noise of one seed."""

    correct: bool
    text: str
    tokens: int  # emitted, EOS included
    rounds: int
    drafted: int
    accepted: int


Seeds = tuple[Decoding, ...]
"""One problem's decodings, one per seed; greedy decoding has one."""


@dataclass(frozen=True, eq=False)
class Measurement:
    """One configuration on the first problems of a part, in the part's order."""

    configuration: Configuration
    part: Part
    decodings: Sequence[Seeds]

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """Grades, (problems, seeds)."""
        return np.array([[d.correct for d in seeds] for seeds in self.decodings], bool)

    @property
    def problems(self) -> int:
        return len(self.decodings)

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean())

    @property
    def tokens(self) -> int:
        return sum(d.tokens for seeds in self.decodings for d in seeds)

    @property
    def rounds(self) -> int:
        return sum(d.rounds for seeds in self.decodings for d in seeds)

    @property
    def drafted(self) -> int:
        return sum(d.drafted for seeds in self.decodings for d in seeds)

    @property
    def tokens_per_round(self) -> float:
        return self.tokens / self.rounds

    def first(self, problems: int) -> Measurement:
        """Returns the measurement on the first problems only."""
        return Measurement(self.configuration, self.part, self.decodings[:problems])
