"""DivergenceBudget: its bound against an adversary, how close it comes, what it counts, its errors and warnings."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsd_common.errors import UsageError
from fsd_data import pair_paths
from fsd_decoding.adaptive import DivergenceBudget, Schedule
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.profile.parts import PolicyInfo
from support.calibration.profiles import UNCERTIFIED, profile
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import ragged_prompts, related

Round = tuple[int, int, float, float]  # rows, drafted tokens, share that is substituted, their score as a share of T
ROUNDS = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 6), st.floats(0, 1), st.floats(0, 1)), max_size=60)


def play(budget: DivergenceBudget, round_: Round) -> tuple[int, float]:
    """Plays a round of an adversary who knows T; returns tokens kept and what was spent, 0 where T is below 0."""
    rows, drafted, share, near = round_
    threshold = float(budget.current)
    substituted = round(rows * drafted * share) if threshold >= 0 else 0
    nats = 1.0 if budget.measure == "substitutions" else near * threshold
    kept = max(rows, substituted)  # the fewest possible: every row gets one
    budget.spend(torch.tensor([kept]), torch.tensor(substituted * nats, dtype=torch.float64), rows * drafted)
    return kept, substituted * nats


@given(
    rounds=ROUNDS,
    measure=st.sampled_from(["divergence", "substitutions"]),
    per_token=st.floats(0, 0.5),
    start=st.floats(0, 0.6),
    gamma=st.floats(0.001, 4),
)
def test_no_adversary_spends_more_than_the_bound_after_any_round(
    rounds: list[Round], measure: Any, per_token: float, start: float, gamma: float
) -> None:
    budget = DivergenceBudget(per_token, measure, start=start, gamma=gamma)
    tokens, spent = 0, 0.0
    for round_ in rounds:
        kept, nats = play(budget, round_)
        tokens, spent = tokens + kept, spent + nats
        assert spent / tokens <= budget.bound(tokens) + 1e-9
        assert budget.mean == pytest.approx(spent / tokens)
        assert float(budget.current) <= budget.ceiling


def test_rounds_that_draft_nothing_save_no_more_than_the_bound_includes() -> None:
    budget = DivergenceBudget(0.01)
    for round_ in [(1, 0, 0.0, 0.0)] * 8000 + [(64, 5, 1.0, 1.0)] * 100:
        play(budget, round_)
        assert budget.mean <= budget.bound(budget.state_dict()["tokens"]) + 1e-9


@given(rounds=ROUNDS, rows=st.integers(1, 8), per_token=st.floats(0.001, 0.5))
def test_from_zero_and_in_batches_of_one_size_score_is_never_above_the_budget(
    rounds: list[Round], rows: int, per_token: float
) -> None:
    budget = DivergenceBudget(per_token)
    for _, _, share, near in rounds:
        play(budget, (rows, 5, share, near))
        assert budget.bound(1) == per_token
        assert budget.mean <= per_token + 1e-9
        assert float(budget.current) >= 0


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("rows", [1, 32])
@pytest.mark.parametrize(("measure", "per_token"), [("divergence", 0.01), ("substitutions", 0.25)])
def test_a_reachable_budget_is_spent_to_two_percent_on_a_stream_that_changes(
    rows: int, measure: Any, per_token: float
) -> None:
    """Divergences of the second half are three times as large. The mean leaves nothing to chance: it falls short of
    the budget by what T stands for at most, and exceeds it by what the bound allows at most."""
    random, budget = np.random.default_rng(rows), DivergenceBudget(per_token, measure)
    total = 40_000 if rows == 1 else 400_000
    half, rounds = total // (2 * 4 * rows), total // (4 * rows)
    late = []
    for n in range(rounds):
        threshold = float(budget.current)
        drawn = random.exponential(0.05 if n < half else 0.15, (rows, 5))
        runs = np.cumprod((drawn <= threshold) | (random.random((rows, 5)) < 0.6), 1).astype(bool)
        spared = drawn[runs & (drawn <= threshold)]
        spent = float(len(spared)) if measure == "substitutions" else spared.sum()
        budget.spend(torch.from_numpy(runs.sum(1) + 1), torch.tensor(spent, dtype=torch.float64), 5 * rows)
        tokens = budget.state_dict()["tokens"]
        assert budget.mean <= budget.bound(tokens) + 1e-12
        late.append(threshold)
    assert budget.mean == pytest.approx(per_token, rel=0.02)
    settled = late[half // 2 : half], late[half + half // 2 :]
    assert all(np.std(part) < 0.5 * np.mean(part) for part in settled)  # it does not oscillate
    assert budget.doubts() == []


@pytest.fixture(scope="module")
def pair() -> SpeculativeDecoder:
    return SpeculativeDecoder(*related(seed=1, spread=0.05), word_tokenizer())


class Bill:
    """An observer that counts what rounds spent, up to the first rejection, as if no text ended within a round."""

    def __init__(self) -> None:
        self.nats, self.count = 0.0, 0

    def __call__(self, record: RoundRecord) -> None:
        for row in range(len(record.drafted)):
            for at in range(int(record.accepted[row])):
                if record.verdict.by_score is None or record.verdict.by_score[row, at]:
                    self.nats += float(record.proposal.scores[row, at])
                    self.count += 1


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("rule", ["fsd", "fsd-sd", "fsd-coupled"])
@pytest.mark.parametrize("measure", ["divergence", "substitutions"])
def test_what_a_real_round_spends_is_what_its_texts_took(pair: SpeculativeDecoder, rule: str, measure: Any) -> None:
    """The bill may exceed the texts by what their last rounds drafted beyond their ends, and by no more."""
    budget, bill = DivergenceBudget(0.2 if measure == "divergence" else 0.8, measure), Bill()
    found = pair.generate(
        ragged_prompts(12), 60, batch_size=4, rule=rule, temperature=1.0, threshold=budget, observer=bill
    )
    state = budget.state_dict()
    assert state["tokens"] == sum(r.emitted for r in found)
    billed, one = (bill.count, 1.0) if measure == "substitutions" else (bill.nats, budget.ceiling)
    assert billed - 5 * len(found) * one <= state["spent"] <= billed + 1e-6
    assert state["spent"] > 0
    assert budget.mean <= budget.bound(state["tokens"])


def test_all_rows_share_one_t_and_t_below_zero_accepts_nothing(pair: SpeculativeDecoder) -> None:
    lossless = pair.generate(ragged_prompts(6), 32, rule="coupled")
    found = pair.generate(ragged_prompts(6), 32, threshold=DivergenceBudget(0.0))
    assert [r.tokens for r in found] == [r.tokens for r in lossless]


@pytest.mark.slow
def test_the_bundled_pair_never_spends_more_than_its_budget() -> None:
    from fsd_calib import load_task

    decoder = SpeculativeDecoder.from_pretrained(*pair_paths())
    task = load_task("arithmetic", limit=24, tokenizer=decoder.tokenizer)
    budget, means = DivergenceBudget(0.004), []
    for start in range(0, 24, 8):
        prompts = [p.prompt for p in task.problems[start : start + 8]]
        decoder.generate(prompts, 48, batch_size=8, threshold=budget, observer=lambda _: means.append(budget.mean))
    assert max(m for m in means if not math.isnan(m)) <= 0.004
    assert 0.001 < budget.mean <= budget.bound(1) == 0.004


def test_a_budget_out_of_reach_warns_and_names_what_was_spent(pair: SpeculativeDecoder) -> None:
    budget = DivergenceBudget(0.29, ceiling=0.3, start=0.3)
    with pytest.warns(UserWarning, match=r"may spend 0\.29 per token but spent 0\.\d+: T was at its ceiling, 0\.3,"):
        pair.generate(ragged_prompts(8), 32, threshold=budget)
    assert budget.mean < 0.3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair.generate(ragged_prompts(8), 32, threshold=DivergenceBudget(0.01))


@pytest.mark.parametrize("name", ["per_token", "start", "gamma", "ceiling"])
@pytest.mark.parametrize("value", [-0.01, math.nan, math.inf, "much", True])
def test_values_that_are_no_amounts_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name):
        DivergenceBudget(**{name: value})


def test_numbers_of_numpy_are_amounts_and_go_into_its_state_as_plain_ones() -> None:
    budget = DivergenceBudget(np.float32(0.25), ceiling=np.float64(0.5), gamma=np.float32(0.5))  # type: ignore[arg-type]
    assert json.loads(json.dumps(budget.state_dict()))["per_token"] == 0.25


def test_impossible_settings_are_refused(pair: SpeculativeDecoder) -> None:
    with pytest.raises(UsageError, match="measure is 'nats'"):
        DivergenceBudget(measure="nats")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no threshold to use as the ceiling"):
        DivergenceBudget(profile=profile(UNCERTIFIED))
    with pytest.raises(UsageError, match=r"start is 0\.9, above the ceiling"):
        pair.generate(ragged_prompts(1), 4, threshold=DivergenceBudget(start=0.9))
    with pytest.raises(UsageError, match="another tokenizer"):
        pair.generate(ragged_prompts(1), 4, threshold=DivergenceBudget(profile=profile()))


@pytest.mark.parametrize(
    "given",
    [
        {"per_token": 5.0}, {"per_token": 0.3, "ceiling": 0.3}, {"per_token": 2.0, "measure": "substitutions"},
        {"per_token": 0.07, "profile": profile()},
    ],
)  # fmt: skip
def test_more_than_any_token_can_spend_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="no token can spend more than"):
        DivergenceBudget(**given)


def test_a_refused_score_is_not_remembered(pair: SpeculativeDecoder) -> None:
    budget = DivergenceBudget(0.1, start=0.9)
    with pytest.raises(UsageError, match=r"start is 0\.9, above the ceiling"):
        pair.generate(ragged_prompts(1), 4, threshold=budget)
    tv = SpeculativeDecoder(pair.target, pair.draft, pair.tokenizer, score="tv")
    tv.generate(ragged_prompts(1), 4, threshold=budget)
    with pytest.raises(UsageError, match=r"per_token is 0\.8, but no token can spend more than 0\.6931 \(divergence\)"):
        pair.generate(ragged_prompts(1), 4, threshold=DivergenceBudget(0.8))


def test_a_profile_with_a_policy_is_refused() -> None:
    moved = profile().model_copy(update={"policy": PolicyInfo.of(str(Schedule(0.05, 0.3, 200).identity))}).sealed()
    for ceiling in (None, 0.3):
        with pytest.raises(UsageError, match="is already moved by the policy 'schedule'"):
            DivergenceBudget(profile=moved, ceiling=ceiling)


def test_the_ceiling_is_the_given_one_the_profiles_or_the_scores_largest_value() -> None:
    assert DivergenceBudget(ceiling=0.3, profile=profile()).ceiling == 0.3
    assert DivergenceBudget(profile=profile()).ceiling == profile().threshold
    target, draft = related(seed=1, spread=0.05)
    for name, largest in (("js", math.log(2)), ("tv@5", 1.0), ("hellinger", 1.0)):
        decoder, budget = SpeculativeDecoder(target, draft, word_tokenizer(), score=name), DivergenceBudget()
        decoder.generate(ragged_prompts(1), 4, threshold=budget)
        assert budget.ceiling == largest
    decoder = SpeculativeDecoder(target, draft, word_tokenizer(), score="ag")
    with pytest.raises(UsageError, match=r"'ag' has no largest value; set DivergenceBudget\(ceiling=\.\.\.\)"):
        decoder.generate(ragged_prompts(1), 4, threshold=DivergenceBudget())
    decoder.generate(ragged_prompts(1), 4, threshold=(spent := DivergenceBudget(ceiling=2.0)))
    with pytest.raises(UsageError, match="learned a T for score 'ag'"):
        SpeculativeDecoder(target, draft, word_tokenizer()).generate(ragged_prompts(1), 4, threshold=spent)


@given(rounds=ROUNDS, at=st.integers(0, 60), measure=st.sampled_from(["divergence", "substitutions"]))
def test_a_restored_budget_goes_on_exactly(rounds: list[Round], at: int, measure: Any) -> None:
    whole, first = (DivergenceBudget(0.02, measure, start=0.1) for _ in range(2))
    for round_ in rounds:
        play(whole, round_)
    for round_ in rounds[:at]:
        play(first, round_)
    second = DivergenceBudget(0.02, measure, start=0.1)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for round_ in rounds[at:]:
        play(second, round_)
    assert torch.equal(second.current, whole.current)
    assert second.state_dict() == pytest.approx(whole.state_dict(), nan_ok=True)  # sums of two calls, or of one
    assert second.bound(100) == whole.bound(100)


@pytest.mark.parametrize("changes", [{"per_token": 0.02}, {"measure": "substitutions"}, {"policy": "SpeedBudget"}])
def test_a_state_of_another_budget_is_refused(changes: dict[str, Any]) -> None:
    state = DivergenceBudget(0.01).state_dict()
    with pytest.raises(UsageError, match="the policy that saved it"):
        DivergenceBudget(0.01).load_state_dict(state | changes)
    del state["spent"]
    with pytest.raises(UsageError, match="lacks spent"):
        DivergenceBudget(0.01).load_state_dict(state)
