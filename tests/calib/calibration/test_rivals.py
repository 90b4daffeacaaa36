"""Which lossless settings a clock compares, of which the fastest is what everything else is compared with."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.calibration.draft_forecasts import rivals_of
from fsd_decoding.profile.setting import Setting
from fsd_decoding.rules import RULES
from fsd_decoding.tree_shape import TreeShape

SD = [Setting("sd", "js", length) for length in (3, 5, 8)]
COUPLED = [setting.under("coupled") for setting in SD]
TREE = replace(SD[0], tree=TreeShape.parse("2,8"))
SPEEDS = st.lists(st.sampled_from([*SD, *COUPLED, TREE]), min_size=1, unique=True).map(
    lambda settings: {setting: 100.0 - place for place, setting in enumerate(settings)}
)


@given(SPEEDS, st.booleans())
def test_every_rule_is_among_them_at_its_fastest(speeds: dict[Setting, float], blocks: bool) -> None:
    rivals, order = rivals_of(speeds, timed=True, blocks=blocks), list(speeds)
    assert rivals[: len(order[:2])] == tuple(order[:2])
    assert len(set(rivals)) == len(rivals)
    for rule in {setting.rule for setting in order}:
        assert next(setting for setting in order if setting.rule == rule) in rivals
    block = [setting for setting in rivals if setting.rule == "sd-block"]
    chains = [setting for setting in order if setting.rule == "sd" and setting.tree is None]
    assert block == ([chains[0].under("sd-block")] if blocks and chains else [])
    assert not any(RULES[setting.rule].fuzzy for setting in rivals)


@given(SPEEDS)
def test_without_a_clock_the_forecast_decides(speeds: dict[Setting, float]) -> None:
    assert rivals_of(speeds, timed=False, blocks=True) == (next(iter(speeds)),)
