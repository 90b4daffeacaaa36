"""The interface of stopping rules, which decide after each drafted token whether to draft one more.

Rules work on floats (one row) or arrays (many rows) alike; `in_loop.py` runs them while decoding, `in_replay.py` over
traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fsd_predictors.features.features import Array, Drafted, RoundContext, Value

Answer = bool | Array  # (n,) bool of n rows
Kept = tuple[Value, ...]  # what a rule keeps of a row's rounds


@dataclass
class Round:
    """A round being drafted, of one row (all values are floats) or of n rows (arrays).

    Args:
        context: what was known before the round.
        kept: what the rule keeps of the row's earlier rounds, see `StoppingRule.remembers`.
        steps: the tokens drafted so far.
        survival: S, for the rule to carry from token to token.
        state: the draft's last hidden state, which gave the last token's q; empty unless the rule reads it.
    """

    context: RoundContext
    kept: Kept = ()
    steps: list[Drafted] = field(default_factory=list)
    survival: Value = 1.0
    state: Sequence[Value] = ()


class StoppingRule:
    """Decides after each drafted token whether to draft one more; the first of a round is always drafted.

    Attributes:
        name: name of the kind of rule.
        kept: what is kept of a row before its first round.
        reads_threshold: whether decisions depend on T.
        reads_state: whether they depend on the draft's hidden state.
    """

    name: str
    kept: Kept = ()
    reads_threshold: bool = False
    reads_state: bool = False

    @property
    def identity(self) -> str:
        """Name and parameters: two rules of the same identity stop alike."""
        raise NotImplementedError

    def goes_on(self, drafting: Round) -> Answer:
        """Returns whether to draft one more token; never after one that ends the text."""
        ends = drafting.steps[-1].ends
        if isinstance(ends, float):
            return not ends and self.wants_more(drafting)
        more: Array = np.logical_and(ends == 0.0, self.wants_more(drafting))
        return more

    def wants_more(self, drafting: Round) -> Answer:
        """Returns whether to draft one more token of a text that has not ended."""
        raise NotImplementedError

    def remembers(self, kept: Kept, drafted: Value, accepted: Value) -> Kept:
        """Returns what is kept of a row once a round is verified."""
        return kept


def numbers(*values: float) -> str:
    """Formats numbers for an identity: the shortest digits that restore them exactly."""
    return ", ".join(repr(float(value)) for value in values)
