"""What the target's own texts of a block show: whose answers are right, and what replay along them expects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from fsd_collectors.replay import sweep
from fsd_collectors.store.reading import Traces
from lib.common.results import machine_facts

LENGTHS = 1, 3, 5, 8, 12
"""Draft lengths of replay."""


class Replayed(NamedTuple):
    """A rule along the texts of a block. substitutions: tokens that the exact rule would replace."""

    rule: str
    score: str | None  # None, and the threshold too: of a lossless rule
    threshold: float | None
    draft_length: int
    tokens: int
    rounds: int
    substitutions: int


class Along(NamedTuple):
    """What the texts of a block show.

    Args:
        processor: on which they were decoded.
        target, draft: whether each alone solves each problem.
        tokens: of the target's texts.
    """

    processor: str
    target: list[bool]
    draft: list[bool]
    tokens: int
    replayed: list[Replayed]

    @classmethod
    def of(
        cls, ids: Sequence[int], target: Traces, draft: Traces, rules: Sequence[str],
        thresholds: Mapping[str, Sequence[float]],
    ) -> Self:  # fmt: skip
        """Returns what traces along the texts of both alone show.

        Args:
            ids: of the problems, in their order.
            rules: those that are replayed, the fuzzy one at each T of each score.
        """
        right, of_draft = (_right(traces, ids) for traces in (target, draft))
        frame = sweep(target, rules, tuple(thresholds), thresholds, LENGTHS)
        rows = frame[list(Replayed._fields)].astype(object)
        replayed = [Replayed._make(row) for row in rows.where(rows.notna(), None).itertuples(index=False, name=None)]
        return cls(machine_facts()["processor"], right, of_draft, int(frame["tokens"].max()), replayed)

    @classmethod
    def read(cls, path: Path) -> Self:
        found = json.loads(path.read_text())
        return cls(**found | {"replayed": [Replayed._make(each) for each in found["replayed"]]})

    def at(self, rule: str, score: str | None, threshold: float | None, draft_length: int) -> Replayed | None:
        """Returns what was replayed of a setting; None: it cannot be."""
        wanted = rule, score, threshold, draft_length
        return next((each for each in self.replayed if each[:4] == wanted), None)


def _right(traces: Traces, ids: Sequence[int]) -> list[bool]:
    found = traces.to_pandas(["problem", "correct"], table="completions").set_index("problem")["correct"]
    return [bool(each) for each in found.loc[list(ids)]]
