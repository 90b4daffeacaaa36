"""Which procedure certifies the fastest: `nohup python benchmarks/procedures.py &`; takes half an hour.

Knows the pools of `benchmarks/regret.py`, and procedures that keep the chance of any false certificate at δ. All of
them get the same searches, and the same outcomes on the certification part; each tests a sequence that was planned for
the levels it has. The one that won is fixed in the code of
`fsd_calib`; nothing here is chosen while a calibration runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fsd_calib.certification.claim import Claim
from fsd_calib.certification.outcomes import Paired
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.search.candidates import choose_sequence, measure_candidates
from fsd_calib.search.forecast import configuration_at
from fsd_calib.search.prospects import Prospects
from lib.calibration.pooled import TARGET
from lib.calibration.pooled_calibration import Tuned, level, tuned
from lib.common.machine import facts
from regret import CONFIDENCE, WANTED, Arena, Half, made_up, real

_CERTIFICATION = 2_100
_HEDGE = 0.2  # of the level
_BETTING = 0.6  # what a problem is worth to it: see `fsd_calib.certification.power`


@dataclass(eq=False)
class Case:
    """One search, and what its settings come to on the certification part."""

    arena: Arena
    known: Tuned
    evaluator: Evaluator
    truth: Half
    wanted: float

    @cached_property
    def prospects(self) -> Prospects:
        known = self.known
        return measure_candidates(
            known.searched.trials, self.arena.space, known.evaluator, known.alone, self.arena.forecast,
            known.objective.pass_model, known.lossless,
        )  # fmt: skip

    def ladder(self, delta: float, divergence: str | None = None, worth: float = 1.0) -> list[Configuration]:
        """Planned for a test at this level, among all divergences or one.

        Args:
            worth: how many problems of the score test a problem is worth.
        """
        seen = self.prospects
        arms = seen.settings.arms
        which = np.array([i for i, arm in enumerate(arms) if divergence in (None, arm.divergence)], int)
        if not len(which):
            return []
        bar = replace(seen.pass_model, delta=delta, certification=round(worth * seen.pass_model.certification))
        some = Prospects(seen.settings.subset(which), seen.observations, bar, seen.lossless)
        return [configuration_at(self.arena.forecast, some.settings.point(i)) for i in choose_sequence(some)]

    def passes(self, configuration: Configuration, delta: float, test: Any = "score") -> bool:
        claim = Claim(self.wanted, test=test, problems=_CERTIFICATION)
        alone, fuzzy = (self.evaluator.measure(c) for c in (TARGET, configuration))
        return claim.p_value(Paired(alone.correct, fuzzy.correct)) <= delta


Procedure = Callable[[Case, float], list[Configuration]]
"""All that is certified at a level."""


def fixed_sequence(case: Case, delta: float) -> list[Configuration]:
    return _passing(case, case.ladder(delta), delta)


def e_values(case: Case, delta: float) -> list[Configuration]:
    """The same sequence by betting, whose wealth is an e-value."""
    return _passing(case, case.ladder(delta, worth=_BETTING), delta, "betting")


def two_chains(case: Case, delta: float) -> list[Configuration]:
    """One of each divergence at half the level; one that passes whole hands its half on (Bretz et al. 2009)."""
    chains = [case.ladder(delta / 2, divergence) for divergence in case.arena.space.divergences]
    return _chains(case, chains, [delta / 2] * len(chains))


def hedged(case: Case, delta: float) -> list[Configuration]:
    """The sequence at four fifths of the level, and the likeliest setting of the other divergences at one fifth."""
    first = case.ladder((1 - _HEDGE) * delta)
    others = [d for d in case.arena.space.divergences if not first or d != first[0].divergence]
    second = max((case.ladder(_HEDGE * delta, d)[:1] for d in others), key=len, default=[])
    return _chains(case, [first, second], [(1 - _HEDGE) * delta, _HEDGE * delta])


def fallback(case: Case, delta: float) -> list[Configuration]:
    """The sequence with an equal share of the level for each setting, added to what the one before hands on."""
    ladder = case.ladder(delta / 2)  # between what the first has and what the last may have
    certified, held = [], 0.0
    for configuration in ladder:
        at = held + delta / len(ladder)
        passed = case.passes(configuration, at)
        held = at if passed else 0.0
        certified += [configuration] if passed else []
    return certified


def two_starts(case: Case, delta: float) -> list[Configuration]:
    """Learn-then-Test: the sequence from its beginning and from its middle, each at half the level."""
    ladder = case.ladder(delta / 2)
    middle = len(ladder) // 2
    certified = _passing(case, ladder, delta / 2)
    return certified + [c for c in _passing(case, ladder[middle:], delta / 2) if c not in certified]


def holm(case: Case, delta: float) -> list[Configuration]:
    """No order: every setting of the sequence at δ over how many are left."""
    left, certified = case.ladder(delta / 2), list[Configuration]()
    while passed := [c for c in left if case.passes(c, delta / len(left))]:
        certified += passed
        left = [c for c in left if c not in passed]
    return certified


PROCEDURES: Mapping[str, Procedure] = {
    "fixed sequence": fixed_sequence, "two chains": two_chains, "hedged": hedged, "fallback": fallback,
    "two starts": two_starts, "e-values": e_values, "Holm": holm,
}  # fmt: skip


def _passing(case: Case, ladder: Sequence[Configuration], delta: float, test: str = "score") -> list[Configuration]:
    certified: list[Configuration] = []
    for configuration in ladder:
        if not case.passes(configuration, delta, test):
            break
        certified.append(configuration)
    return certified


def _chains(case: Case, chains: Sequence[Sequence[Configuration]], levels: Sequence[float]) -> list[Configuration]:
    """A chain that passes whole hands its level on to the next, and the last one to the first."""
    certified = [_passing(case, chain, at) for chain, at in zip(chains, levels, strict=True)]
    for _ in chains:
        whole = [len(passed) == len(chain) for passed, chain in zip(certified, chains, strict=True)]
        spare = sum(at for at, done in zip(levels, whole, strict=True) if done)
        certified = [
            passed if done else _passing(case, chain, at + spare / max(whole.count(False), 1))
            for passed, chain, at, done in zip(certified, chains, levels, whole, strict=True)
        ]
    return [configuration for passed in certified for configuration in passed]


def compared(arena: Arena, wanted: float, seed: int) -> dict[str, tuple[float, bool]]:
    """By procedure: certified tokens/s over the oracle's, and whether anything certified keeps less than wanted."""
    decode, tuning, certify, truth = arena.drawn(seed, _CERTIFICATION)
    known = tuned(decode, arena.forecast, arena.space, tuning, _CERTIFICATION, wanted, CONFIDENCE)
    case = Case(arena, known, Evaluator(decode, certify, "certification"), truth, wanted)
    found: dict[str, tuple[float, bool]] = {}
    for name, procedure in PROCEDURES.items():
        truths = [truth.truth(configuration) for configuration in procedure(case, level(CONFIDENCE))]
        fastest = max((speed for _, speed in truths), default=truth.lossless)
        found[name] = (fastest / truth.best(wanted), any(kept < wanted for kept, _ in truths))
    return found


