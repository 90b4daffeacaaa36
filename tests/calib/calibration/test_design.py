"""Designs: the variances that they rest on, the cheapest that is enough, and a calibration that takes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.design import MOST_SEEDS, check_enough_by, design_of
from fsd_calib.calibration.odds import CHANCE, odds_of
from fsd_calib.calibration.pilot import Pilot
from fsd_calib.calibration.plan import PlannedStep, make_plan
from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.looks import Looks
from fsd_calib.certification.marking import LEDGER
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.power import Noise, independent_worth
from fsd_calib.engines.own import OwnEngine
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.report.plan import design_line
from fsd_calib.tasks.split import parts_of
from fsd_collectors.replay.cost import CostModel
from fsd_common.errors import UsageError
from fsd_decoding.models.fingerprint import family_id
from fsd_decoding.profile.certificate import attempt_level
from support.messages import usage_error
from support.models import tiny_calibration
from support.models.tiny_calibration import far_apart
from support.models.tiny_models import word_tokenizer

DELTA = 0.045
CLAIM = Claim(0.95, looks=Looks.evenly(1000, 10))


def drawn(problems: int, seeds: int, alike: float, rng: np.random.Generator, accuracy: float = 0.6) -> Paired:
    """Problems of which a fifth of outcomes flip, with this correlation between seeds."""
    spread = 1 / alike - 1
    solved = rng.random((problems, 1)) < accuracy  # by all seeds, or by none
    flips = rng.random((problems, seeds)) < rng.beta(0.2 * spread, 0.8 * spread, (problems, 1))
    target = np.repeat(solved, seeds, 1)
    return Paired(target, target ^ flips)


def pilot(noise: Noise | None, churn: float = 0.2) -> Pilot:
    return Pilot(64, 0.6, 0.0, churn, 1.0, noise=noise)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 64))
def test_seeds_are_worth_at_most_as_many_problems(between: float, within: float, seeds: int) -> None:
    noise = Noise(between, within)
    assert noise.gain(1) == pytest.approx(1)
    assert 1 - 1e-9 <= noise.gain(seeds) <= seeds + 1e-9
    assert noise.gain(seeds) <= noise.gain(seeds + 1) + 1e-12


@pytest.mark.parametrize("alike", [0.05, 0.3, 0.8])
def test_what_seeds_are_worth_is_that_of_their_means(alike: float) -> None:
    """20,000 problems: the standard error of what 8 seeds are worth is below 3 %, of an estimate that is cautious."""
    rng = np.random.default_rng(8)
    many, two = drawn(20_000, 8, alike, rng), drawn(20_000, 2, alike, rng)
    worth = independent_worth(many, 0.95)
    assert 0.88 * worth <= Noise.of(two, 0.95).gain(8) <= 1.05 * worth


def test_seeds_that_agree_are_worth_nothing() -> None:
    paired = drawn(500, 1, 0.3, np.random.default_rng(2))
    twice = Paired(paired.target.repeat(2, 1), paired.fuzzy.repeat(2, 1))
    assert Noise.of(twice, 0.95).gain(16) == 1.0


def test_what_few_problems_show_of_seeds_is_not_thought_to_be_more() -> None:
    """Of 400 pilots of 64 problems at most a third think seeds worth more than they are, where a fifth should by the
    normal law that is assumed; more than 133 have a chance below .0001, were the share .25; the seed is fixed."""
    rng = np.random.default_rng(3)
    worth = Noise.of(drawn(50_000, 2, 0.3, rng), 0.95).gain(8)
    more = sum(Noise.of(drawn(64, 2, 0.3, rng), 0.95).gain(8) > worth for _ in range(400))
    assert more <= 133


@settings(max_examples=25, deadline=None)
@given(st.floats(0.02, 0.3), st.floats(0, 0.3), st.integers(200, 3000), st.floats(0.01, 0.3))
def test_the_design_is_the_cheapest_that_is_enough(between: float, within: float, problems: int, churn: float) -> None:
    asked = pilot(Noise(between, within), churn)
    found = design_of(CLAIM, asked, DELTA, problems, (0.975, 1.0))
    assert found.problems <= problems

    def enough(number: int, seeds: int, truth: float) -> bool:
        return odds_of(CLAIM, asked, DELTA, seeds).chance(number, truth, 0.95) >= CHANCE

    if found.truth is None:
        assert (found.problems, found.seeds) == (problems, MOST_SEEDS)
        assert not enough(problems, MOST_SEEDS, 1.0)
        assert found.bound < 0.95
    else:
        assert enough(found.problems, found.seeds, found.truth)
        assert found.seeds == 1 or not enough(problems, found.seeds - 1, found.truth)
        assert found.truth == 0.975 or not enough(problems, MOST_SEEDS, 0.975)
        assert found.bound >= 0.95 - 1e-4


def test_without_noise_there_is_one_seed() -> None:
    assert design_of(CLAIM, pilot(None), DELTA, 10_000, (1.0,)).seeds == 1
    assert design_of(CLAIM, pilot(None), DELTA, 300, (1.0,)).seeds == 1


def test_what_no_design_shows_is_said_with_what_can_be() -> None:
    design = design_of(CLAIM, pilot(Noise(0.15, 0.05)), DELTA, 300, (0.975, 1.0))
    message = usage_error(lambda: check_enough_by(design, CLAIM))
    assert message.startswith("no design of these 300 problems shows retention 0.95 with probability 80")
    assert "with 16 seeds each they show 8" in message
    plan = make_plan(CLAIM, pilot(Noise(0.15, 0.05)), 300, DELTA)
    assert "No design of these problems shows the goal" in design_line(plan, design)
    check_enough_by(replace(design, truth=1.0), CLAIM)


def test_the_plan_says_what_the_design_takes() -> None:
    noise = Noise(0.02, 0.18)
    steps = (PlannedStep("baseline", 4000, 0.5), PlannedStep("certification", 8000, 0.5))
    plan = replace(make_plan(CLAIM, pilot(noise), 1000, DELTA), tokens=300.0, design_steps=steps, takes_design=False)
    assert plan.design is not None
    assert plan.design.seeds > 1
    line = design_line(plan, plan.design)
    assert line.startswith("Of the variance of outcomes 90.0% or more is within problems, between seeds.")
    assert f"{plan.design.problems:,} problems with {plan.design.seeds} seeds each" in line
    assert line.endswith("It takes 12,000 decodings in all (3.60 M tokens, 1.7 device-hours). --design auto takes it.")
    assert design_line(replace(plan, takes_design=None), plan.design).endswith("device-hours).")
    assert design_line(replace(plan, takes_design=True), plan.design).startswith("This run takes the design")


@pytest.mark.parametrize(
    ("goal", "named"),
    [
        (Goal(min_acc=0.9, explore=True), "explore tests nothing"),
        (Goal(min_speed=10.0), "min_speed tests nothing"),
        (Goal(pareto=True), "pareto tests nothing"),
        (Goal(min_acc=0.9, guarantee="dataset"), "guarantee 'dataset' is about all of the problems"),
    ],
    ids=str,
)
def test_a_design_is_for_a_goal_that_is_tested(goal: Goal, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Calibration("gsm8k", "target", "draft", goal, SearchSpace(), RunConfig(design="auto"))


def test_a_design_says_how_many_seeds() -> None:
    with pytest.raises(UsageError, match="seeds 4 says how many seeds; leave design out"):
        Calibration("gsm8k", "target", "draft", Goal(min_acc=0.9), config=RunConfig(design="auto", seeds=4))


def calibration(folder: Path, **run: Any) -> Calibration:
    settings: dict[str, Any] = {
        "out": folder / "out", "cache": folder, "state": folder, "timing": "none", "trials": 2, "design": "auto", **run,
    }  # fmt: skip
    return Calibration(
        tiny_calibration.task(300), *far_apart(), Goal(min_acc=0.7, serve_batch=8),
        SearchSpace(score="js", draft_length=4, temperature=1.0), RunConfig(**settings), word_tokenizer(),
    )  # fmt: skip


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of no clock."""
    monkeypatch.setattr(OwnEngine, "costs", lambda *_: CostModel(0.001, 0.003, 0.0))


