"""Timing of target-only decoding, SD, FSD and transformers on the same prompts, one at a time and in batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from fsd_calib import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from lib.common.timing import Ratio, Run, rates, speed_up, take_turns
from lib.decoding.pairs import Pair, copy_models, parameters
from lib.decoding.peers import Decoded, Peer

_MODES: list[tuple[str, bool | Literal["capture"]]] = [("captured", "capture"), ("compiled", True)]
Decode = Callable[[list[int]], Decoded]

_SAME_TEXTS = [
    ("sd", "assisted"),
    ("sd", "generate"),
    ("target", "generate"),
    ("sd captured", "sd"),
    ("sd compiled", "sd"),
]
_RATIOS = [
    ("sd", "assisted"),
    ("sd captured", "assisted"),
    ("sd compiled", "assisted"),
    ("target", "generate"),
    ("assisted", "generate"),
    ("sd", "target"),
    ("sd captured", "sd"),
    ("sd compiled", "sd"),
]


def contest(pair: Pair, draft_length: int, repeats: int, compiled: bool) -> dict[str, Any]:
    """Returns tokens per second of all contenders on one pair, and the ratios among them."""
    peer = Peer(pair.target, pair.draft, draft_length, pair.max_new_tokens)
    contenders = {"generate": peer.generate, "assisted": peer.assisted} | ours(pair, draft_length, compiled)
    texts, warm_up = _first_texts(contenders, pair.prompts)
    runs = take_turns({name: _timing(decode) for name, decode in contenders.items()}, pair.prompts, repeats)
    return {
        "pair": pair.name,
        "parameters": [parameters(pair.target), parameters(pair.draft)],
        "prompts": len(pair.prompts),
        "max_new_tokens": pair.max_new_tokens,
        "repeats": repeats,
        "tokens_per_second": {name: rates(timed) for name, timed in runs.items()},
        "ratios": _ratios(runs),
        "same_texts": {f"{a} / {b}": _same(texts[a], texts[b]) for a, b in _SAME_TEXTS if a in texts and b in texts},
        "assisted_rounds_of_full_length": peer.check_drafting(pair.prompts),
        "rounds": {name: _counts(results) for name, results in texts.items() if isinstance(results[0], Result)},
        "warm_up_seconds": warm_up,
    }


def ours(pair: Pair, draft_length: int, compiled: bool) -> dict[str, Decode]:
    """Returns this project's contenders. Those with graphs have models of their own, which capturing may change."""
    eager = SpeculativeDecoder(pair.target, pair.draft, pair.tokenizer, draft_length=draft_length)
    decoders = {"target": _decoding(eager, pair, "target"), "sd": _decoding(eager, pair, "sd")}
    decoders |= {f"fsd T={t}": _decoding(eager, pair, "fsd-coupled", t) for t in pair.thresholds}
    for name, mode in _MODES[: 1 + compiled]:
        graphs = SpeculativeDecoder(*copy_models(pair), pair.tokenizer, draft_length=draft_length, compile=mode)
        decoders[f"sd {name}"] = _decoding(graphs, pair, "sd")
    return decoders


def _decoding(decoder: SpeculativeDecoder, pair: Pair, rule: str, threshold: float | None = None) -> Decode:
    """Returns a function that decodes one prompt under a rule."""
    return lambda prompt: decoder.generate([prompt], pair.max_new_tokens, rule=rule, threshold=threshold)[0]


def _first_texts(
    contenders: Mapping[str, Decode], prompts: Sequence[list[int]]
) -> tuple[dict[str, list[Decoded]], dict[str, float]]:
    """Returns every contender's texts and seconds of a first pass over all prompts, before any is timed."""
    texts, seconds = {}, {}
    for name, decode in contenders.items():
        began = time.perf_counter()
        texts[name] = [decode(prompt) for prompt in prompts]
        seconds[name] = time.perf_counter() - began
    return texts, seconds


def _timing(decode: Decode) -> Callable[[list[int]], Run]:
    def run(prompt: list[int]) -> Run:
        began = time.perf_counter()
        emitted = decode(prompt).emitted
        return Run(emitted, time.perf_counter() - began)

    return run


def _ratios(runs: Mapping[str, Sequence[Run]]) -> dict[str, Ratio]:
    return {f"{a} / {b}": speed_up(runs[a], runs[b]) for a, b in _RATIOS if a in runs and b in runs}


def _same(some: Sequence[Decoded], others: Sequence[Decoded]) -> float:
    """Returns the share of equal texts; in fp32, single steps and verifications round differently."""
    return sum(a.tokens == b.tokens for a, b in zip(some, others, strict=True)) / len(some)


def _counts(results: Sequence[Any]) -> dict[str, float]:
    drafted = sum(r.drafted for r in results)
    return {
        "tokens_a_round": sum(r.emitted for r in results) / sum(r.rounds for r in results),
        "accepted": sum(r.accepted for r in results) / drafted if drafted else 0.0,
    }


def batching(pair: Pair, draft_length: int, batch_size: int, repeats: int) -> dict[str, Any]:
    """Returns tokens per second of `sd` on a stream of prompts, in batches and one at a time."""
    decoder = SpeculativeDecoder(pair.target, pair.draft, pair.tokenizer, rule="sd", draft_length=draft_length)

    def stream(prompts: list[list[int]], rows: int) -> Run:
        began = time.perf_counter()
        results = decoder.generate(prompts, pair.max_new_tokens, batch_size=rows)
        return Run(sum(r.emitted for r in results), time.perf_counter() - began)

    contenders = {"batched": lambda prompts: stream(prompts, batch_size), "alone": lambda prompts: stream(prompts, 1)}
    take_turns(contenders, [pair.prompts[:batch_size]], 1)  # warms up
    runs = take_turns(contenders, [pair.prompts], repeats)
    return {
        "pair": pair.name,
        "batch": batch_size,
        "prompts": len(pair.prompts),
        "repeats": repeats,
        "tokens_per_second": {name: rates(timed) for name, timed in runs.items()},
        "ratio": speed_up(runs["batched"], runs["alone"]),
    }