def report(arenas: Mapping[str, Callable[[int], Arena]], wanted: Sequence[float], runs: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, arena in arenas.items():
        for goal in wanted:
            made = [compared(arena(seed), goal, seed) for seed in range(runs)]
            for procedure in PROCEDURES:
                ratios, false = (np.array(x) for x in zip(*(run[procedure] for run in made), strict=True))
                rows.append({
                    "pool": name, "wanted": goal, "procedure": procedure, "runs": runs, "mean": float(ratios.mean()),
                    "median": float(np.median(ratios)), "tenth": float(np.quantile(ratios, 0.1)),
                    "false": float(false.mean()),
                })  # fmt: skip
                print(_row(rows[-1]), flush=True)
    return rows


HEADER = (
    "| pool | wanted | procedure | mean, of the oracle | median | 10th percentile | any false |\n" + "| --- " * 7 + "|"
)


def _row(row: Mapping[str, Any]) -> str:
    speeds = [f"{row[name]:.3f}" for name in ("mean", "median", "tenth")]
    return "| " + " | ".join([row["pool"], str(row["wanted"]), row["procedure"], *speeds, f"{row['false']:.1%}"]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help="searches a wish; a quarter of them on made-up pools")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "procedures.json")
    options = parser.parse_args()
    print(HEADER)
    rows = report(real(), WANTED, options.runs) + report(made_up(), WANTED, max(options.runs // 4, 1))
    options.out.write_text(json.dumps({"machine": facts(), "confidence": CONFIDENCE, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
