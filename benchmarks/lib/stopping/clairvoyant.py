"""The oracle in the engine: drafts exactly as many tokens as will be accepted.

Knows what rounds accepted when the same problems were decoded with the longest draft. The target's token that follows
a whole draft is, under `fsd-coupled`, the very one that would have followed a rejection in that place: so the text and
its rounds are those of the longest draft, and only what was drafted in vain is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsd_calib.tasks.base import Problem
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.policies.stopping import DraftState, StopPolicy, Verified
from lib.stopping.decode import Contestant, Setting

LONGEST = Contestant("the longest draft")


class Clairvoyant(StopPolicy):
    """lengths: by the problem's id, of each round. Beyond them, where rounding changed a text, one token a round."""

    def __init__(self, lengths: dict[int, list[int]]) -> None:
        self._lengths = lengths

    def goes_on(self, state: DraftState) -> list[bool]:
        drafted = len(state.logits)
        return [row is not None and drafted < self._aim(row.request.key, row.memory or 0) for row in state.rows]

    def remember(self, memory: Any, verified: Verified) -> int:
        return (memory or 0) + 1

    def _aim(self, problem: int, round_: int) -> int:
        lengths = self._lengths[problem]
        return lengths[round_] if round_ < len(lengths) else 1


def clairvoyant(setting: Setting, problems: Sequence[Problem], batch_size: int) -> Contestant:
    """For decoding at the same batch size, which rounding depends on.

    Where nothing will be accepted the draft takes a step all the same: the engine has it read on.
    """
    seen: dict[int, list[int]] = {problem.id: [] for problem in problems}

    def look(record: RoundRecord) -> None:
        for request, accepted in zip(record.requests, record.accepted.tolist(), strict=True):
            if request is not None:
                seen[request.key].append(accepted)

    results = setting.decode(problems, LONGEST, batch_size, look)
    for problem, result in zip(problems, results, strict=True):
        lengths = seen[problem.id]
        lengths[-1] = result.accepted - sum(lengths[:-1])  # nothing counts behind the text's end
    return Contestant("oracle", policy=Clairvoyant(seen))
