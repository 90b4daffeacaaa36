"""Cost models from the seconds of rounds: no cost is negative, and the seconds come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.engines.base import fit

SECONDS = st.floats(1e-5, 1.0)


@given(st.dictionaries(st.integers(0, 16), SECONDS, min_size=2, max_size=4), st.floats(0.0, 1.0))
def test_no_cost_is_negative(seconds: dict[int, float], draft_step: float) -> None:
    """Not even where a longer draft took less time, as it may where only its length has a graph."""
    costs = fit(seconds, draft_step)
    assert min(costs.draft_step, costs.verify, costs.position) >= 0
    assert costs.verify + costs.position > 0


@given(SECONDS, SECONDS, st.floats(0.0, 1.0))
def test_seconds_on_a_line_come_back(token: float, constant: float, draft_step: float) -> None:
    costs = fit({length: length * token + constant for length in (1, 4, 8)}, draft_step)
    assert costs.draft_step + costs.position == pytest.approx(token, rel=1e-3, abs=1e-6)
    assert costs.verify + costs.position == pytest.approx(constant, rel=1e-3, abs=1e-6)
