"""Designs of problems and seeds: `python benchmarks/seeds.py [--quick]`; half an hour on one core.

What a plan proposes by a pilot of 64 problems with two seeds each, and how often it certifies then: for simulated
populations, in which outcomes vary within problems more or less, and for the bundled pair at temperature 1, of whose
decodings with eight seeds each pilots and certification parts are drawn with replacement. Each certificate is that of a
setting which keeps what the design is made for, tested at ten looks. Beside it are the design that follows from the
true variances, and what as many decodings of problems with one seed each certify. Prints a table, and writes all
results to `--out` as JSON.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.design import Design, design_of
from fsd_calib.calibration.odds import CHANCE
from fsd_calib.calibration.pilot import Pilot
from fsd_calib.certification.certificate import certify_sequence
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.looks import Looks
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.power import Noise, cells
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_data import pair_paths
from fsd_decoding.profile.certificate import attempt_level
from fsd_decoding.profile.setting import Setting
from lib.common.results import machine_facts, options_of, write_json

_PILOT, _TWO, _LOOKS = 64, 2, 10
_DELTA = attempt_level(0.95, 1)
_SETTING = Setting("fsd-coupled", "doubt", 8, 0.7)  # of the bundled pair
_SEED = 17


@dataclass(frozen=True)
class Population:
    """Problems with accuracies and propensities to flip of their own.

    Args:
        alike: The correlation of flips under two seeds of a problem.
    """

    accuracy: float
    churn: float
    retention: float
    alike: float

    def draw(self, problems: int, seeds: int, rng: np.random.Generator) -> Paired:
        law = cells(self.accuracy, self.churn, self.retention)
        solved = rng.beta(*_beta(self.accuracy, 0.6), (problems, 1))
        flips = rng.beta(*_beta(self.churn, self.alike), (problems, 1)) / self.churn  # 1 on average
        target = rng.random((problems, seeds)) < solved
        chance = np.where(target, law.lost / self.accuracy, law.gained / (1 - self.accuracy)) * flips
        return Paired(target, target ^ (rng.random((problems, seeds)) < chance))


def _beta(mean: float, alike: float) -> tuple[float, float]:
    """Returns parameters of a beta law with a mean, in which two draws have this correlation."""
    spread = 1 / alike - 1
    return mean * spread, (1 - mean) * spread


Draw = Callable[[int, int, np.random.Generator], Paired]


def pilot_of(seen: Paired, claim: Claim) -> Pilot:
    return Pilot(
        seen.problems, seen.target_accuracy, 0.0, seen.churn, None, 1.0, Noise.of(claim.judged(seen), claim.wanted or 1)
    )


def measured(
    draw: Draw, wanted: float, truth: float, problems: int, runs: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Returns how often the designs of pilots certify a setting of a known truth, and what they take."""
    claim = Claim(wanted, looks=Looks.evenly(problems, _LOOKS))
    ideal = _design(pilot_of(draw(20_000, _TWO, rng), claim), claim, problems, truth)
    designs = [_design(pilot_of(draw(_PILOT, _TWO, rng), claim), claim, problems, truth) for _ in range(runs)]
    enough = [design for design in designs if design.truth is not None]
    passed = [_passes(draw(each.problems, each.seeds, rng), wanted) for each in enough]
    once = [_passes(draw(problems, 1, rng), wanted) for _ in range(runs)]
    ideally = [_passes(draw(ideal.problems, ideal.seeds, rng), wanted) for _ in range(runs)] if ideal.truth else []
    return {
        "problems": problems, "wanted": wanted, "truth": truth, "proposed": len(enough) / runs,
        "seeds": [float(q) for q in np.quantile([d.seeds for d in enough], (0.1, 0.5, 0.9))] if enough else None,
        "certified": float(np.mean([p for p, _ in passed])) if enough else None,
        "decodings": float(np.mean([d for _, d in passed])) if enough else None,
        "ideal": [ideal.problems, ideal.seeds] if ideal.truth else None,
        "ideally certified": float(np.mean([p for p, _ in ideally])) if ideally else None,
        "ideally decodings": float(np.mean([d for _, d in ideally])) if ideally else None,
        "certified with one seed": float(np.mean([p for p, _ in once])),
    }  # fmt: skip


