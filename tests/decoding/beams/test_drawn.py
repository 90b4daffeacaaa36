"""Beam sampling with replacement: drafted layers have the law of the target's own, by enumeration and by chi-square."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.beams.drawn import DrawnBeams, Residuals
from fsd_decoding.beams.forest import Forest
from fsd_decoding.beams.layer import Beams, Drafted
from fsd_decoding.beams.settings import BeamSettings
from fsd_decoding.beams.width import dynamic_width
from support.models.five_words import PROMPT, five_words, law, p_value

FALSE_ALARM = 1e-6

# --- one layer, of given laws ------------------------------------------------------------------------

LAWS = st.lists(st.integers(0, 20), min_size=5, max_size=5).filter(any).map(
    lambda weights: torch.tensor(weights, dtype=torch.float64) / sum(weights)
)  # fmt: skip


@given(LAWS, LAWS, st.integers(1, 3), st.data())
@settings(max_examples=20)
def test_a_layer_has_the_law_of_independent_draws(p: Tensor, q: Tensor, samples: int, data: st.DataObject) -> None:
    """All samples of q, all outcomes of their tests, and all draws of what is missing, over five candidates."""
    width = data.draw(st.integers(1, samples))
    rest = Residuals(p, q)
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for drawn in product(range(5), repeat=samples):
        chance = math.prod(float(q[x]) for x in drawn)
        if chance:
            _test(rest, q, drawn, (), 0, width, chance, found)
    for beams in product(range(5), repeat=width):
        assert found[beams] == pytest.approx(math.prod(float(p[x]) for x in beams), abs=1e-12)


def _test(
    rest: Residuals, q: Tensor, drawn: tuple[int, ...], accepted: tuple[int, ...], rejected: int, width: int,
    chance: float, found: dict[tuple[int, ...], float],
) -> None:  # fmt: skip
    if len(accepted) == width:
        found[accepted] += chance
    elif not drawn:
        for more in product(range(5), repeat=width - len(accepted)):
            drawn_of_rest = math.prod(float(rest[0 if n else rejected][x]) for n, x in enumerate(more))
            found[accepted + more] += chance * drawn_of_rest
    else:
        x, after = drawn[0], drawn[1:]
        taken = min(1.0, float(rest[rejected][x] / q[x]))
        _test(rest, q, after, (*accepted, x), 0, width, chance * taken, found)
        if taken < 1:
            _test(rest, q, after, accepted, rejected + 1, width, chance * (1 - taken), found)


@given(LAWS, LAWS)
def test_chances_are_those_of_samples(p: Tensor, q: Tensor) -> None:
    rest = Residuals(p, q)
    for rejected, chance in enumerate(rest.chances(4)):
        accepted = [float(torch.minimum(rest[rejected], q)[x]) for x in range(5)]
        assert chance == pytest.approx(sum(accepted))
        assert rest[rejected].sum().item() == pytest.approx(1)


# --- one layer after two beams, one of which the target does not have ----------------------------------

LOG_P = torch.tensor([[0.1, 0.2, 0.3, 0.3, 0.1], [0.5, 0.1, 0.1, 0.1, 0.2]], dtype=torch.float64).log()
LOG_Q = torch.tensor([[0.3, 0.1, 0.2, 0.3, 0.1], [0.2, 0.2, 0.2, 0.2, 0.2], [0.4, 0.3, 0.1, 0.1, 0.1]]).double().log()
LAYERS = 1000


def _forest(number: int) -> tuple[Forest, list[int]]:
    forest = Forest(1, 0, noise.problem_keys(0, [number])[0])
    return forest, [forest.child(0, token) for token in range(3)]


def _beams(nodes: list[int], scores: list[float], counts: list[int]) -> Beams:
    logged = torch.tensor(scores, dtype=torch.float64).log()
    return Beams(1, nodes, logged, logged, counts, [None] * len(nodes))


@pytest.mark.parametrize(
    ("chance", "width"), [(0.0, 2), *(pytest.param(*each, marks=pytest.mark.slow) for each in [(0.5, None), (1.0, 1)])]
)
def test_a_drafted_layer_has_the_targets_joint_law(chance: float, width: int | None) -> None:
    """The whole judgement, over beams of which one was drawn twice, and one was the draft's alone."""
    search = DrawnBeams(BeamSettings(2, 6, replacement=True, chance=chance), lambda *_: None)
    pairs: Counter[tuple[tuple[int, int], ...]] = Counter()
    for number in range(LAYERS):
        forest, (a, b, c) = _forest(number)
        before = _beams([a, b, c], [0.3, 0.5, 0.2], [2, 1, 1])
        layer = search.draft(forest, before, LOG_Q)
        drafted = Drafted(before, LOG_Q, LOG_Q, layer, before.grown(forest, layer))
        judged = search.judge(forest, _beams([b, a], [0.4, 0.1], [1, 2]), LOG_P, drafted)
        assert width is None or len(judged.layer.pairs) == width
        pairs[tuple(judged.layer.pairs)] += 1
    sizes = {len(each) for each in pairs}
    assert len(sizes) == 1  # the width is known before samples are tested
    weights = {2: 0.4, 1: 2 * 0.1}  # nodes 2 and 1 are b and a
    joint = {(node, x): weights[node] * math.exp(LOG_P[i, x]) / 0.6 for i, node in enumerate([2, 1]) for x in range(5)}
    expected = {each: math.prod(joint[pair] for pair in each) for each in product(joint, repeat=sizes.pop())}
    assert p_value(pairs, expected) > FALSE_ALARM


