"""What a stopping rule is asked while a round is drafted, one token after another.

Knows rounds as numbers, of one row or of many at once. Knows neither the engine nor traces: `in_loop.py` and
`in_replay.py` ask the same rules there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fsd_predictors.features.features import Array, Drafted, Place, Value

Answer = bool | Array  # (n,) bool of n rows
Kept = tuple[Value, ...]


@dataclass
class Round:
    """A round as far as it is drafted, of one row (all values are floats) or of n (arrays).

    kept: what the rule has made of the row's earlier rounds. survival: for the rule to carry from token to token.
    state: the draft's last hidden state, which gave the last token's q; empty unless the rule reads it.
    """

    place: Place
    kept: Kept = ()
    steps: list[Drafted] = field(default_factory=list)
    survival: Value = 1.0
    state: Sequence[Value] = ()


class StoppingRule:
    """Asked after each drafted token; the first of a round is always drafted.

    name: of the kind. kept: what a row has of its rounds before the first. reads_threshold: T has a say.
    reads_state: so has the draft's hidden state.
    """

    name: str
    kept: Kept = ()
    reads_threshold: bool = False
    reads_state: bool = False

    @property
    def identity(self) -> str:
        """The kind and all its numbers: two rules of one identity stop alike."""
        raise NotImplementedError

    def goes_on(self, drafting: Round) -> Answer:
        """Whether to draft one more token. Never behind one that ends the text: nothing counts there."""
        ends = drafting.steps[-1].ends
        if isinstance(ends, float):
            return not ends and self.wants_more(drafting)
        more: Array = np.logical_and(ends == 0.0, self.wants_more(drafting))
        return more

    def wants_more(self, drafting: Round) -> Answer:
        """The same, of a text that has not ended."""
        raise NotImplementedError

    def remembers(self, kept: Kept, drafted: Value, accepted: Value) -> Kept:
        """What a row keeps once a round is verified."""
        return kept


def numbers(*values: float) -> str:
    """As an identity shows them: shortest digits that give the very number back."""
    return ", ".join(repr(float(value)) for value in values)
