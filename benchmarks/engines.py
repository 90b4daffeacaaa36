"""Our engine beside vLLM and transformers, per CPU second: `python benchmarks/engines.py`; takes half an hour.

It runs in the environment that has vLLM (`sh install.sh vllm`). Everything is greedy, in fp32, eager and on one core.
Each engine is a process of its own, and they decode the same prompts in turns: with the target alone, and with `sd` at
the L that is each engine's best, at batch 1 and 32, on the bundled pair and on a random one as deep as a small real
model. transformers, whose assisted generation decodes one text at a time, takes part at batch 1. Our engine takes part
twice: as it is, and with transformers' modules in place of its lean forward pass.

With `--pair` a real pair is measured instead (`lib/peers.py`), in bf16 where the processor multiplies in it: decoding
at batch 1 and 16 on one pinned core and on two, prefill beside another revision's (`--present`), and memory against
what is planned. What needs vLLM is left out where it is not installed. The exit code is 1 if a claim is not reached.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fsd_calib.tasks.registry import load_task
from fsd_data import pair_paths
from lib import peers
from lib.common.claims import Claim
from lib.common.results import RESULTS, conclude, machine_facts, options_of
from lib.common.timing import speed_up
from lib.engines import (
    OURS,
    SD,
    TARGET,
    TRANSFORMERS,
    VLLM,
    VLLM_SETTINGS,
    Decode,
    Engine,
    OwnEngine,
    Served,
    TransformersEngine,
    VllmEngine,
    Work,
    about,
    best_length,
    decode_in_turns,
    pin,
    serve,
    speed_line,
)

NOT_LEAN = "ours, lean=False"
_OVER_VLLM = {1: 2.0, 32: 1.1}  # wanted, by batch size
_OVER_ASSISTED = 2.0
_SEED = 72_004
_LAYERS, _HIDDEN, _ECHO = 12, 512, 0.02  # of the random pair
_RANDOM = (
    f"Llamas of random weights and width {_HIDDEN}: {_LAYERS} layers, and as draft the first two of them with the "
    f"target's embedding, norm and head; the later layers add {_ECHO:g} times what they would, so that `sd` accepts "
    "about 70 % at L = 5; no token ends a text"
)


@dataclass(frozen=True)
class Amount:
    """How much is decoded at one batch size. piece: prompts that a contestant decodes at a time."""

    batch: int
    prompts: int
    choosing: int  # further prompts, that each engine's L is chosen on
    piece: int
    repeats: int
    choosing_repeats: int


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    bundled: tuple[Amount, ...]
    random: tuple[Amount, ...]
    random_texts: int  # new tokens on the random pair
    lengths: tuple[int, ...]  # L that `sd` may have


_FULL = Plan(
    (Amount(1, 25, 10, 5, 10, 3), Amount(32, 128, 64, 64, 10, 3)),
    (Amount(1, 4, 2, 1, 10, 2), Amount(32, 32, 32, 32, 10, 1)),
    64, (3, 5, 8, 12),
)  # fmt: skip
_QUICK = Plan(
    (Amount(1, 4, 2, 2, 2, 1), Amount(32, 32, 32, 32, 2, 1)), (Amount(1, 1, 1, 1, 2, 1), Amount(32, 4, 4, 4, 2, 1)),
    16, (3, 5),
)  # fmt: skip


def random_models(folder: Path, prompts: int) -> tuple[tuple[str, str], tuple[str, ...]]:
    """Saves a random pair as deep as a small real model; returns its paths, and prompts as texts."""
    from lib.pairs import random_pair  # it loads torch, which each engine loads for itself

    pair = random_pair(_LAYERS, _HIDDEN, _ECHO, prompts, 0)
    return pair.save(folder), tuple(pair.tokenizer.decode(prompt) for prompt in pair.prompts)


def measure(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    target, draft = map(str, pair_paths())
    task = load_task("arithmetic", seed=_SEED, limit=_prompts(plan.bundled))
    prompts = tuple(problem.prompt for problem in task.problems)
    bundled = Work(prompts, tuple(range(len(prompts))), task.max_new_tokens, (), 1)
    models, prompts = random_models(folder, _prompts(plan.random))
    random = Work(prompts, tuple(range(len(prompts))), plan.random_texts, (), 1)
    return [
        _measure(
            "bundled", "the bundled pair; texts end with EOS", (target, draft), bundled, plan.lengths, plan.bundled
        ),
        _measure(f"random, {_LAYERS} layers", _RANDOM, models, random, plan.lengths, plan.random),
    ]


def _prompts(amounts: Sequence[Amount]) -> int:
    return max(amount.prompts + amount.choosing for amount in amounts)


def _measure(
    pair: str, what: str, models: tuple[str, str], work: Work, lengths: Sequence[int], amounts: Sequence[Amount]
) -> dict[str, Any]:
    engines: dict[str, Callable[[], Engine]] = {
        OURS: partial(OwnEngine, models),
        NOT_LEAN: partial(OwnEngine, models, lean=False),
        TRANSFORMERS: partial(TransformersEngine, models),
        VLLM: partial(VllmEngine, models),
        **{f"{VLLM} {length}": partial(VllmEngine, models, length) for length in lengths},  # one for each L
    }
    found: dict[int, Any] = {}
    with serve(engines) as served:
        for amount in amounts:
            found[amount.batch] = contest(served, lengths, work, amount)
            print(table(pair, found[amount.batch]), end="\n\n", flush=True)
    return {"pair": pair, "about": what, "max_new_tokens": work.max_new_tokens, "batches": found}


def contest(served: Mapping[str, Served], lengths: Sequence[int], work: Work, amount: Amount) -> dict[str, Any]:
    """Returns the speeds at one batch size: the target alone, and `sd` at each engine's own best L.

    Args:
        work: Its first prompts are timed, and each engine's L is chosen on those after them.
    """
    few = work.pieces(amount.prompts + amount.choosing)[0]
    pieces = replace(few, batch=amount.batch).pieces(amount.piece)
    timed, choosing = pieces[: amount.prompts // amount.piece], pieces[amount.prompts // amount.piece :]
    ways: dict[str, Decode] = {}
    best = {}
    for name in (
        OURS,
        NOT_LEAN,
        VLLM,
        *((TRANSFORMERS,) if amount.batch == 1 else ()),
    ):  # it assists one text at a time
        if name == VLLM:
            exact = {length: partial(served[f"{VLLM} {length}"].decode, way="") for length in lengths}
        else:
            exact = {length: partial(served[name].decode, way=f"{SD} {length}") for length in lengths}
        best[name] = best_length(exact, choosing, amount.choosing_repeats)
        ways[_name(name, TARGET)] = partial(served[name].decode, way="" if name == VLLM else TARGET)
        ways[_name(name, SD)] = exact[best[name].best]
    taken = decode_in_turns(ways, timed, amount.repeats)
    pairs = {
        ratio(way, peer): (taken[_name(OURS, way)], taken[_name(peer, way)])
        for way in (TARGET, SD) for peer in (NOT_LEAN, VLLM, TRANSFORMERS) if peer in best
    }  # fmt: skip
    return {
        "batch": amount.batch, "repeats": amount.repeats, "prompts": sum(len(piece.prompts) for piece in timed),
        "sd_lengths": best, "contestants": {name: about(decoded) for name, decoded in taken.items()},
        "speed_ups": {
            name: speed_up([each.on_cpu for each in own], [each.on_cpu for each in other])
            for name, (own, other) in pairs.items()
        },
        # Rounding changes some.
        "same_texts": {name: sum(map(_same, own[0].texts, other[0].texts)) for name, (own, other) in pairs.items()},
    }  # fmt: skip


def ratio(way: str, peer: str) -> str:
    """The name of our speed over a peer's."""
    return f"{_name(OURS, way)} / {_name(peer, way)}"


