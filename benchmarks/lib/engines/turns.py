"""Engines that take turns at the same work, and the draft length that is an engine's best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lib.common.timing import Spread, rates, take_turns
from lib.engines.work import Decoded, Work

Decode = Callable[[Work], Decoded]


@dataclass(frozen=True)
class Lengths:
    """The best L of an engine's `sd`, and tokens per CPU second at each L that was tried."""

    best: int
    tokens_per_cpu_second: Mapping[int, Spread]


def decode_in_turns(contestants: Mapping[str, Decode], work: Sequence[Work], repeats: int) -> dict[str, list[Decoded]]:
    """Returns what each contestant's repeats took, as `take_turns` does, after all have decoded the first piece."""
    take_turns(contestants, work[:1], 1)  # warms up
    return take_turns(contestants, work, repeats)


def best_length(exact: Mapping[int, Decode], work: Sequence[Work], repeats: int) -> Lengths:
    """Times an engine's `sd` at all L."""
    taken = decode_in_turns({str(length): decode for length, decode in exact.items()}, work, repeats)
    speeds = {length: rates([each.on_cpu for each in taken[str(length)]]) for length in exact}
    return Lengths(max(speeds, key=lambda length: speeds[length].median), speeds)
