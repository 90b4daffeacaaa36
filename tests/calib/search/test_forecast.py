"""Forecasts compared with replay and with walked rounds, and measurements with shifted outcomes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.engines.base import DecodingRequest, KeyedPrompt, Limits
from fsd_calib.engines.own import OwnEngine
from fsd_calib.measuring.measurement import flips, plausible_flips, with_gains, with_losses
from fsd_calib.search.forecast import ReplayForecast, WalkedForecast
from fsd_calib.search.space import Space
from fsd_collectors.replay import CostModel, quantiles, replay
from fsd_collectors.replay.walks import Walked, Walks
from fsd_collectors.store.reading import Traces, load_traces
from fsd_decoding.profile.setting import Setting
from fsd_decoding.tree_shape import TreeShape
from support.calibration.simulated_worlds import Formula, World
from support.models.tiny_pair import tiny_decoder
from support.traces.rows import manifest, write

SPACE = Space(("fsd-coupled", "fsd"), ("js", "kl_qp"), (1, 3, 6))
COSTS = CostModel(draft_step=0.002, verify=0.01)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    return load_traces(write(tmp_path_factory.mktemp("traces"), manifest(200)))


@pytest.fixture(scope="module")
def forecast(traces: Traces) -> ReplayForecast:
    return ReplayForecast(traces, SPACE, COSTS)


@pytest.mark.thinned(every=5)
@pytest.mark.parametrize("length", SPACE.draft_lengths)
@pytest.mark.parametrize("rule", SPACE.rules)
def test_forecast_speed_is_that_of_a_replay(traces: Traces, forecast: ReplayForecast, rule: str, length: int) -> None:
    """Between the points of the grid too, where it is interpolated: half a percent, twice that once in a hundred."""
    errors = []
    for at in np.linspace(-2, 7, 26):
        arm = Setting(rule, "js", length)
        threshold = forecast.threshold(arm, at)
        expected = replay(traces, rule, "js", threshold, length).tokens_per_second(COSTS)
        errors.append(abs(forecast.tokens_per_second(arm.at(threshold)) / expected - 1))
    assert np.quantile(errors, 0.95) < 0.005
    assert np.quantile(errors, 0.99) < 0.01


@pytest.mark.parametrize("name", SPACE.scores)
def test_a_threshold_accepts_its_share(traces: Traces, forecast: ReplayForecast, name: str) -> None:
    for share in (0.3, 0.9, 0.97):
        found = forecast.threshold(Setting("fsd", name, 3), float(np.log(share / (1 - share))))
        low, high = quantiles(traces, name, [share - 0.01, share + 0.01])
        assert low <= found <= high


def test_thresholds_and_speeds_grow_with_the_share_and_stay_finite(forecast: ReplayForecast) -> None:
    """kl_qp is infinite for some tokens of these traces."""
    for name in SPACE.scores:
        arm = Setting("fsd", name, 3)
        scale = [forecast.threshold(arm, at) for at in np.linspace(forecast.lowest, forecast.highest, 300)]
        assert np.isfinite(scale).all()
        assert (np.diff(scale) >= 0).all()
        speeds = [forecast.tokens_per_second(arm.at(threshold)) for threshold in scale]
        assert (np.diff(speeds) >= -1e-9).all()


def test_measured_speed_follows_from_the_rounds_by_the_cost_model(forecast: ReplayForecast) -> None:
    measured = World(count=20).evaluator().measure(Setting("fsd-coupled", "js", 3, 0.9))
    assert forecast.measured(measured) == pytest.approx(measured.tokens / (measured.rounds * (3 * 0.002 + 0.01)))


@given(st.integers(0, 30))
def test_shifted_outcomes_change_so_many_problems(problems: int) -> None:
    world = World(count=200, middle=6)
    fuzzy, target = world.evaluator().measure(Setting("fsd", "js", 3, 0.99)), world.target()
    lost = int((target.correct & ~fuzzy.correct).sum())
    assert with_losses(fuzzy, target, problems).correct.sum() == fuzzy.correct.sum() - problems
    better = with_gains(fuzzy, target, problems)
    assert better.correct.sum() == fuzzy.correct.sum() + problems
    assert (target.correct & ~better.correct).sum() == max(lost - problems, 0)
    assert flips(fuzzy, target) == (fuzzy.correct != target.correct).sum()


def test_plausible_flips_are_exact_on_the_whole_part_and_wide_for_few_flips() -> None:
    assert plausible_flips(7, 1000, 1000, 2.5) == (0, 0)
    assert plausible_flips(0, 128, 10**9, 2.5) == (7, 0)
    more, fewer = plausible_flips(100, 128, 10**9, 2.5)
    assert fewer < 25 < more < 30


def test_the_simulated_forecast_matches_the_simulated_world() -> None:
    fuzzy = Setting("fsd-coupled", "js", 6, 0.97)
    measured = Formula().measured(World(count=500).evaluator().measure(fuzzy))
    assert measured == pytest.approx(Formula().tokens_per_second(fuzzy), rel=0.03)


PLAIN_COSTS = CostModel(1.0, 2.0, 0.0)
SHAPE = TreeShape(2, 6)


def walked(length: int, accepted: int, rounds: int = 10) -> Walked:
    """Rounds of chains of which each accepts the same number of tokens, and all of them at T = 1."""
    number = np.arange(length + 1)
    exact = np.where(number < accepted, number + 1, 0)
    drafted = np.where(number < length, number + 1, 0)
    score = np.where(number < accepted, 0.01, 0.9)
    columns = (np.tile(column, (rounds, 1)) for column in (exact, drafted, score))
    exact, drafted, score = columns
    walks = Walks(exact, drafted, {"js": score}, chains=True)
    return Walked(walks, (accepted + 1) * rounds, rounds)


def per_round(forecast: WalkedForecast, arm: Setting) -> float:
    counts = forecast.counts(arm)
    assert counts.drafted == pytest.approx(counts.rounds * arm.draft_length)
    return counts.tokens / counts.rounds


def test_rules_are_forecast_by_rounds_of_their_own_lossless_rule() -> None:
    """`sd` accepts less than `coupled` here; where nothing was walked under it, as in greedy decoding, the same."""
    both = WalkedForecast({"coupled": {4: walked(4, 3)}, "sd": {4: walked(4, 2)}}, ("js",), PLAIN_COSTS)
    greedy = WalkedForecast({"coupled": {4: walked(4, 3)}}, ("js",), PLAIN_COSTS)
    for rule, forecast, tokens in (
        ("coupled", both, 4), ("sd", both, 3), ("fsd-coupled", both, 4), ("fsd-sd", both, 3), ("sd", greedy, 4),
    ):  # fmt: skip
        arm = Setting(rule, "js", 4)
        assert per_round(forecast, arm.at(0.01) if rule.startswith("fsd") else arm) == pytest.approx(tokens), rule


def test_lengths_between_those_that_were_walked_are_on_a_line_of_the_logarithm() -> None:
    forecast = WalkedForecast({"coupled": {2: walked(2, 1), 8: walked(8, 5)}}, ("js",), PLAIN_COSTS)
    found = [per_round(forecast, Setting("coupled", "js", length)) for length in (2, 4, 8)]
    assert found == pytest.approx([2, 4, 6])


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("tree", [None, SHAPE], ids=str)
@pytest.mark.parametrize("rule", ["coupled", "sd"])
def test_lossless_rules_are_forecast_as_they_were_decoded(tree: TreeShape | None, rule: str) -> None:
    engine = OwnEngine(tiny_decoder().with_config(temperature=1.0), Limits(12, ()))
    prompts = [KeyedPrompt(number, f"w{number}") for number in range(16)]
    arms = {name: Setting(name, "js", 4, tree=tree) for name in ("coupled", "sd")}
    rounds = {name: {4: engine.walked(DecodingRequest(arm, 0, prompts, 8), ("js",))} for name, arm in arms.items()}
    results = engine.decode(DecodingRequest(arms[rule], 0, prompts, 8))
    decoded = sum(each.emitted for each in results) / sum(each.rounds for each in results)
    assert per_round(WalkedForecast(rounds, ("js",), PLAIN_COSTS), arms[rule]) == pytest.approx(decoded)
    assert rounds["coupled"][4].rounds != rounds["sd"][4].rounds  # so that one does not pass for the other