def _name(engine: str, way: str) -> str:
    return f"{engine}, {way}"


def _same(one: str, other: str) -> bool:
    """By words: vLLM's texts of the random pair begin with the space that parts a word from the prompt's last."""
    return one.split() == other.split()


def engine_claims(contests: Mapping[int, Mapping[str, Any]]) -> Iterator[Claim]:
    """Claims of the bundled pair.

    Args:
        contests: what was measured, by batch size.
    """
    wanted = [(way, VLLM, batch, times) for way in (TARGET, SD) for batch, times in _OVER_VLLM.items()]
    for way, peer, batch, times in [*wanted, (SD, TRANSFORMERS, 1, _OVER_ASSISTED)]:
        name = ratio(way, peer)
        yield Claim.faster(f"{name}, tokens per CPU second, batch {batch}", times, contests[batch]["speed_ups"][name])


def table(pair: str, found: Mapping[str, Any]) -> str:
    """Returns lines with the speeds at one batch size: medians and quartiles over repeats."""
    best = ", ".join(f"{lengths.best} ({name})" for name, lengths in found["sd_lengths"].items())
    lines = [f"{pair}, batch {found['batch']}, {found['prompts']} prompts; L of sd: {best}"]
    lines += [speed_line(name, about) for name, about in found["contestants"].items()]
    for name, times in found["speed_ups"].items():
        same = found["same_texts"][name]
        lines.append(f"  {name}: {times.median:.3f} ({times.at_least:.3f} to {times.at_most:.3f}), {same} same texts")
    return "\n".join(lines)


def main() -> int:
    parser = options_of(__doc__, "engines.json")
    parser.add_argument("--core", type=int, help="default: the last one")
    parser.add_argument(
        "--pair", type=Path, nargs="+", metavar="MODEL",
        help="folders of a target and a draft, or one folder that holds both: then the larger one is the target; "
        "results then go to engines_pair.json",
    )  # fmt: skip
    parser.add_argument("--problems", type=Path, help="with --pair: a file of GSM8K; default: the bundled arithmetic")
    parser.add_argument("--present", type=Path, help="with --pair: a checkout of the revision that prefill is to beat")
    parser.set_defaults(out=None)
    options = parser.parse_args()
    options.out = options.out or RESULTS / ("engines_pair.json" if options.pair else "engines.json")
    if options.pair:
        return _on_pair(parser, options)
    machine = pin(options.core)
    machine = machine_facts() | machine
    with tempfile.TemporaryDirectory(prefix="engines-") as folder:
        measured = measure(_QUICK if options.quick else _FULL, Path(folder))
    results = {"vllm_settings": VLLM_SETTINGS, "pairs": measured}
    return conclude(options, machine, results, engine_claims(measured[0]["batches"]))


def _on_pair(parser: ArgumentParser, options: Namespace) -> int:
    try:
        pair = peers.RealPair.of(options.pair, options.problems)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    machine = machine_facts()
    found = peers.measure(pair, peers.QUICK if options.quick else peers.FULL, options.core, options.present)
    return conclude(options, machine, found, peers.peer_claims(found), peers.table(found))


if __name__ == "__main__":
    sys.exit(main())
