"""Threshold policies compared with the best constant T: `python benchmarks/adaptive.py [--quick]`; half an hour.

The bundled pair decodes greedily by rule fsd-coupled; each divergence is a comparison of its own. The best constant T
(with the best L) and the best policy of each family are chosen on tuning problems, as the fastest by the cost model at
a required retention. They are compared on fresh problems, which chose nothing. Trained policies learn from a third set.
Prints a table, and writes all results to `--out` as JSON.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from fsd_collectors.replay.cost import CostModel
from lib.common.machine import machine_facts
from lib.common.paired_contest import Faster, contest
from lib.common.results import write_and_print
from lib.policies.choice import difference, fastest, oracle
from lib.policies.families import FIXED, train_per_prompt
from lib.policies.report import as_markdown, summarise
from lib.policies.world import Arm, Counts, Part, World, world

CONSTANT = "constant"
_THRESHOLDS = {
    "js": (0.1, 0.15, 0.18, 0.2, 0.21, 0.22, 0.23, 0.245, 0.26),
    "doubt": (0.2, 0.26, 0.34, 0.44, 0.57, 0.73, 0.85, 0.95),
}  # where retention falls from 1 to about .95


@dataclass(frozen=True)
class Size:
    """How many problems each set has, and what is compared. timed: fresh problems that are timed at batch 1."""

    training: int = 450
    tuning: int = 800
    fresh: int = 2_000
    timed: int = 100
    repeats: int = 3
    lengths: Sequence[int] = (12, 16)
    divergences: Sequence[str] = ("js", "doubt")
    families: Sequence[str] = ("schedule", "entropy", "per-prompt")
    costs: CostModel | None = None  # None: measured


_QUICK = Size(16, 16, 24, 2, 1, (8,), ("js",), ("entropy",), CostModel(0.0005, 0.004, 0.0001))


class Run:
    """A run of this benchmark, which decodes in worker processes."""

    def __init__(self, size: Size, retention: float, pool: ProcessPoolExecutor) -> None:
        self._pool, self.size, self.retention = pool, size, retention
        self._sets = (size.training, size.tuning, size.fresh)
        self.world = world(*self._sets)
        self.costs: CostModel = size.costs or self.world.costs()
        self.tuning, self.fresh = (Part(of, 0, len(getattr(self.world.sets, of).problems)) for of in ("tuning", "test"))

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Calls a function of a `World` and further arguments in a worker process."""
        return self._pool.submit(_call_with_world, self._sets, call, *arguments)

    def counts(self, arms: Mapping[Arm, Sequence[float]], part: Part) -> dict[Arm, list[Counts]]:
        """Decodes a part by each arm at its thresholds."""
        running = {
            arm: [self.submit(World.counts, arm, thresholds, half) for half in part.halves()]
            for arm, thresholds in arms.items()
        }
        both = {arm: [half.result() for half in halves] for arm, halves in running.items()}
        return {arm: [a + b for a, b in zip(*halves, strict=True)] for arm, halves in both.items()}

    def target(self, part: Part) -> Counts:
        alone = Arm("js", 1, rule="target")
        return self.counts({alone: [0.0]}, part)[alone][0]

    def choose(self, counts: Sequence[Counts], target: Counts) -> Counts:
        return fastest([(count, count.timed(self.costs)) for count in counts], target.right, self.retention)