# --- whole texts ---------------------------------------------------------------------------------------

DECODINGS = 1000


@pytest.mark.parametrize(
    ("rule", "depth"),
    [("sd", 2), *(pytest.param(*each, marks=pytest.mark.slow) for each in [("target", 1), ("sd", 1)])],
)
def test_texts_have_the_law_of_beam_sampling(rule: str, depth: int) -> None:
    """Two beams in each of two layers (chance 0 keeps the width), against the enumerated law of the set of texts."""
    decoder = five_words()
    drawn = decoder.generate_beams(
        [PROMPT] * DECODINGS, 2, 2, 1.0, rule=rule, depth=depth, batch_size=100, replacement=True, chance=0.0
    )
    seen = Counter(frozenset(tuple(beam.tokens) for beam in result.beams) for result in drawn)
    assert p_value(seen, _law_of_sets()) > FALSE_ALARM
    assert (sum(result.accepted for result in drawn) > 0) == (rule == "sd")


def _law_of_sets() -> dict[frozenset[tuple[int, ...]], float]:
    target = five_words().target
    one, two = law(target, 1), law(target, 2)
    expected: dict[frozenset[tuple[int, ...]], float] = defaultdict(float)
    for first in product(one, repeat=2):
        weights = {text: two[text] * first.count(text[:1]) for text in two if text[:1] in first}
        total = sum(weights.values())
        for second in product(weights, repeat=2):
            share = one[first[0]] * one[first[1]] * weights[second[0]] * weights[second[1]] / total**2
            expected[frozenset(second)] += share
    return expected


def test_the_width_follows_the_chance() -> None:
    p = torch.tensor([0.5, 0.5, 0, 0, 0], dtype=torch.float64)
    chances = Residuals(p, torch.tensor([0.25, 0.25, 0.5, 0, 0], dtype=torch.float64)).chances(4)
    assert chances == [0.5] * 4  # what is left of p has the shape of p
    widths = [dynamic_width(chances, 4, chance, 1, 4) for chance in (0.0, 0.05, 0.3, 0.65, 0.9, 1.0)]
    assert widths == [4, 4, 3, 2, 1, 1]  # P: 1/16, 5/16, 11/16, 15/16 of at least 4, 3, 2, 1
