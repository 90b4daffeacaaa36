"""The sequence to be tested: its order, and its expected speed beside the best possible sequence."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fsd_calib.search.acquisition import Prospects, SettingGrid
from fsd_calib.search.max_speed import choose_sequence, expected_speed, simulate_passes
from fsd_calib.search.objective import Observation
from fsd_calib.search.surrogate import PassModel
from fsd_decoding.profile.parts import PolicyInfo
from fsd_decoding.profile.setting import Setting
from fsd_decoding.tree_shape import TreeShape

PASS_MODEL = PassModel(wanted=0.98, accuracy=0.9, tuning=900, certification=2100, delta=0.03)
LOSSLESS = 100.0


def prospects(settings_: list[tuple[str, float, float, float]]) -> Prospects:
    """Returns predictions for settings measured on the whole tuning part: divergence, logit(u), tokens/s and
    retention."""
    arms = [Setting("fsd-coupled", divergence, 8) for divergence, *_ in settings_]
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
    assert [predictions.settings.arms[i].divergence for i in chosen] == ["js", "doubt"]


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
    """Nor with the other divergence; trials of a draft say nothing of another one."""
    small, large = TreeShape(2, 6), TreeShape(3, 16)
    arms = [
        Setting("fsd-coupled", divergence, 4, draft=draft, tree=tree)
        for draft in ("good", "bad") for tree in (None, small, large) for divergence in ("js", "doubt")
    ]  # fmt: skip
    tried = Setting("fsd-coupled", "js", 4, draft="bad", tree=small)
    failed = [Observation(tried, at, -0.8, 0.8, 64) for at in (3.0, 4.0, 5.0)]
    grid = SettingGrid(arms, np.full(len(arms), 4.0), np.full(len(arms), 150.0))
    chances = Prospects(grid, failed, PASS_MODEL, LOSSLESS).chances
    bad = np.array([arm.draft == "bad" for arm in arms])
    untried = Prospects(grid, [], PASS_MODEL, LOSSLESS).chances
    assert chances[bad].max() < 0.25 * untried[bad].min()
    assert np.allclose(chances[~bad], untried[~bad])
