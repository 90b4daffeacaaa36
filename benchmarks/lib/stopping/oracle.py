"""The oracle in the engine, which drafts exactly as many tokens as will be accepted.

It uses what rounds accepted when the same problems were decoded with the longest draft. Under `fsd-coupled`, the
target's token after a whole draft is the one that would have followed a rejection at that position. So the text and its
rounds are those of the longest draft, without the rejected tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsd_calib.tasks.base import Problem
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.policies.stopping import DraftState, StopPolicy, Verified
from lib.stopping.decode import Contestant, Setting

LONGEST = Contestant("the longest draft")


class Oracle(StopPolicy):
    """A stop policy with given draft lengths.

    Args:
        lengths: of each round, by the problem's id. Later rounds, which exist where rounding changed a text, draft one
            token.
    """

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


def oracle_contestant(setting: Setting, problems: Sequence[Problem], batch_size: int) -> Contestant:
    """Decodes problems with the longest draft, and returns the oracle for decoding them at the same batch size.

    The batch size matters because rounding depends on it. Where no token will be accepted, the draft still takes one
    step, by which the engine keeps its KV cache complete.
    """
    lengths_of: dict[int, list[int]] = {problem.id: [] for problem in problems}

    def observe(record: RoundRecord) -> None:
        for request, accepted in zip(record.requests, record.accepted.tolist(), strict=True):
            if request is not None:
                lengths_of[request.key].append(accepted)

    results = setting.decode(problems, LONGEST, batch_size, observe)
    for problem, result in zip(problems, results, strict=True):
        lengths = lengths_of[problem.id]
        lengths[-1] = result.accepted - sum(lengths[:-1])  # tokens after the text's end do not count
    return Contestant("oracle", policy=Oracle(lengths_of))
