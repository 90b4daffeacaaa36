"""Beam sampling with replacement: drafted layers have the law of the target's own, by enumeration and by chi-square."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.beams.drawn import DrawnBeams, Residuals
from fsd_decoding.beams.forest import Forest
from fsd_decoding.beams.layer import Beams, Drafted
from fsd_decoding.beams.search import Judged
from fsd_decoding.beams.settings import BeamSettings
from fsd_decoding.beams.width import accepted_at_least, dynamic_width
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


# --- one layer after two beams, one of which the target does not have ----------------------------------

LOG_P = torch.tensor([[0.1, 0.2, 0.3, 0.3, 0.1], [0.5, 0.1, 0.1, 0.1, 0.2]], dtype=torch.float64).log()
LOG_Q = torch.tensor([[0.3, 0.1, 0.2, 0.3, 0.1], [0.2, 0.2, 0.2, 0.2, 0.2], [0.4, 0.3, 0.1, 0.1, 0.1]]).double().log()
LAYERS = 600


def _forest(number: int) -> tuple[Forest, list[int]]:
    forest = Forest(1, 0, noise.problem_keys(0, [number])[0])
    return forest, [forest.child(0, token) for token in range(3)]


def _beams(nodes: list[int], scores: list[float], counts: list[int]) -> Beams:
    logged = torch.tensor(scores, dtype=torch.float64).log()
    return Beams(1, nodes, logged, logged, counts, [None] * len(nodes))


def _judged(search: DrawnBeams, number: int) -> Judged:
    """What becomes of a layer after three beams of the draft, of which the target has two, one of them drawn twice."""
    forest, (a, b, c) = _forest(number)
    before = _beams([a, b, c], [0.3, 0.5, 0.2], [2, 1, 1])
    layer = search.draft(forest, before, LOG_Q)
    drafted = Drafted(before, LOG_Q, LOG_Q, layer, before.grown(forest, layer))
    return search.judge(forest, _beams([b, a], [0.4, 0.1], [1, 2]), LOG_P, drafted)


def _joint(weights: list[float], log_p: Tensor) -> Tensor:
    """Probabilities of pairs of a beam and a token: (beams, tokens)."""
    shares = torch.tensor(weights, dtype=torch.float64)
    return shares[:, None] / shares.sum() * log_p.exp()


@pytest.mark.parametrize(
    ("samples", "chance", "width"),
    [
        (2, 0.0, 2),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in [(6, 0.0, 2), (6, 0.5, None), (6, 1.0, 1)]),
    ],
)
def test_a_drafted_layer_has_the_targets_joint_law(samples: int, chance: float, width: int | None) -> None:
    """The whole judgement: each of the beams, and all of them together."""
    search = DrawnBeams(BeamSettings(2, samples, replacement=True, chance=chance), lambda *_: None)
    layers = [tuple(_judged(search, number).layer.pairs) for number in range(LAYERS)]
    (size,) = {len(each) for each in layers}  # the width is known before samples are tested
    assert width in (None, size)
    ours = _joint([0.4, 2 * 0.1], LOG_P)
    joint = {(node, x): float(ours[i, x]) for i, node in enumerate([2, 1]) for x in range(5)}  # b and a
    for place in range(size):
        assert p_value(Counter(each[place] for each in layers), joint) > FALSE_ALARM
    expected = {each: math.prod(joint[pair] for pair in each) for each in product(joint, repeat=size)}
    assert p_value(Counter(layers), expected) > FALSE_ALARM


@pytest.mark.parametrize("samples", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_sample_is_accepted_as_often_as_the_width_assumes(samples: int) -> None:
    """One beam: the round goes on with the first sample that is accepted."""
    search = DrawnBeams(BeamSettings(1, samples, replacement=True), lambda *_: None)
    accepted = sum(_judged(search, number).goes_on for number in range(LAYERS))
    p, q = _joint([0.4, 2 * 0.1], LOG_P), _joint([0.5, 2 * 0.3, 0.2], LOG_Q[[1, 0, 2]])[:2]
    chances = Residuals(p.flatten(), q.flatten()).chances(samples)
    assert binomtest(accepted, LAYERS, accepted_at_least(chances, samples)[1]).pvalue > FALSE_ALARM


FLAT, PEAKED = (torch.tensor([[p, *[(1 - p) / 4] * 4]], dtype=torch.float64).log() for p in (0.6, 0.9))


@pytest.mark.parametrize("beams", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_samples_their_tests_and_what_is_drawn_in_their_place_share_no_noise(beams: int) -> None:
    """After the prompt. A rejection tells much of the number that decided it, and that number would tell what is drawn
    of the four tokens that are left."""
    search = DrawnBeams(BeamSettings(beams, beams, replacement=True), lambda *_: None)
    layers = []
    for number in range(LAYERS):
        forest, first = _forest(number)[0], Beams.first(torch.device("cpu"), torch.float64)
        layer = search.draft(forest, first, PEAKED)
        drafted = Drafted(first, PEAKED, PEAKED, layer, first.grown(forest, layer))
        layers.append(tuple(token for _, token in search.judge(forest, first, FLAT, drafted).layer.pairs))
    p = FLAT[0].exp().tolist()
    expected = {each: math.prod(p[x] for x in each) for each in product(range(5), repeat=beams)}
    assert p_value(Counter(layers), expected) > FALSE_ALARM


# --- whole texts ---------------------------------------------------------------------------------------

DECODINGS = 1000


@pytest.mark.parametrize(
    ("rule", "depth"),
    [("sd", 2), *(pytest.param(*each, marks=pytest.mark.slow) for each in [("target", 1), ("sd", 1)])],
)
def test_texts_have_the_law_of_beam_sampling(rule: str, depth: int) -> None:
    """By default: two beams in each of two layers, against the enumerated law of the set of texts."""
    decoder = five_words()
    drawn = decoder.generate_beams(
        [PROMPT] * DECODINGS, 2, 2, 1.0, rule=rule, depth=depth, batch_size=100, replacement=True
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