@pytest.mark.slow
@pytest.mark.usefixtures("costs")
def test_a_calibration_takes_the_design_and_again_the_same_wherever(tmp_path: Path) -> None:
    """Also once all its problems are tuned on, which leaves none for another."""
    proposed = calibration(tmp_path).plan().design
    assert proposed is not None
    made = calibration(tmp_path).run()
    assert (made.certificate.looks[-1], made.certificate.seeds) == (proposed.problems, proposed.seeds)
    with AttemptLedger(tmp_path / LEDGER) as ledger:
        ledger.tuned_on(family_id(far_apart()[0]), tiny_calibration.task(300).problems)
    for folder in ("out", "elsewhere"):
        assert calibration(tmp_path, out=tmp_path / folder).run().certificate == made.certificate


@pytest.mark.slow
@pytest.mark.usefixtures("costs")
def test_the_design_is_of_problems_that_can_be_used(tmp_path: Path) -> None:
    task = tiny_calibration.task(300)
    with AttemptLedger(tmp_path / LEDGER) as ledger:
        ledger.tuned_on(family_id(far_apart()[0]), parts_of(task).certification[:60])
    proposed = calibration(tmp_path).plan().design
    assert proposed is not None
    assert calibration(tmp_path).run().certificate.looks[-1] == proposed.problems


@pytest.mark.slow
@pytest.mark.usefixtures("costs")
def test_a_design_after_an_attempt_is_of_the_next_one(tmp_path: Path) -> None:
    first = calibration(tmp_path, out=tmp_path / "all", design="all").run()
    later = calibration(tmp_path).plan()
    assert (first.certificate.attempt, later.attempt) == (1, 2)
    assert later.delta == attempt_level(0.95, 2)
