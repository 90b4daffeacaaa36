"""Which mismatches are labelled: strata, their probabilities, and quotas. Nothing is decoded here.

That estimates are unbiased is computed, not sampled: every choice that the random numbers can make is tried, and the
estimates are averaged with the choices' probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from random import Random
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_collectors.judging.chains import Label, Outcome, Swap, left_to_right, quotas, single
from fsd_collectors.judging.reading import Mismatches
from fsd_decoding.judging.features import FEATURES

SEARCHES: dict[str, Callable[..., Any]] = {"left-to-right": left_to_right, "single": single}


def mismatches_at(*positions: int) -> Mismatches:
    place = np.array(positions, dtype=np.int64)
    return Mismatches(place, place + 100, place, place, np.zeros((len(place), len(FEATURES)), dtype=np.float32))


class Chosen(Random):
    """Takes the choices that it is given, then the first of each; remembers among how many it chose."""

    def __init__(self, choices: list[int]) -> None:
        super().__init__(0)
        self.script, self.sizes = choices, list[int]()

    def randrange(self, size: int, *_: Any) -> int:
        place = len(self.sizes)
        self.sizes.append(size)
        if place == len(self.script):
            self.script.append(0)
        return self.script[place]


def all_choices(run: Callable[[Chosen], Any]) -> Iterator[tuple[Fraction, Any]]:
    """Yields what `run` returns for all choices, each with its probability."""
    choices: list[int] | None = []
    while choices is not None:
        random = Chosen(choices)
        result = run(random)
        yield Fraction(1, math.prod(random.sizes)), result
        choices = list(random.script)
        while choices and choices[-1] + 1 == random.sizes[len(choices) - 1]:
            choices.pop()
        if not choices:
            return
        choices[-1] += 1


class World:
    """Texts as sets of mismatches: a swap that stays makes others of those behind it. Labels are drawn by a hash."""

    def __init__(self, seed: int, harmless: float) -> None:
        self._seed, self._harmless = seed, harmless

    def harmful(self, history: tuple[int, ...], position: int) -> bool:
        return Random(f"{self._seed} {history} {position}").random() > self._harmless

    def behind(self, history: tuple[int, ...]) -> Mismatches:
        """The mismatches of the text in which the swaps at `history` have stayed, behind the last of them."""
        random, begin = Random(f"{self._seed} {history}"), history[-1] + 1 if history else 0
        return mismatches_at(*(place for place in range(begin, 9) if random.random() < 0.6))

    def run(self, search: Callable[..., Any], quota: int, random: Random) -> tuple[list[Label], int, set[int]]:
        """Labels the world's text; also returns how many of the mismatches of all strata were harmful, and where the
        strata lie."""
        chain, history = search(list(range(9)), self.behind(()), quota, 1.0, random), tuple[int, ...]()
        population, places, left, mismatches = 0, set[int](), quota, self.behind(())
        try:
            asked: list[Swap] = next(chain)
            while True:
                outcomes = []
                for swap in asked:
                    size = math.ceil(len(mismatches) / left)
                    stratum = mismatches[:size].position.tolist()
                    assert swap.position in stratum
                    assert swap.probability == pytest.approx(1 / size)
                    population += sum(self.harmful(history, place) for place in stratum)
                    places.update(stratum)
                    harmful, left = self.harmful(history, swap.position), left - 1
                    if search is left_to_right and not harmful:
                        history = (*history, swap.position)
                        behind = self.behind(history)
                        outcomes.append(Outcome(0.0, 1, list(range(9)), behind))
                        mismatches = behind[behind.position > stratum[-1]]
                    else:
                        outcomes.append(Outcome(float(harmful), 1, list(range(9)), self.behind(history)))
                        mismatches = mismatches[size:]
                asked = chain.send(outcomes)
        except StopIteration as end:
            return cast(list[Label], end.value), population, places


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
@given(seed=st.integers(0, 10_000), quota=st.integers(1, 4), harmless=st.sampled_from([0.3, 0.7]))
def test_estimates_are_unbiased(search: Callable[..., Any], seed: int, quota: int, harmless: float) -> None:
    """Of the number of harmful mismatches of all strata, averaged over all that can be drawn."""
    world, whole, estimate, population = World(seed, harmless), Fraction(0), 0.0, 0.0
    for probability, (labels, harmful, _) in all_choices(lambda random: world.run(search, quota, random)):
        whole += probability
        estimate += float(probability) * sum(label.outcome.label / label.swap.probability for label in labels)
        population += float(probability) * harmful
    assert whole == 1
    assert estimate == pytest.approx(population)


@given(seed=st.integers(0, 10_000), quota=st.integers(1, 12))
def test_single_swaps_are_of_all_mismatches(seed: int, quota: int) -> None:
    world = World(seed, 0.5)
    found = world.behind(())
    labels, _, places = world.run(single, quota, Random(seed))
    assert len(labels) == min(quota, len(found))
    assert places == set(found.position.tolist())
    assert sum(1 / label.swap.probability for label in labels) == pytest.approx(len(found))
    assert not any(label.stayed for label in labels)


@given(seed=st.integers(0, 10_000))
def test_a_stratum_for_each_mismatch_is_the_search_of_autojudge(seed: int) -> None:
    """Every mismatch from left to right, and what keeps the answer right stays (arXiv 2504.20039, Algorithm 1)."""
    world, history, expected, at = World(seed, 0.6), tuple[int, ...](), [], -1
    while True:
        following = world.behind(history).position
        following = following[following > at]
        if not len(following):
            break
        at = int(following[0])
        harmful = world.harmful(history, at)
        expected.append((at, harmful, not harmful))
        history = history if harmful else (*history, at)
    labels, _, _ = world.run(left_to_right, 1_000, _Whole())
    assert [(each.swap.position, bool(each.outcome.label), each.stayed) for each in labels] == expected
    assert {label.swap.probability for label in labels} <= {1.0}


class _Whole(Random):
    """Only ever chooses among one."""

    def randrange(self, size: int, *_: Any) -> int:
        assert size == 1
        return 0


def test_a_swap_has_the_text_before_it() -> None:
    chain = single([7, 8, 9, 10], mismatches_at(2), 1, 0.25, Random(0))
    (swap,) = next(chain)
    assert (swap.context, swap.tokens, swap.probability) == ([7, 8], [7, 8, 102], 0.25)


class Begins(Random):
    """Draws one number."""

    def __init__(self, begin: float) -> None:
        super().__init__(0)
        self._begin = begin

    def random(self) -> float:
        return self._begin


MOST = st.lists(st.integers(0, 12), min_size=1, max_size=12)


@given(most=MOST, budget=st.integers(0, 200), begin=st.floats(0, 1, exclude_max=True))
def test_quotas_use_the_budget_and_no_more(most: list[int], budget: int, begin: float) -> None:
    given_out, _ = quotas(most, budget, Begins(begin))
    assert sum(given_out) == min(budget, sum(most))
    assert all(0 <= quota <= each for quota, each in zip(given_out, most, strict=True))


@given(most=MOST, budget=st.integers(0, 40))
def test_problems_are_drawn_with_their_probabilities(most: list[int], budget: int) -> None:
    """And the expected quota is proportional to what they can use. The uniform number takes 2,000 values in order."""
    drawn, mean = np.zeros(len(most)), np.zeros(len(most))
    for step in range(2_000):
        given_out, shares = quotas(most, budget, Begins((step + 0.5) / 2_000))
        drawn += np.array(given_out) > 0
        mean += np.array(given_out)
    wanted = np.array(most) * min(1.0, budget / max(sum(most), 1))
    assert mean / 2_000 == pytest.approx(wanted, abs=2e-3)
    assert drawn / 2_000 == pytest.approx(
        [share if each else 0 for share, each in zip(shares, most, strict=True)], abs=2e-3
    )
