"""Counter-based noise: fixed bits, extreme bits, and the distributions that sampling relies on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from fsd_decoding import noise
from fsd_decoding.noise import Stream
from fsd_decoding.sampling import Sampling

STORED = [
    [[430047521, 1141739570], [758325299, 2024789632]],
    [[3753042893, 2193472064], [3441224194, 2483368901]],
]
STORED_KEYS = [[3062909774, 3064006139], [2101318012, 3443748641]]
STORED_FAR = {
    Stream.ACCEPT: [
        [[371840465, 4097943093], [934191518, 748603861]],
        [[2310100932, 1413193119], [974488202, 3367589159]],
    ],
    Stream.RESIDUAL: [
        [[2239163395, 1910728230], [2330299867, 3248092574]],
        [[3438314943, 2553805930], [219845471, 3173629964]],
    ],
}
FALSE_ALARM = 1e-6  # of every statistical test here; the noise is fixed, so results are reproducible


def places(problems: int, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    keys = noise.problem_keys(0, list(range(problems)))
    return keys, torch.arange(positions).expand(problems, -1)


def test_keys_and_bits_do_not_change() -> None:
    """Stored values, because results in caches and profiles depend on every bit."""
    keys = noise.problem_keys(7, [3, 2**47])
    assert keys.tolist() == STORED_KEYS
    where, tokens = torch.tensor([[0, 1000], [5, 6]]), torch.tensor([0, 151_935])
    assert unsigned(noise.bits(keys, where, Stream.TOKEN, tokens)) == STORED
    where, tokens = torch.tensor([[0, 131_071], [5, 2**24]]), torch.tensor([0, 262_143])
    for stream, stored in STORED_FAR.items():
        assert unsigned(noise.bits(keys, where, stream, tokens)) == stored


def unsigned(words: torch.Tensor) -> list[list[list[int]]]:
    actual: list[list[list[int]]] = (words.long() & 0xFFFFFFFF).tolist()
    return actual


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


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_bits_leave_the_open_interval(dtype: torch.dtype) -> None:
    """Every pattern of the 23 bits in use, with the other bits all 0 and all 1."""
    high = torch.arange(2**23, dtype=torch.int32) << 9
    v = noise.unit(high, dtype)
    assert torch.equal(noise.unit(high | 511, dtype), v)
    assert v[0] > 0
    assert v[-1] < 1
    assert (v.diff() > 0).all()
    race = -torch.log(-torch.log1p(-v))
    assert race.isfinite().all()
    assert (race.diff() <= 0).all()  # a large v is late in the race


def test_the_race_follows_from_the_bits() -> None:
    keys, positions = places(3, 4)
    v = noise.unit(noise.bits(keys, positions, Stream.RESIDUAL, torch.arange(50)), torch.float64)
    expected = -np.log(-np.log1p(-v.numpy()))
    actual = noise.gumbel(keys, positions, Stream.RESIDUAL, 50, torch.float64)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12, atol=1e-14)


def test_uniform_noise_is_uniform() -> None:
    keys, positions = places(500, 200)
    v = noise.uniform(keys, positions, Stream.ACCEPT, torch.float64).flatten()
    assert kstest(v.numpy(), "uniform").pvalue > FALSE_ALARM


def test_neighbours_are_independent() -> None:
    """Pairs of tokens, of positions, of problems and of streams fall evenly into a 16 x 16 grid."""
    keys, positions = places(64, 64)
    streams = [noise.unit(noise.bits(keys, positions, s, torch.arange(64)), torch.float64) for s in Stream]
    v = torch.stack(streams)  # (streams, problems, positions, tokens)
    for axis in range(4):
        first, second = v.narrow(axis, 0, v.shape[axis] - 1), v.narrow(axis, 1, v.shape[axis] - 1)
        cells = ((first * 16).long() * 16 + (second * 16).long()).flatten()
        assert chisquare(torch.bincount(cells, minlength=256).numpy()).pvalue > FALSE_ALARM


def test_the_race_draws_from_the_distribution() -> None:
    logits = torch.tensor([2.0, 0.5, -1.0, 0.0, -3.0], dtype=torch.float64)
    keys, positions = places(400, 250)
    drawn = Sampling(temperature=1.0).draw(logits.expand(400, 250, -1), keys, positions)
    expected = torch.softmax(logits, -1) * drawn.numel()
    assert chisquare(torch.bincount(drawn.flatten(), minlength=5).numpy(), expected.numpy()).pvalue > FALSE_ALARM