def _design(pilot: Pilot, claim: Claim, problems: int, truth: float) -> Design:
    return design_of(claim, pilot, _DELTA, problems, (truth,))


def _passes(paired: Paired, wanted: float) -> tuple[bool, int]:
    """Returns whether outcomes pass, and how many of them were decoded under the setting."""
    looks = Looks.evenly(paired.problems, _LOOKS)
    prefixes = (paired.part(0, number) for number in looks.problems)
    evidence = certify_sequence([prefixes], Claim(wanted, looks=looks), _DELTA).tested[0]
    return evidence.passed, evidence.paired.problems * paired.seeds


_SIMULATED = (0.8, 0.1, 0.95, 0.3), (0.53, 0.2, 0.95, 0.1), (0.53, 0.2, 0.9, 0.3), (0.8, 0.03, 0.97, 0.3)
"""Accuracy, churn, what is wanted, and how alike flips of a problem are."""


def simulated(
    populations: Sequence[tuple[float, float, float, float]], runs: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    rows = []
    for accuracy, churn, wanted, alike in populations:
        for truth in ((1 + wanted) / 2, 1.0):
            population = Population(accuracy, churn, truth, alike)
            row = measured(population.draw, wanted, truth, 1000, runs, rng)
            rows.append({"accuracy": accuracy, "churn": churn, "alike": alike, **row})
            print(rows[-1], flush=True)
    return rows


def bundled(
    problems: int, seeds: int, sizes: Sequence[int], runs: int, rng: np.random.Generator
) -> dict[str, Any]:  # fmt: skip
    """Returns the same of the bundled pair at temperature 1, where a goal is as far away as its truth is from 1."""
    with tempfile.TemporaryDirectory() as folder:
        known = _decoded(problems, seeds, folder)
    truth = known.retention

    def draw(number: int, of_each: int, rng: np.random.Generator) -> Paired:
        chosen, places = rng.choice(known.problems, number), np.arange(number)[:, None]
        which = np.argsort(rng.random((number, seeds)), axis=1)[:, :of_each]
        return Paired(known.target[chosen][places, which], known.fuzzy[chosen][places, which])

    claim = Claim(0.95)
    noise = Noise.of(known, 0.95)
    goals = [round(truth - gap, 3) for gap in (0.02, 0.04)]
    rows = [measured(draw, wanted, truth, number, runs, rng) for wanted in goals for number in sizes]
    return {
        "problems": known.problems, "seeds": seeds, "setting": _SETTING.values, "accuracy": known.target_accuracy,
        "retention": truth, "churn": known.churn, "within": noise.within / (noise.within + noise.between),
        "claim": claim.wanted, "rows": rows,
    }  # fmt: skip


def _decoded(problems: int, seeds: int, folder: str) -> Paired:
    config = RunConfig(limit=problems, seeds=seeds, cache=folder, state=folder, workers=1)
    asked = Calibration(
        "arithmetic", *pair_paths(), Goal(min_acc=0.5), SearchSpace(temperature=1.0, draft_length=8), config
    )
    with asked.opened(config) as (session, *_):
        everything = session.task.problems
        alone, fuzzy = (session.decode(each, everything) for each in (session.setting("target"), _SETTING))
    return Paired(*(np.array([[d.correct for d in of] for of in each]) for each in (alone, fuzzy)))


def main() -> None:
    options, machine = options_of(__doc__, "seeds.json").parse_args(), machine_facts()
    runs, problems, seeds, sizes = (2, 40, 3, (60,)) if options.quick else (60, 800, 8, (300, 600))
    populations = _SIMULATED[: 1 if options.quick else None]
    rng = np.random.default_rng(_SEED)
    found: dict[str, Any] = {"chance": CHANCE, "runs": runs, "simulated": simulated(populations, runs, rng)}
    found["bundled"] = bundled(problems, seeds, sizes, runs, rng)
    write_json({**found, "machine": machine, "seconds": time.time() - machine["began"]}, options.out)
    print(found["bundled"])


if __name__ == "__main__":
    main()
