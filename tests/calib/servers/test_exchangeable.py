"""The test of two sides' answers: its size, its power, and what it leaves out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from fsd_calib.servers.exchangeable import compare

RUNS, LEVEL = 200, 0.05


def test_sides_of_one_law_are_told_apart_no_more_often_than_stated() -> None:
    """Answers of both sides vary by prompt, some much. False-alarm probability of this test: 1e-4."""
    random = np.random.default_rng(11)
    alarms = 0
    for _ in range(RUNS):
        noise = random.random((40, 1)) ** 3
        mine, theirs = ((random.random((40, 3)) < noise).astype(int).tolist() for _ in range(2))
        alarms += compare(mine, theirs).p_value <= LEVEL
    assert alarms <= binom.isf(1e-4, RUNS, LEVEL)


@pytest.mark.parametrize(("changed", "seen"), [(0, False), (2, False), (3, True), (10, True)])
def test_three_changed_texts_of_a_server_without_noise_are_seen_at_one_per_cent(changed: int, seen: bool) -> None:
    reference = [["a"] * 3] * 100
    other = [["b"] * 3] * changed + [["a"] * 3] * (100 - changed)
    found = compare(reference, other)
    assert (found.p_value <= 0.01) == seen
    assert found.reference == found.other == 0
    assert found.between == pytest.approx(changed / 100)


def test_a_changed_law_is_seen_beside_noise() -> None:
    random = np.random.default_rng(3)
    mine = random.integers(0, 4, (60, 6)).tolist()
    theirs = random.choice(4, (60, 6), p=[0.7, 0.1, 0.1, 0.1]).tolist()
    assert compare(mine, theirs).p_value < 1e-3


PAIRS = st.lists(st.lists(st.sampled_from("abc"), min_size=4, max_size=4), min_size=1, max_size=12)


@given(answers=PAIRS)
def test_it_does_not_matter_which_side_is_called_the_reference(answers: list[list[str]]) -> None:
    mine, theirs = [each[:2] for each in answers], [each[2:] for each in answers]
    one, other = compare(mine, theirs), compare(theirs, mine)
    assert one.between == pytest.approx(other.between)
    assert (one.reference, one.other) == (other.other, other.reference)
    assert one.p_value == pytest.approx(other.p_value, abs=0.02)  # by other shuffles
    assert 0 < one.p_value <= 1
