"""Is a T that moves faster than the best constant one? `python benchmarks/adaptive.py [--quick]`; half an hour.

Knows what is measured, and how much of it. The bundled pair, greedy, rule fsd-coupled, each divergence for itself.
The best constant T (with the best L) and the best policy of each family are chosen on tuning problems, as the fastest
by the cost model that keep a share of the target's right answers; they are compared on fresh ones, which chose
nothing. What is trained learns from problems of its own. Writes all to `--out` as JSON, and prints a table.
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
from lib.common.machine import facts
from lib.common.written import write
from lib.policies.choice import difference, fastest, oracle
from lib.policies.shapes import FIXED, trained
from lib.policies.tables import printed, told
from lib.policies.world import Arm, Counts, Part, World, world
from lib.stopping.contest import Faster, contest

CONSTANT = "constant"
_THRESHOLDS = {
    "js": (0.1, 0.15, 0.18, 0.2, 0.21, 0.22, 0.23, 0.245, 0.26),
    "doubt": (0.2, 0.26, 0.34, 0.44, 0.57, 0.73, 0.85, 0.95),
}  # where retention falls from 1 to about .95


@dataclass(frozen=True)
class Size:
    """Problems of each set; timed: fresh ones, at batch 1."""

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
    """One comparison, its decodings in other processes."""

    def __init__(self, size: Size, retention: float, pool: ProcessPoolExecutor) -> None:
        self._pool, self.size, self.retention = pool, size, retention
        self._sets = (size.training, size.tuning, size.fresh)
        self.world = world(*self._sets)
        self.costs: CostModel = size.costs or self.world.costs()
        self.tuning, self.fresh = (Part(of, 0, len(getattr(self.world.sets, of).problems)) for of in ("tuning", "test"))

    def submit(self, do: Callable[..., Any], *asked: Any) -> Future[Any]:
        return self._pool.submit(_in_world, self._sets, do, *asked)

    def counted(self, arms: Mapping[Arm, Sequence[float]], part: Part) -> dict[Arm, list[Counts]]:
        """Each arm at its thresholds."""
        running = {
            arm: [self.submit(World.counted, arm, thresholds, half) for half in part.halves()]
            for arm, thresholds in arms.items()
        }
        both = {arm: [half.result() for half in halves] for arm, halves in running.items()}
        return {arm: [a + b for a, b in zip(*halves, strict=True)] for arm, halves in both.items()}

    def target(self, part: Part) -> Counts:
        alone = Arm("js", 1, rule="target")
        return self.counted({alone: [0.0]}, part)[alone][0]

    def chosen(self, counts: Sequence[Counts], target: Counts) -> Counts:
        return fastest([(count, count.timed(self.costs)) for count in counts], target.right, self.retention)


class Divergence:
    """All that is chosen and compared under one divergence."""

    def __init__(self, run: Run, name: str, tuning_target: Counts, fresh_target: Counts) -> None:
        self._run, self._name, self._thresholds = run, name, _THRESHOLDS[name]
        self._targets = tuning_target, fresh_target
        constants = list(chain(*self._counts([Arm(name, length) for length in run.size.lengths])))
        self._tuned = {CONSTANT: self._choice(constants)}
        length = self._tuned[CONSTANT].arm.draft_length
        self._tuned |= {family: self._choice(counts) for family, counts in self._families(length).items()}

    def compared(self) -> dict[str, Any]:
        """The best of each family on fresh problems."""
        costs, target = self._run.costs, self._targets[1]
        arms = {family: count.arm for family, count in self._tuned.items()}
        best = max((family for family in arms if family != CONSTANT), key=self._rank)
        constants = self._constants()
        base = next(count for count in constants if count.arm == arms[CONSTANT])
        fresh = {family: self._fresh(arm) for family, arm in arms.items() if family != CONSTANT}
        return {
            "divergence": self._name,
            "best": best,
            "tuned": {family: told(count, self._targets[0], costs) for family, count in self._tuned.items()},
            "constant": told(base, target, costs),
            "curve": [told(count, target, costs) for count in constants],  # of the constant T
            "families": {family: self._against(count, base) for family, count in fresh.items()},
            "oracle": self._oracle(constants, base, fresh[best]),
            "clock": self._clock(arms[CONSTANT], arms[best]),
        }

    def _counts(self, arms: Sequence[Arm]) -> list[list[Counts]]:
        return list(self._run.counted(dict.fromkeys(arms, self._thresholds), self._run.tuning).values())

    def _families(self, length: int) -> dict[str, list[Counts]]:
        wanted = self._run.size.families
        shapes = {f: [shape.identity or "" for shape in each] for f, each in FIXED.items() if f in wanted}
        if "per-prompt" in wanted:
            shapes["per-prompt"] = self._run.submit(trained, self._name, length, self._thresholds).result()
        arms = {f: [Arm(self._name, length, identity) for identity in each] for f, each in shapes.items()}
        everyone = list(chain(*arms.values()))
        found = dict(zip(everyone, self._counts(everyone), strict=True))
        return {f: [count for arm in each for count in found[arm]] for f, each in arms.items()}

    def _choice(self, counts: Sequence[Counts]) -> Counts:
        return self._run.chosen(counts, self._targets[0])

    def _rank(self, family: str) -> tuple[bool, float]:
        """By what tuning problems say."""
        count, solved = self._tuned[family], self._targets[0].right.sum()
        return count.right.sum() / solved >= self._run.retention, count.timed(self._run.costs).rate

    def _constants(self) -> list[Counts]:
        """On fresh problems at all T."""
        arm = replace(self._tuned[CONSTANT].arm, threshold=0.0)
        return self._run.counted({arm: self._thresholds}, self._run.fresh)[arm]

    def _fresh(self, arm: Arm) -> Counts:
        return self._run.counted({arm: [arm.threshold]}, self._run.fresh)[arm][0]

    def _against(self, one: Counts, base: Counts) -> dict[str, Any]:
        costs, target = self._run.costs, self._targets[1]
        return told(one, target, costs) | {
            "gain": asdict(Faster.of(one.timed(costs), base.timed(costs))),
            "retention_difference": asdict(difference(one.right, base.right, target.right)),
        }

    def _oracle(self, constants: Sequence[Counts], base: Counts, best: Counts) -> dict[str, float]:
        """The best T for every problem, that loses as many as the constant one."""
        costs, solved = self._run.costs, self._targets[1].right.sum()
        candidates = [count.timed(costs) for count in constants]
        lost = max(int(oracle(candidates, 0).right.sum() - base.right.sum()), 0)
        found = oracle(candidates, lost)
        gain, had = (one.rate / base.timed(costs).rate - 1 for one in (found, best.timed(costs)))
        kept = float(found.right.sum() / solved)
        return {
            "tokens_per_second": found.rate,
            "retention": kept,
            "gain": gain,
            "share_had": had / gain if gain else 0.0,
        }

    def _clock(self, constant: Arm, adaptive: Arm) -> dict[str, Any]:
        """At batch 1, in turns."""
        size, world = self._run.size, self._run.world
        problems = world.problems(replace(self._run.fresh, stop=size.timed))
        timed = contest(world, {"constant": constant, "adaptive": adaptive}, problems, size.repeats)
        gain = asdict(Faster.of(timed["adaptive"], timed["constant"]))
        return {"tokens_per_second": {name: one.rate for name, one in timed.items()}, "gain": gain}


def _in_world(sets: tuple[int, int, int], do: Callable[..., Any], *asked: Any) -> Any:
    return do(world(*sets), *asked)


def report(size: Size, retention: float) -> dict[str, Any]:
    began, machine = time.perf_counter(), facts()
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        run = Run(size, retention, pool)
        targets = run.target(run.tuning), run.target(run.fresh)
        found = []
        for name in size.divergences:
            found.append(Divergence(run, name, *targets).compared())
            print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    return {
        "machine": machine,
        "command": sys.argv,
        "retention": retention,
        "size": asdict(size),
        "problems": {"tuning": run.tuning.stop, "fresh": run.fresh.stop},
        "target_accuracy": [float(target.right.mean()) for target in targets],
        "costs": asdict(run.costs),
        "comparisons": found,
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: it says nothing")
    parser.add_argument("--divergences", nargs="+", choices=tuple(_THRESHOLDS), help="of them, those to measure")
    parser.add_argument("--retention", type=float, default=0.98, help="that T and policies keep on tuning problems")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "adaptive.json")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    size = _QUICK if options.quick else Size()
    if options.divergences:
        size = replace(size, divergences=options.divergences)
    found = report(size, options.retention)
    write(found, options.out, printed(found))


if __name__ == "__main__":
    main()