class Comparison:
    """The choice of settings under one divergence, and their comparison on fresh problems."""

    def __init__(self, run: Run, name: str, tuning_target: Counts, fresh_target: Counts) -> None:
        self._run, self._name, self._thresholds = run, name, _THRESHOLDS[name]
        self._targets = tuning_target, fresh_target
        constants = list(chain(*self._counts([Arm(name, length) for length in run.size.lengths])))
        self._tuned = {CONSTANT: self._choose(constants)}
        length = self._tuned[CONSTANT].arm.draft_length
        self._tuned |= {family: self._choose(counts) for family, counts in self._families(length).items()}

    def compare(self) -> dict[str, Any]:
        """Compares the best policy of each family with the best constant T on fresh problems."""
        costs, target = self._run.costs, self._targets[1]
        arms = {family: count.arm for family, count in self._tuned.items()}
        best = max((family for family in arms if family != CONSTANT), key=self._rank)
        constants = self._constants()
        base = next(count for count in constants if count.arm == arms[CONSTANT])
        fresh = {family: self._fresh(arm) for family, arm in arms.items() if family != CONSTANT}
        return {
            "divergence": self._name,
            "best": best,
            "tuned": {family: summarise(count, self._targets[0], costs) for family, count in self._tuned.items()},
            "constant": summarise(base, target, costs),
            "curve": [summarise(count, target, costs) for count in constants],  # of the constant T
            "families": {family: self._against(count, base) for family, count in fresh.items()},
            "oracle": self._oracle(constants, base, fresh[best]),
            "clock": self._clock(arms[CONSTANT], arms[best]),
        }

    def _counts(self, arms: Sequence[Arm]) -> list[list[Counts]]:
        return list(self._run.counts(dict.fromkeys(arms, self._thresholds), self._run.tuning).values())

    def _families(self, length: int) -> dict[str, list[Counts]]:
        wanted = self._run.size.families
        shapes = {f: [shape.identity or "" for shape in each] for f, each in FIXED.items() if f in wanted}
        if "per-prompt" in wanted:
            shapes["per-prompt"] = self._run.submit(train_per_prompt, self._name, length, self._thresholds).result()
        arms = {f: [Arm(self._name, length, identity) for identity in each] for f, each in shapes.items()}
        all_arms = list(chain(*arms.values()))
        counts = dict(zip(all_arms, self._counts(all_arms), strict=True))
        return {f: [count for arm in each for count in counts[arm]] for f, each in arms.items()}

    def _choose(self, counts: Sequence[Counts]) -> Counts:
        return self._run.choose(counts, self._targets[0])

    def _rank(self, family: str) -> tuple[bool, float]:
        """Returns whether a family's best has the required retention on tuning problems, and its speed there."""
        count, solved = self._tuned[family], self._targets[0].right.sum()
        return count.right.sum() / solved >= self._run.retention, count.timed(self._run.costs).rate

    def _constants(self) -> list[Counts]:
        """Decodes the fresh problems at all constant T."""
        arm = replace(self._tuned[CONSTANT].arm, threshold=0.0)
        return self._run.counts({arm: self._thresholds}, self._run.fresh)[arm]

    def _fresh(self, arm: Arm) -> Counts:
        return self._run.counts({arm: [arm.threshold]}, self._run.fresh)[arm][0]

    def _against(self, count: Counts, base: Counts) -> dict[str, Any]:
        costs, target = self._run.costs, self._targets[1]
        return summarise(count, target, costs) | {
            "gain": asdict(Faster.of(count.timed(costs), base.timed(costs))),
            "retention_difference": asdict(difference(count.right, base.right, target.right)),
        }

    def _oracle(self, constants: Sequence[Counts], base: Counts, best: Counts) -> dict[str, float]:
        """Returns what the best T for every problem reaches where it loses as many problems as the constant T."""
        costs, solved = self._run.costs, self._targets[1].right.sum()
        candidates = [count.timed(costs) for count in constants]
        lost = max(int(oracle(candidates, 0).right.sum() - base.right.sum()), 0)
        best_possible = oracle(candidates, lost)
        gain, gain_had = (timed.rate / base.timed(costs).rate - 1 for timed in (best_possible, best.timed(costs)))
        return {
            "tokens_per_second": best_possible.rate,
            "retention": float(best_possible.right.sum() / solved),
            "gain": gain,
            "share_had": gain_had / gain if gain else 0.0,
        }

    def _clock(self, constant: Arm, adaptive: Arm) -> dict[str, Any]:
        """Times both at batch 1, in turns."""
        size, world = self._run.size, self._run.world
        problems = world.problems(replace(self._run.fresh, stop=size.timed))
        timed = contest(world, {"constant": constant, "adaptive": adaptive}, problems, size.repeats)
        gain = asdict(Faster.of(timed["adaptive"], timed["constant"]))
        return {"tokens_per_second": {name: of.rate for name, of in timed.items()}, "gain": gain}


def _call_with_world(sets: tuple[int, int, int], call: Callable[..., Any], *arguments: Any) -> Any:
    return call(world(*sets), *arguments)


def report(size: Size, retention: float) -> dict[str, Any]:
    began, machine = time.perf_counter(), machine_facts()
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        run = Run(size, retention, pool)
        targets = run.target(run.tuning), run.target(run.fresh)
        comparisons = []
        for name in size.divergences:
            comparisons.append(Comparison(run, name, *targets).compare())
            print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    return {
        "machine": machine,
        "command": sys.argv,
        "retention": retention,
        "size": asdict(size),
        "problems": {"tuning": run.tuning.stop, "fresh": run.fresh.stop},
        "target_accuracy": [float(target.right.mean()) for target in targets],
        "costs": asdict(run.costs),
        "comparisons": comparisons,
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run, whose numbers mean nothing")
    parser.add_argument("--divergences", nargs="+", choices=tuple(_THRESHOLDS), help="to measure; default: all")
    parser.add_argument("--retention", type=float, default=0.98, help="that is required on tuning problems")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "adaptive.json")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    size = _QUICK if options.quick else Size()
    if options.divergences:
        size = replace(size, divergences=options.divergences)
    results = report(size, options.retention)
    write_and_print(results, options.out, as_markdown(results))


if __name__ == "__main__":
    main()
