"""Speeds of engines that take turns at the same work: the target alone, and `sd` at each engine's own best L."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lib.common.timing import Spread, rates, speed_up, take_turns
from lib.engines.processes import Served
from lib.engines.work import Decoded, Work

OURS, NOT_LEAN, VLLM, TRANSFORMERS = "ours", "ours, lean=False", "vLLM", "transformers"
TARGET, SD = "target", "sd"
Decode = Callable[[Work], Decoded]


@dataclass(frozen=True)
class Lengths:
    """The best L of an engine's `sd`, and tokens per CPU second at each L that was tried."""

    best: int
    tokens_per_cpu_second: Mapping[int, Spread]


@dataclass(frozen=True)
class Amount:
    """How much is decoded at one batch size.

    Args:
        piece: prompts that a contestant decodes at a time: half a second or more, as the first steps after another
            process had the core find its caches empty, unlike those of a server.
    """

    batch: int
    prompts: int
    choosing: int  # further prompts, that each engine's L is chosen on
    piece: int
    repeats: int
    choosing_repeats: int


@dataclass(frozen=True)
class Contestant:
    """What decodes with an engine's target alone, and with its `sd` by L."""

    target: Decode
    exact: Mapping[int, Decode]

    @classmethod
    def of(cls, served: Served, lengths: Sequence[int]) -> Contestant:
        """An engine that does both, with any L."""
        exact = {length: partial(served.decode, way=f"{SD} {length}") for length in lengths}
        return cls(partial(served.decode, way=TARGET), exact)


def decode_in_turns(contestants: Mapping[str, Decode], work: Sequence[Work], repeats: int) -> dict[str, list[Decoded]]:
    """Returns what each contestant's repeats took, as `take_turns` does, after all have decoded the first piece."""
    take_turns(contestants, work[:1], 1)  # warms up
    return take_turns(contestants, work, repeats)


def best_length(exact: Mapping[int, Decode], work: Sequence[Work], repeats: int) -> Lengths:
    """Times an engine's `sd` at all L."""
    taken = decode_in_turns({str(length): decode for length, decode in exact.items()}, work, repeats)
    speeds = {length: rates([each.on_cpu for each in taken[str(length)]]) for length in exact}
    return Lengths(max(speeds, key=lambda length: speeds[length].median), speeds)


def contest(contestants: Mapping[str, Contestant], work: Work, amount: Amount) -> dict[str, Any]:
    """Returns the speeds at one batch size.

    Args:
        contestants: by name.
        work: its first prompts are timed, and each engine's L is chosen on those after them.
    """
    pieces = work.pieces(amount.piece)
    timed, choosing = pieces[: amount.prompts // amount.piece], pieces[amount.prompts // amount.piece :]
    lengths = {name: best_length(each.exact, choosing, amount.choosing_repeats) for name, each in contestants.items()}
    ways = {_name(name, TARGET): each.target for name, each in contestants.items()}
    ways |= {_name(name, SD): each.exact[lengths[name].best] for name, each in contestants.items()}
    taken = decode_in_turns(ways, timed, amount.repeats)
    return {
        "batch": amount.batch, "repeats": amount.repeats, "prompts": sum(len(piece.prompts) for piece in timed),
        "sd_lengths": lengths, "contestants": {name: _about(decoded) for name, decoded in taken.items()},
        **_ratios(taken),
    }  # fmt: skip


def ratio(way: str, peer: str) -> str:
    """The name of our speed over a peer's."""
    return f"{_name(OURS, way)} / {_name(peer, way)}"


def _name(engine: str, way: str) -> str:
    return f"{engine}, {way}"


def _about(decoded: Sequence[Decoded]) -> dict[str, Any]:
    first = decoded[0]
    return {
        "tokens": first.tokens, "steps": first.steps or None,
        "tokens_per_cpu_second": rates([each.on_cpu for each in decoded]),
        "tokens_per_second": rates([each.by_clock for each in decoded]),
    }  # fmt: skip


def _ratios(taken: Mapping[str, Sequence[Decoded]]) -> dict[str, Any]:
    """Our speed over each other engine's, and how many of our texts are the other's, too: rounding changes some."""
    pairs = {
        ratio(way, peer): (taken[_name(OURS, way)], taken[_name(peer, way)])
        for way in (TARGET, SD) for peer in (NOT_LEAN, VLLM, TRANSFORMERS) if _name(peer, way) in taken
    }  # fmt: skip
    return {
        "speed_ups": {
            name: speed_up([each.on_cpu for each in own], [each.on_cpu for each in other])
            for name, (own, other) in pairs.items()
        },
        "speed_ups_by_clock": {
            name: speed_up([each.by_clock for each in own], [each.by_clock for each in other])
            for name, (own, other) in pairs.items()
        },
        "same_texts": {name: sum(map(_same, own[0].texts, other[0].texts)) for name, (own, other) in pairs.items()},
    }


def _same(one: str, other: str) -> bool:
    """By words: vLLM's texts of the random pair begin with the space that parts a word from the prompt's last."""
    return one.split() == other.split()
