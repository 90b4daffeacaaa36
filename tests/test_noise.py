"""Keyed noise: fixed bits, extreme bits, and the distributions that sampling rests on."""

from __future__ import annotations

import torch
from scipy.stats import chisquare, kstest

from fsd_decoding import noise
from fsd_decoding.noise import Stream
from fsd_decoding.sampling import Sampling

STORED = [
    [[430047521, 1141739570], [758325299, 2024789632]],
    [[3753042893, 2193472064], [3441224194, 2483368901]],
]
FALSE_ALARM = 1e-6  # of every statistical test here; the noise is fixed, so a pass stays a pass


def places(problems: int, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    keys = noise.problem_keys(0, list(range(problems)))
    return keys, torch.arange(positions).expand(problems, -1)


def test_bits_are_what_they_were() -> None:
    """Stored vectors: results in caches and profiles depend on every bit."""
    keys = noise.problem_keys(7, [3, 2**47])
    found = noise.bits(keys, torch.tensor([[0, 1000], [5, 6]]), Stream.TOKEN, torch.tensor([0, 151_935]))
    assert found.tolist() == STORED


def test_every_part_of_the_key_matters() -> None:
    token, position = torch.arange(8), torch.arange(4).expand(1, -1)
    base = noise.bits(noise.problem_keys(0, [0]), position, Stream.TOKEN, token)
    others = [
        noise.bits(noise.problem_keys(1, [0]), position, Stream.TOKEN, token),
        noise.bits(noise.problem_keys(0, [1]), position, Stream.TOKEN, token),
        noise.bits(noise.problem_keys(0, [0]), position, Stream.RESIDUAL, token),
        noise.bits(noise.problem_keys(0, [0]), position + 1, Stream.TOKEN, token),
    ]
    assert all((base != other).all() for other in others)
    assert len(set(base.flatten().tolist())) == base.numel()


def test_extreme_bits_stay_inside_the_open_interval() -> None:
    bits = torch.tensor([0, 1, 511, 512, 2**31, 2**32 - 513, 2**32 - 512, 2**32 - 1])
    for dtype in (torch.float32, torch.float64):
        v = noise.unit(bits, dtype)
        assert (v > 0).all()
        assert (v < 1).all()
        race = -torch.log(-torch.log1p(-v))
        assert race.isfinite().all()


def test_uniform_noise_is_uniform() -> None:
    keys, positions = places(500, 200)
    v = noise.uniform(keys, positions, Stream.ACCEPT, torch.float64).flatten()
    assert kstest(v.numpy(), "uniform").pvalue > FALSE_ALARM


def test_neighbours_are_independent() -> None:
    """Pairs of tokens, of positions and of problems fall evenly into a 16 x 16 grid."""
    keys, positions = places(64, 64)
    v = noise.unit(noise.bits(keys, positions, Stream.TOKEN, torch.arange(64)), torch.float64)
    for axis in range(3):
        first, second = v.narrow(axis, 0, 63), v.narrow(axis, 1, 63)
        cells = ((first * 16).long() * 16 + (second * 16).long()).flatten()
        assert chisquare(torch.bincount(cells, minlength=256).numpy()).pvalue > FALSE_ALARM


def test_the_race_draws_from_the_distribution() -> None:
    logits = torch.tensor([2.0, 0.5, -1.0, 0.0, -3.0], dtype=torch.float64)
    keys, positions = places(400, 250)
    drawn = Sampling(temperature=1.0).draw(logits.expand(400, 250, -1), keys, positions)
    expected = torch.softmax(logits, -1) * drawn.numel()
    assert chisquare(torch.bincount(drawn.flatten(), minlength=5).numpy(), expected.numpy()).pvalue > FALSE_ALARM
