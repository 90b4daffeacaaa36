"""The dynamic width of a layer: the programme against all outcomes, and the width that it gives."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_decoding.beams.width import accepted_at_least, dynamic_width

CHANCES = st.lists(st.floats(0, 1), min_size=1, max_size=5)


@given(CHANCES, st.integers(0, 5))
def test_the_programme_counts_all_outcomes(chances: list[float], samples: int) -> None:
    exactly = [0.0] * (samples + 1)
    for outcomes in product((True, False), repeat=samples):
        probability, rejected = 1.0, 0
        for accepted in outcomes:
            chance = chances[min(rejected, len(chances) - 1)]
            probability *= chance if accepted else 1 - chance
            rejected = 0 if accepted else rejected + 1
        exactly[sum(outcomes)] += probability
    assert accepted_at_least(chances, samples) == pytest.approx([sum(exactly[n:]) for n in range(samples + 1)])


@given(CHANCES, st.integers(1, 6), st.floats(0, 1), st.data())
def test_the_width_is_the_largest_that_is_likely_enough(
    chances: list[float], samples: int, chance: float, data: st.DataObject
) -> None:
    most = data.draw(st.integers(1, samples))
    least = data.draw(st.integers(1, most))
    width = dynamic_width(chances, samples, chance, least, most)
    reached = accepted_at_least(chances, samples)
    assert least <= width <= most
    assert width == least or reached[width] >= chance
    assert all(reached[n] < chance for n in range(width + 1, most + 1))
    assert dynamic_width(chances, samples, 0.0, least, most) == most
