"""Speed of trees against chains, by the bundled draft and EAGLE head: `python benchmarks/trees.py [--quick]`.

Every chain and tree gets the largest T at which it keeps 98 % of the target's accuracy on tuning problems. On some of
the test problems all take turns, one at a time and eight at a time; tokens per round and accuracy are of all of them.
Trees are compared with chains, fuzzy decoding with lossless and the head with the model, the best of one kind with the
best of the other. From the tokens per round, speeds are forecast for pairs whose drafts and targets have other costs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fsd_calib import Eagle, SpeculativeDecoder, TreeShape
from fsd_calib.tasks.base import Problem, Task
from fsd_calib.tasks.registry import load_task
from fsd_calib.tasks.split import tuning_of
from fsd_data import head_path, pair_paths
from lib.common.machine import machine_facts
from lib.common.problem_sets import problem_sets
from lib.common.results import write_and_print
from lib.common.timing import Run, Spread, rates, speed_up, take_turns
from lib.trees.drafts import HEAD, MODEL, RETENTION, Bases, Draft, accuracy, decode, largest_threshold
from lib.trees.overhead import overhead
from lib.trees.simulation import simulate, simulated_table

_DRAFTS = [
    *(Draft(length) for length in (3, 5, 8, 12)),
    *(Draft(length, TreeShape(*shape)) for length, *shape in ((3, 2, 6), (5, 3, 16), (8, 2, 12))),  # L, top_k, nodes
    *(Draft(length, None, HEAD) for length in (2, 3, 5, 8)),
    *(Draft(length, TreeShape(*shape), HEAD) for length, *shape in ((3, 2, 6), (3, 3, 12), (5, 3, 16))),
]
_GRID = (0.2, 0.4, 0.6, 0.8, 1.2, 1.6, 2.0, 2.4, 2.8)  # of T on `doubt`
_MEASURED = TreeShape(3, 16), 5  # whose overhead is measured
_BATCHES = (1, 8)
_LEARNED = 24_000  # problems, whose tuning part the bundled head was trained on
_WAYS = {"lossless": False, "fuzzy": True}


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    drafts: list[Draft]
    grid: Sequence[float]
    tuning: int  # problems
    test: int
    timed: int  # of the test problems
    repeats: int
    overhead: int  # repeats of each part of a round


_FULL = Plan(_DRAFTS, _GRID, 256, 256, 24, 10, 200)
_QUICK = Plan([_DRAFTS[0], _DRAFTS[4], _DRAFTS[8], _DRAFTS[11]], (0.4,), 4, 4, 2, 2, 2)
Kind = tuple[Draft, float | None]
"""A draft with its T; None: lossless."""


def kinds(bases: Bases, plan: Plan, tuning: Task) -> list[Kind]:
    """Every draft, lossless and with the T that it is given on the tuning problems, if there is one."""
    least = RETENTION * accuracy(tuning, decode(bases[MODEL].with_config(rule="target"), tuning, 64))
    found: list[Kind] = []
    for draft in plan.drafts:
        threshold = largest_threshold(bases, draft, tuning, plan.grid, least)
        found += [(draft, None)] if threshold is None else [(draft, None), (draft, threshold)]
    return found


def timed(bases: Bases, kinds: Sequence[Kind], task: Task, batch: int, repeats: int) -> dict[Kind, list[Run]]:
    """Tokens and seconds of each repeat, taking turns at pieces of the problems."""
    pieces = [task.problems[i : i + batch] for i in range(0, len(task.problems), batch)]

    def contender(kind: Kind) -> Callable[[Sequence[Problem]], Run]:
        decoder = kind[0].decoder(bases, kind[1])

        def run(piece: Sequence[Problem]) -> Run:
            began = time.perf_counter()
            results = decode(decoder, replace(task, problems=tuple(piece)), batch)
            return Run(sum(result.emitted for result in results), time.perf_counter() - began)

        return run

    named = {str(number): contender(kind) for number, kind in enumerate(kinds)}
    for run in named.values():
        run(pieces[0])
    runs = take_turns(named, pieces, repeats)
    return {kind: runs[str(number)] for number, kind in enumerate(kinds)}


def compared(runs: Mapping[Kind, list[Run]], left: Callable[[Kind], bool], right: Callable[[Kind], bool]) -> Any:
    """The fastest of some kinds against the fastest of others, by the median speed."""

    def best(among: Callable[[Kind], bool]) -> Kind | None:
        return max(filter(among, runs), key=lambda kind: rates(runs[kind]).median, default=None)

    one, other = best(left), best(right)
    if one is None or other is None:
        return {"best": None, "against": None, "ratio": None}
    return {"best": named(one), "against": named(other), "ratio": asdict(speed_up(runs[one], runs[other]))}


def comparisons(runs: Mapping[int, Mapping[Kind, list[Run]]]) -> dict[str, Any]:
    """Trees against chains and fuzzy against lossless, by what drafts them, and the head against the model."""

    def of(by: str | None = None, trees: bool | None = None, fuzzy: bool | None = None) -> Callable[[Kind], bool]:
        def among(kind: Kind) -> bool:
            found = (kind[0].by, kind[0].shape is not None, kind[1] is not None)
            return all(wanted in (None, is_so) for wanted, is_so in zip((by, trees, fuzzy), found, strict=True))

        return among

    found = {}
    for batch, some in runs.items():
        for way, fuzzy in _WAYS.items():
            for by in (MODEL, HEAD):
                pair = of(by, True, fuzzy), of(by, False, fuzzy)
                found[f"tree against chain, {by}, {way}, batch {batch}"] = compared(some, *pair)
            pair = of(HEAD, fuzzy=fuzzy), of(MODEL, fuzzy=fuzzy)
            found[f"head against model, {way}, batch {batch}"] = compared(some, *pair)
        for by in (MODEL, HEAD):
            pair = of(by, fuzzy=True), of(by, fuzzy=False)
            found[f"fuzzy against lossless, {by}, batch {batch}"] = compared(some, *pair)
    return found


def named(kind: Kind) -> str:
    return f"{kind[0]}, lossless" if kind[1] is None else f"{kind[0]}, doubt <= {kind[1]}"


def row(bases: Bases, kind: Kind, task: Task, speeds: Mapping[str, Spread]) -> dict[str, Any]:
    results = decode(kind[0].decoder(bases, kind[1]), task, 8)
    return {
        "draft": str(kind[0]), "T": kind[1], "accuracy": accuracy(task, results),
        "tokens_per_round": sum(r.emitted for r in results) / sum(r.rounds for r in results),
        "accepted_per_round": sum(r.accepted for r in results) / sum(r.rounds for r in results),
        "tokens_per_second": {batch: asdict(spread) for batch, spread in speeds.items()},
    }  # fmt: skip


def table(found: Mapping[str, Any]) -> str:
    lines = [f"{'draft':<28} {'T':>8} {'tokens/round':>12} {'batch 1':>8} {'batch 8':>8}  tokens/s"]
    for each in found["rows"]:
        speeds = (f"{each['tokens_per_second'][str(batch)]['median']:8.0f}" for batch in _BATCHES)
        threshold = "lossless" if each["T"] is None else f"{each['T']:8}"
        lines.append(f"{each['draft']:<28} {threshold} {each['tokens_per_round']:12.2f} {' '.join(speeds)}")
    for name, best in found["best"].items():
        if best["ratio"] is not None:
            ratio = best["ratio"]
            lines.append(f"{name}: {ratio['median']:.2f} ({ratio['at_least']:.2f} to {ratio['at_most']:.2f}): "
                         f"{best['best']} against {best['against']}")  # fmt: skip
    for batch, part in found["overhead"].items():
        lines.append(f"a round's mask, walk and gather at 16 nodes, batch {batch}: {part['share']:.1%}")
    return "\n".join(lines)


def by_draft(kinds: Sequence[Kind], rows: Sequence[Mapping[str, Any]], by: str, fuzzy: bool) -> dict[Draft, float]:
    """Tokens per round of every draft by the model or the head, lossless or with its T."""
    return {
        draft: each["tokens_per_round"]
        for (draft, threshold), each in zip(kinds, rows, strict=True)
        if (threshold is not None) == fuzzy and draft.by == by
    }


def measure(plan: Plan) -> dict[str, Any]:
    began = time.perf_counter()
    model = SpeculativeDecoder.from_pretrained(*pair_paths(), device="cpu", dtype=torch.float32)
    bases = {MODEL: model, HEAD: SpeculativeDecoder(model.target, Eagle(head_path()), model.tokenizer)}
    learned = {problem.question for problem in tuning_of(load_task("arithmetic", limit=_LEARNED))}
    sets = problem_sets(1, plan.tuning, plan.test, model.tokenizer, besides=learned)
    some = replace(sets.test, problems=sets.test.problems[: plan.timed])
    compared_kinds = kinds(bases, plan, sets.tuning)
    runs = {batch: timed(bases, compared_kinds, some, batch, plan.repeats) for batch in _BATCHES}
    rows = [
        row(bases, kind, sets.test, {str(batch): rates(runs[batch][kind]) for batch in _BATCHES})
        for kind in compared_kinds
    ]
    prompts: list[Any] = [problem.prompt for problem in some.problems] * max(_BATCHES)
    return {
        "machine": machine_facts(), "problems": [plan.tuning, plan.test, plan.timed], "rows": rows,
        "best": comparisons(runs),
        "overhead": {str(batch): overhead(model, prompts[:batch], *_MEASURED, plan.overhead) for batch in _BATCHES},
        "simulated": {f"{by}, {way}": simulate(by_draft(compared_kinds, rows, by, fuzzy))
                      for by in (MODEL, HEAD) for way, fuzzy in _WAYS.items()},
        "seconds": time.perf_counter() - began,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few problems, to try the script")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "trees.json")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    found = measure(_QUICK if asked.quick else _FULL)
    forecasts = "\n".join(f"\n{way}\n{simulated_table(cells)}" for way, cells in found["simulated"].items())
    write_and_print(found, asked.out, f"{table(found)}\n{forecasts}")


if __name__ == "__main__":
    main()
