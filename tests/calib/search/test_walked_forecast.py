"""Forecasts from rounds that were walked again: of the rule that they were decoded under, and between draft lengths."""

from __future__ import annotations

import numpy as np
import pytest

from fsd_calib.engines.base import DecodingRequest, KeyedPrompt, Limits
from fsd_calib.engines.own import OwnEngine
from fsd_calib.search.forecast import WalkedForecast
from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.walks import Walked, Walks
from fsd_decoding.profile.setting import Setting
from fsd_decoding.tree_shape import TreeShape
from support.models.tiny_pair import tiny_decoder

COSTS = CostModel(1.0, 2.0, 0.0)
SHAPE = TreeShape(2, 6)


def walked(length: int, accepted: int, rounds: int = 10) -> Walked:
    """Rounds of chains of which each accepts the same number of tokens, and all of them at T = 1."""
    number = np.arange(length + 1)
    exact = np.where(number < accepted, number + 1, 0)
    drafted = np.where(number < length, number + 1, 0)
    divergence = np.where(number < accepted, 0.01, 0.9)
    columns = (np.tile(column, (rounds, 1)) for column in (exact, drafted, divergence))
    exact, drafted, divergence = columns
    walks = Walks(exact, drafted, {"js": divergence}, chains=True)
    return Walked(walks, (accepted + 1) * rounds, rounds)


def per_round(forecast: WalkedForecast, arm: Setting) -> float:
    counts = forecast.counts(arm)
    assert counts.drafted == pytest.approx(counts.rounds * arm.draft_length)
    return counts.tokens / counts.rounds


def test_rules_are_forecast_by_rounds_of_their_own_lossless_rule() -> None:
    """`sd` accepts less than `coupled` here; where nothing was walked under it, as in greedy decoding, the same."""
    both = WalkedForecast({"coupled": {4: walked(4, 3)}, "sd": {4: walked(4, 2)}}, ("js",), COSTS)
    greedy = WalkedForecast({"coupled": {4: walked(4, 3)}}, ("js",), COSTS)
    for rule, forecast, tokens in (
        ("coupled", both, 4), ("sd", both, 3), ("fsd-coupled", both, 4), ("fsd-sd", both, 3), ("sd", greedy, 4),
    ):  # fmt: skip
        arm = Setting(rule, "js", 4)
        assert per_round(forecast, arm.at(0.01) if rule.startswith("fsd") else arm) == pytest.approx(tokens), rule


def test_lengths_between_those_that_were_walked_are_on_a_line_of_the_logarithm() -> None:
    forecast = WalkedForecast({"coupled": {2: walked(2, 1), 8: walked(8, 5)}}, ("js",), COSTS)
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
    assert per_round(WalkedForecast(rounds, ("js",), COSTS), arms[rule]) == pytest.approx(decoded)
    assert rounds["coupled"][4].rounds != rounds["sd"][4].rounds  # so that one does not pass for the other
