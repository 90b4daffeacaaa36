"""Engines that certify one setting in turn, as one frozen sequence: a fixed sequence of tests, each at the full level.

The first engine's attempt freezes the names and arguments of all. A later one is tested only where those before it have
passed, and once, which keeps the probability of any false certificate below the level (Maurer, Hothorn, Lehmacher
1995), as with the settings of a sequence.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSequence:
    """Engines that certify in turn.

    Attributes:
        engines: Names and arguments (as JSON), in the order in which they certify.
        place: Of the one that certifies now, from 0.
        attempt: Number of the attempt that the first of them opened; None for the first itself.
    """

    engines: tuple[tuple[str, str], ...]
    place: int = 0
    attempt: int | None = None

    def __str__(self) -> str:
        """Whatever its attempt's number is: that follows from the rest."""
        return json.dumps([self.engines, self.place])
