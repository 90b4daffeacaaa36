"""Counts, oracle and intervals of the benchmark of early stopping; no speeds are tested."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fsd_calib import SpeculativeDecoder
from fsd_calib.tasks import load_task
from fsd_collectors.replay import CostModel
from fsd_data import pair_paths
from fsd_decoding.policies.stopping import DraftState, StopPolicy
from fsd_decoding.sampling import Sampling
from lib.common.delayed_draft import Delayed
from lib.common.forked_programs import run
from lib.common.paired_contest import Faster, Timed
from lib.common.problem_sets import problem_sets
from lib.stopping.decode import Contestant, Setting
from lib.stopping.oracle import LONGEST, oracle_contestant
from lib.stopping.until_end import UntilEnd
from support.paths import BENCHMARKS


@pytest.fixture(scope="module", params=[0.0, 0.6])
def setting(request: pytest.FixtureRequest) -> Setting:
    decoder = SpeculativeDecoder.from_pretrained(*pair_paths(), sampling=Sampling(request.param))
    return Setting(decoder, load_task("arithmetic", seed=5, limit=6, tokenizer=decoder.tokenizer), 0.08)


def test_no_question_is_in_two_sets() -> None:
    sets = problem_sets(300, 200, 100, None)
    assert len(sets.test.problems) > 90
    assert all(p.part == "tuning" for p in sets.training.problems)
    with pytest.raises(AssertionError, match="two sets"):
        replace(sets, tuning=sets.test).check()


@pytest.mark.slow
def test_the_oracle_writes_the_longest_drafts_text_and_drafts_nothing_in_vain(setting: Setting) -> None:
    problems = setting.task.problems
    longest = setting.decode(problems, LONGEST)
    foresaw = setting.decode(problems, oracle_contestant(setting, problems, 1))
    assert [r.tokens for r in foresaw] == [r.tokens for r in longest]
    assert [r.rounds for r in foresaw] == [r.rounds for r in longest]
    assert [r.drafted for r in foresaw] == [r.accepted for r in foresaw] == [r.accepted for r in longest]


class Third(StopPolicy):
    """Withholds the third token of every draft."""

    def goes_on(self, state: DraftState) -> list[bool]:
        return [True] * len(state.rows)

    def withholds(self, state: DraftState) -> list[bool]:
        return [len(state.logits) == 3] * len(state.rows)


def test_steps_are_counted_where_tokens_stay_unverified(setting: Setting) -> None:
    counts = setting.counts(setting.task.problems, Contestant("third", 5, Third()))
    assert (counts.drafted == 2 * counts.rounds).all()
    assert (counts.steps == 3 * counts.rounds).all()
    seconds = counts.seconds(CostModel(draft_step=2.0, verify=10.0, position=1.0))
    assert (seconds == counts.rounds * (3 * 2.0 + 10.0 + 3 * 1.0)).all()


def test_a_fixed_length_that_ends_behind_eos_drafts_no_more_and_says_the_same(setting: Setting) -> None:
    problems, ends = setting.task.problems, UntilEnd(setting.decoder.eos)
    fixed = setting.counts(problems, Contestant("fixed", 12))
    until = setting.counts(problems, Contestant("until", 12, ends))
    assert (until.tokens == fixed.tokens).all()
    assert (until.rounds == fixed.rounds).all()
    assert (until.steps <= fixed.steps).all()
    assert until.steps.sum() < fixed.steps.sum()


def test_a_delay_changes_no_text(setting: Setting) -> None:
    usual, problems = setting.decoder, setting.task.problems[:2]
    slower = SpeculativeDecoder(
        usual.target, Delayed(usual.draft, 1e-4), usual.tokenizer, sampling=usual.sampling
    )  # fmt: skip
    by = Contestant("fixed", 5)
    texts = [[r.tokens for r in Setting(d, setting.task, 0.08).decode(problems, by)] for d in (usual, slower)]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_intervals_hold_about_as_often_as_they_say_and_are_no_wider_than_need_be() -> None:
    # Each holds the truth, a gain of 0, in some 93 % of cases or more: of 100, fewer than 78 do with probability below
    # 1e-6. A gain's standard deviation is .2 sqrt(2 / 60) = .037, so intervals are some .14 wide.
    random = np.random.default_rng(3)

    def timed() -> Timed:
        tokens = random.integers(40, 90, 60)
        return Timed(tokens, tokens * random.lognormal(0.0, 0.2, 60), np.ones(60, bool))

    found = [Faster.of(timed(), timed()) for _ in range(100)]
    assert sum(one.low <= 0.0 <= one.high for one in found) >= 78
    assert 0.1 < np.median([one.high - one.low for one in found]) < 0.2


@pytest.mark.slow
def test_the_smoke_run_has_a_number_for_every_claim(tmp_path: Path) -> None:
    out = tmp_path / "results" / "predictor.json"
    parts = ("counts", "replay", "forecast")
    ran = run(BENCHMARKS / "predictor.py", "--quick", "--parts", *parts, "--out", str(out))
    assert ran.returncode == 0, ran.stderr
    found = json.loads(out.read_text())
    assert [cell["temperature"] for cell in found["cells"]] == [0.0, 0.6]
    for cell in found["cells"]:
        assert cell["counts"]["of"]["oracle"]["tokens_a_round"] > cell["counts"]["of"]["fixed"]["tokens_a_round"]
        assert cell["forecast"]["boosted"]["violations"] == 0
