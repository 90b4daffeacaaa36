"""Speed that different testing procedures certify: `nohup python benchmarks/procedures.py &`; takes half an hour.

All procedures bound the probability of any false certificate by δ. They get the same searches on the pools of
`regret.py` and the same outcomes on the certification part; each tests a sequence that is planned for its own levels.
`fsd_calib` always uses the one that did best here, the fixed sequence.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fsd_calib.certification.claim import Claim
from fsd_calib.certification.outcomes import Paired
from fsd_calib.engines.configuration import Configuration
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.search.acquisition import Prospects
from fsd_calib.search.candidates import choose_sequence, measure_candidates
from fsd_calib.search.forecast import configuration_at
from lib.calibration.pool import TARGET
from lib.calibration.pooled_calibration import TuningRecord, level, tune
from lib.common.machine import machine_facts
from lib.common.results import write_json
from regret import CONFIDENCE, WANTED, Arena, Half, real_arenas, synthetic_arenas

_CERTIFICATION = 2_100
_HEDGE = 0.2  # share of the level
_BETTING = 0.6  # problems of the score test that a problem is worth to betting: see `fsd_calib.certification.power`


@dataclass(eq=False)
class Case:
    """One search, and the outcomes of its settings on the certification part."""

    arena: Arena
    known: TuningRecord
    evaluator: Evaluator
    truth: Half
    wanted: float

    @cached_property
    def prospects(self) -> Prospects:
        known, arena = self.known, self.arena
        return measure_candidates(
            known.searched.trials, arena.space, known.evaluator, known.alone, arena.forecast,
            known.objective.pass_model, known.lossless,
        )  # fmt: skip

    def ladder(self, delta: float, divergence: str | None = None, worth: float = 1.0) -> list[Configuration]:
        """Returns the sequence that is planned for a test at level `delta`.

        Args:
            divergence: the only one to use; None: all of them.
            worth: how many problems of the score test a problem is worth.
        """
        prospects = self.prospects
        arms = prospects.settings.arms
        which = np.array([i for i, arm in enumerate(arms) if divergence in (None, arm.divergence)], int)
        if not len(which):
            return []
        pass_model = replace(
            prospects.pass_model, delta=delta, certification=round(worth * prospects.pass_model.certification)
        )
        some = Prospects(prospects.settings.subset(which), prospects.observations, pass_model, prospects.lossless)
        return [configuration_at(self.arena.forecast, some.settings.point(i)) for i in choose_sequence(some)]

    def passes(self, configuration: Configuration, delta: float, test: Any = "score") -> bool:
        claim = Claim(self.wanted, test=test, problems=_CERTIFICATION)
        alone, fuzzy = (self.evaluator.measure(c) for c in (TARGET, configuration))
        return claim.p_value(Paired(alone.correct, fuzzy.correct)) <= delta


Procedure = Callable[[Case, float], list[Configuration]]
"""Returns all configurations that are certified at a level."""


def fixed_sequence(case: Case, delta: float) -> list[Configuration]:
    return _passing(case, case.ladder(delta), delta)


def e_values(case: Case, delta: float) -> list[Configuration]:
    """Tests the fixed sequence by betting, whose wealth is an e-value."""
    return _passing(case, case.ladder(delta, worth=_BETTING), delta, "betting")


def two_chains(case: Case, delta: float) -> list[Configuration]:
    """Tests a chain per divergence at half the level; a chain that passes as a whole hands its level on.

    Source: Bretz et al. 2009.
    """
    chains = [case.ladder(delta / 2, divergence) for divergence in case.arena.space.divergences]
    return _chains(case, chains, [delta / 2] * len(chains))


def hedged(case: Case, delta: float) -> list[Configuration]:
    """Tests the sequence at 4/5 of the level, and the setting of other divergences most likely to pass at 1/5."""
    first = case.ladder((1 - _HEDGE) * delta)
    others = [d for d in case.arena.space.divergences if not first or d != first[0].divergence]
    second = max((case.ladder(_HEDGE * delta, d)[:1] for d in others), key=len, default=[])
    return _chains(case, [first, second], [(1 - _HEDGE) * delta, _HEDGE * delta])


def fallback(case: Case, delta: float) -> list[Configuration]:
    """Tests the sequence with equal shares of the level; a setting that passes hands its level on to the next."""
    ladder = case.ladder(delta / 2)  # a level between that of the first setting and the largest of the last
    certified, inherited = [], 0.0
    for configuration in ladder:
        at = inherited + delta / len(ladder)
        passed = case.passes(configuration, at)
        inherited = at if passed else 0.0
        certified += [configuration] if passed else []
    return certified


def two_starts(case: Case, delta: float) -> list[Configuration]:
    """Tests the sequence from its beginning and from its middle, each at half the level, as in Learn-then-Test."""
    ladder = case.ladder(delta / 2)
    middle = len(ladder) // 2
    certified = _passing(case, ladder, delta / 2)
    return certified + [c for c in _passing(case, ladder[middle:], delta / 2) if c not in certified]


def holm(case: Case, delta: float) -> list[Configuration]:
    """Tests every setting of the sequence, in no order, at δ divided by how many are left."""
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
    """Tests chains; one that passes as a whole hands its level on to the next, and the last one to the first."""
    certified = [_passing(case, chain, at) for chain, at in zip(chains, levels, strict=True)]
    for _ in chains:
        whole = [len(passed) == len(chain) for passed, chain in zip(certified, chains, strict=True)]
        spare = sum(at for at, done in zip(levels, whole, strict=True) if done)
        certified = [
            passed if done else _passing(case, chain, at + spare / max(whole.count(False), 1))
            for passed, chain, at, done in zip(certified, chains, levels, whole, strict=True)
        ]
    return [configuration for passed in certified for configuration in passed]


def compare(arena: Arena, wanted: float, seed: int) -> dict[str, tuple[float, bool]]:
    """Returns for each procedure certified tokens/s over the oracle's, and whether any certificate is false."""
    decode, tuning, certify, truth = arena.draw_parts(seed, _CERTIFICATION)
    known = tune(decode, arena.forecast, arena.space, tuning, _CERTIFICATION, wanted, CONFIDENCE)
    case = Case(arena, known, Evaluator(decode, certify, "certification"), truth, wanted)
    outcomes: dict[str, tuple[float, bool]] = {}
    for name, procedure in PROCEDURES.items():
        truths = [truth.truth(configuration) for configuration in procedure(case, level(CONFIDENCE))]
        fastest = max((speed for _, speed in truths), default=truth.lossless)
        outcomes[name] = (fastest / truth.best(wanted), any(retention < wanted for retention, _ in truths))
    return outcomes


def report(arenas: Mapping[str, Callable[[int], Arena]], wanted: Sequence[float], runs: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, arena in arenas.items():
        for goal in wanted:
            made = [compare(arena(seed), goal, seed) for seed in range(runs)]
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
    parser.add_argument("--runs", type=int, default=100, help="searches per goal; a quarter of them on synthetic pools")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "procedures.json")
    options = parser.parse_args()
    print(HEADER)
    rows = report(real_arenas(), WANTED, options.runs)
    rows += report(synthetic_arenas(), WANTED, max(options.runs // 4, 1))
    write_json({"machine": machine_facts(), "confidence": CONFIDENCE, "rows": rows}, options.out, indent=2)


if __name__ == "__main__":
    main()
