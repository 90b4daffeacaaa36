"""The surrogate model of retention, its normal approximation, and the sequence of candidates that it gives."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsd_calib.certification.power import power
from fsd_calib.search.acquisition import Prospects, SettingGrid
from fsd_calib.search.max_speed import choose_sequence, expected_speed, simulate_passes
from fsd_calib.search.objective import Observation
from fsd_calib.search.surrogate import PassModel, Points, Posterior, Surrogate
from fsd_decoding.profile.parts import PolicyInfo
from fsd_decoding.profile.setting import Setting
from fsd_decoding.tree_shape import TreeShape

PASS_MODEL = PassModel(wanted=0.98, accuracy=0.9, tuning=900, certification=2100, delta=0.03)
ARM = Setting("fsd-coupled", "js", 8)
FLIPPED = 0.02


def points(shares: list[float], length: int = 8, policy: PolicyInfo | None = None) -> Points:
    arm = Setting("fsd-coupled", "js", length, policy=policy)
    return Points([arm] * len(shares), [None] * len(shares), np.array(shares), np.full(len(shares), FLIPPED))


def after(observed: dict[float, float], problems: int = PASS_MODEL.tuning, length: int = 8) -> Surrogate:
    """Returns the surrogate model fitted to these observed retentions, by share."""
    counts = np.full(len(observed), problems)
    return Surrogate(points(list(observed), length), np.array(list(observed.values())), counts, PASS_MODEL, [None])


def about(surrogate: Surrogate, *shares: float, length: int = 8) -> Posterior:
    return surrogate.about(points(list(shares), length))


def test_a_dip_is_predicted_and_so_is_the_recovery_behind_it() -> None:
    surrogate = after({2.0: 1.0, 2.6: 0.996, 3.0: 0.985, 3.4: 0.995, 3.8: 1.001})
    before, dip, behind = about(surrogate, 2.0, 3.0, 3.8).mean
    assert dip < min(before, behind) - 0.005


def test_a_cliff_far_away_does_not_spoil_a_plateau() -> None:
    surrogate = after({2.5: 1.0, 3.0: 0.999, 3.5: 1.0, 5.5: 0.7})
    assert about(surrogate, 3.0).mean[0] == pytest.approx(1.0, abs=0.004)
    assert about(surrogate, 5.5).mean[0] < 0.97


def test_a_trial_informs_other_draft_lengths_but_less() -> None:
    surrogate = after({3.0: 0.985, 3.5: 0.985}, length=4)
    own, other_length, nothing = (
        about(b, 3.2, length=length) for b, length in ((surrogate, 4), (surrogate, 10), (after({}), 10))
    )
    assert own.deviation[0] <= other_length.deviation[0] < nothing.deviation[0]
    assert other_length.mean[0] < nothing.mean[0] - 0.005


def test_repeating_a_whole_trial_teaches_nothing_and_completing_a_partial_one_does() -> None:
    whole, part = (about(after({3.0: 0.99}, problems), 3.0) for problems in (PASS_MODEL.tuning, 128))
    assert whole.learned[0] < 0.05 * part.learned[0]
    assert part.deviation[0] > whole.deviation[0]


def test_many_trials_do_not_remove_the_sampling_noise_of_the_tuning_part() -> None:
    """The same problems at thresholds close by are no new sample."""
    once = about(after({3.0: 0.99}), 3.0).deviation[0]
    often = about(after({3.0 + i / 100: 0.99 for i in range(-4, 5)}), 3.0).deviation[0]
    noise = PASS_MODEL.per_change * (FLIPPED / PASS_MODEL.tuning) ** 0.5
    assert 0.7 * noise < often <= once * 1.001


@given(order=st.permutations(range(5)))
@settings(max_examples=10)
def test_the_order_of_trials_does_not_matter(order: list[int]) -> None:
    shares, observed = [2.0, 2.6, 3.1, 3.7, 4.4], [1.0, 0.99, 0.985, 0.99, 0.96]
    mean = about(after(dict(zip(shares, observed, strict=True))), 2.8, 3.4, 4.0).mean
    other = about(after({shares[i]: observed[i] for i in order}), 2.8, 3.4, 4.0).mean
    assert other == pytest.approx(mean, abs=2e-4)


def test_policies_are_pooled_as_far_as_the_data_support_it() -> None:
    """A third policy is predicted better after two that agree than after two that differ."""
    shares = [2.0, 2.5, 3.0, 3.5, 4.0]
    second, third = (PolicyInfo(name=name, version=1, parameters={}) for name in ("second", "third"))

    def deviation_of_third(own: list[float], other: list[float]) -> float:
        both = [points(shares, policy=policy) for policy in (None, second)]
        arms = [arm for some in both for arm in some.arms]
        both_policies = Points(arms, [arm.policy for arm in arms], np.array(shares * 2), np.full(10, FLIPPED))
        surrogate = Surrogate(
            both_policies, np.array(own + other), np.full(10, PASS_MODEL.tuning), PASS_MODEL, [None, second, third]
        )
        return float(surrogate.about(points([3.0], policy=third)).deviation[0])

    falling = [1.0, 0.995, 0.985, 0.975, 0.96]
    assert deviation_of_third(falling, falling) < deviation_of_third(falling, [0.96, 0.97, 0.985, 1.0, 1.01])


@pytest.mark.slow
@given(
    retention=st.floats(0.975, 1.0), churn=st.floats(0.03, 0.1), problems=st.integers(1000, 4000),
    accuracy=st.floats(0.5, 0.95),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_the_normal_approximation_matches_the_power_of_the_test(
    retention: float, churn: float, problems: int, accuracy: float
) -> None:
    """Within five points, where dozens of outcomes flip and the truth is known."""
    pass_model = PassModel(0.97, accuracy, 10**9, problems, 0.03)
    normal = pass_model.chance(np.array([retention]), np.zeros(1), np.array([churn]))[0]
    real = power(problems=problems, accuracy=accuracy, churn=churn, retention=retention, wanted=0.97, delta=0.03)
    assert normal == pytest.approx(real, abs=0.05)


@given(accuracy=st.floats(0.88, 0.94), problems=st.integers(1000, 4000), alone=st.floats(0.9, 1.0))
@settings(max_examples=20, deadline=None)
def test_the_normal_approximation_matches_the_power_for_absolute_accuracy(
    accuracy: float, problems: int, alone: float
) -> None:
    pass_model = PassModel(0.9, alone, 10**9, problems, 0.03, absolute=True)
    normal = pass_model.chance(np.array([accuracy]), np.zeros(1), np.zeros(1))[0]
    real = power(problems=problems, accuracy=1.0, churn=1 - accuracy, retention=accuracy, wanted=0.9, delta=0.03)
    assert normal == pytest.approx(real, abs=0.06)


def test_an_absolute_claim_compares_accuracies() -> None:
    pass_model = PassModel(0.85, 0.9, 900, 2100, 0.03, absolute=True)
    assert pass_model.lossless == 0.9
    assert pass_model.shown(-0.01) == pytest.approx(0.89)
    alone, worse = pass_model.chance(np.array([0.9, 0.86]), np.zeros(2), np.zeros(2))
    assert alone > 0.95 > 0.5 > worse


LOSSLESS = 100.0


def prospects(settings_: list[tuple[str, float, float, float]]) -> Prospects:
    """Returns predictions for settings measured on the whole tuning part: score, logit(u), tokens/s and
    retention."""
    arms = [Setting("fsd-coupled", score, 8) for score, *_ in settings_]
    shares, speeds = np.array([s[1] for s in settings_]), np.array([s[2] for s in settings_])
    observations = [
        Observation(arm, at, (retention - 1) * PASS_MODEL.accuracy, 0.02, PASS_MODEL.tuning)
        for arm, (_, at, _, retention) in zip(arms, settings_, strict=True)
    ]
    return Prospects(SettingGrid(arms, shares, speeds), observations, PASS_MODEL, LOSSLESS)


SETTING = st.tuples(
    st.sampled_from(["js", "doubt"]), st.sampled_from([2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0]), st.floats(90, 200),
    st.floats(0.96, 1.01),
)  # fmt: skip
SOME = st.lists(SETTING, min_size=1, max_size=6, unique_by=lambda s: s[:2])


@given(some=SOME)
@settings(max_examples=40, deadline=None)
def test_each_rung_is_faster_and_no_likelier_to_pass_than_the_one_before(
    some: list[tuple[str, float, float, float]],
) -> None:
    predictions = prospects(some)
    chosen = choose_sequence(predictions)
    speeds, chances = predictions.settings.speeds[chosen], simulate_passes(predictions).mean(0)[chosen]
    assert all(speeds > LOSSLESS)
    assert all(a < b for a, b in pairwise(speeds))
    assert all(a >= b for a, b in pairwise(chances))
    assert all(chance >= 0.5 for chance in chances[:-1])


@given(some=SOME)
@settings(max_examples=20, deadline=None)
def test_the_greedy_sequence_is_nearly_as_good_as_the_best_one(
    some: list[tuple[str, float, float, float]],
) -> None:
    """Its expected speed is within 1.5 % of the best of all ordered sequences."""
    predictions = prospects(some)
    passed, speeds = simulate_passes(predictions), predictions.settings.speeds

    def value(chosen: list[int]) -> float:
        return expected_speed(chosen, passed, speeds, LOSSLESS)

    best = LOSSLESS
    chances = passed.mean(0)
    for size in range(1, len(some) + 1):
        for which in combinations(np.argsort(speeds).tolist(), size):
            in_order = all(speeds[a] < speeds[b] and chances[a] >= chances[b] for a, b in pairwise(which))
            if in_order and all(chances[i] >= 0.5 for i in which[:-1]):
                best = max(best, value(list(which)))
    assert value(choose_sequence(predictions)) >= 0.985 * best


def test_rungs_may_come_from_different_arms() -> None:
    chosen = choose_sequence(
        predictions := prospects([("js", 2.5, 130.0, 1.0), ("doubt", 3.5, 180.0, 0.989), ("js", 4.0, 150.0, 0.985)])
    )
    assert [predictions.settings.arms[i].score for i in chosen] == ["js", "doubt"]


def test_a_setting_no_faster_than_lossless_decoding_is_not_tested() -> None:
    assert choose_sequence(prospects([("js", 2.5, 99.0, 1.0), ("js", 3.0, 100.2, 1.0)])) == []


def test_a_bad_policy_lowers_the_prediction_of_another_only_a_little() -> None:
    arms = [
        Setting("fsd-coupled", "js", 8, policy=policy)
        for policy in (None, PolicyInfo(name="shape", version=1, parameters={}))
    ]
    good, bad = (
        Observation(arms[0], 3.0, 0.0, 0.02, PASS_MODEL.tuning),
        [Observation(arms[1], at, -0.2, 0.25, 128) for at in (2.8, 3.0, 3.2)],
    )
    own = SettingGrid(arms[:1], np.array([3.0]), np.array([150.0]))
    alone, beside = (
        Prospects(own, observations, PASS_MODEL, LOSSLESS).chances[0] for observations in ([good], [good, *bad])
    )
    assert beside > alone - 0.3


def test_a_setting_that_will_fail_is_not_tested() -> None:
    assert choose_sequence(prospects([("js", 4.5, 200.0, 0.9)])) == []


def test_a_draft_that_fails_in_one_shape_is_not_tried_at_length_in_the_others() -> None:
    """Nor with the other score; trials of a draft say nothing of another one."""
    small, large = TreeShape(2, 6), TreeShape(3, 16)
    arms = [
        Setting("fsd-coupled", score, 4, draft=draft, tree=tree)
        for draft in ("good", "bad") for tree in (None, small, large) for score in ("js", "doubt")
    ]  # fmt: skip
    tried = Setting("fsd-coupled", "js", 4, draft="bad", tree=small)
    failed = [Observation(tried, at, -0.8, 0.8, 64) for at in (3.0, 4.0, 5.0)]
    grid = SettingGrid(arms, np.full(len(arms), 4.0), np.full(len(arms), 150.0))
    chances = Prospects(grid, failed, PASS_MODEL, LOSSLESS).chances
    bad = np.array([arm.draft == "bad" for arm in arms])
    untried = Prospects(grid, [], PASS_MODEL, LOSSLESS).chances
    assert chances[bad].max() < 0.25 * untried[bad].min()
    assert np.allclose(chances[~bad], untried[~bad])
