"""Tells the ledger which tuning problems have a say in a choice, before they have it."""

from __future__ import annotations

from collections.abc import Sequence

from fsd_calib.certifying.attempts import Ledger
from fsd_calib.measuring.bench import Decode
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.measurement import Seeds
from fsd_calib.tasks import Problem


class Tuned:
    """What this process told of one family; a problem is told once."""

    def __init__(self, ledger: Ledger, family: str) -> None:
        self._ledger, self._family = ledger, family
        self._told: set[int] = set()

    def mark(self, problems: Sequence[Problem]) -> None:
        """From here on no attempt may ask them."""
        new = [problem for problem in problems if problem.id not in self._told]
        if new:
            self._ledger.tuned_on(self._family, new)
            self._told.update(problem.id for problem in new)

    def before(self, decode: Decode) -> Decode:
        """The same, marking problems that are decoded under a threshold: of a threshold's outcomes a choice is made,
        while the target and lossless rules leave none."""

        def marked(configuration: Configuration, problems: Sequence[Problem]) -> Sequence[Seeds]:
            if configuration.threshold is not None:
                self.mark(problems)
            return decode(configuration, problems)

        return marked
