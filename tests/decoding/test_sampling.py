"""Noise that depends on a problem and a position alone, and sampling with it."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, NoRepeatNGramLogitsProcessor

from fsd_common.errors import UsageError
from fsd_decoding import noise
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.noise import Stream
from fsd_decoding.sampling import Sampling
from fsd_decoding.tensors import argmax
from support.models.tiny_models import EOS, VOCABULARY, llama, word_tokenizer

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


NEW = 12


@pytest.fixture(scope="module")
def target() -> Any:
    return llama(seed=1)


@pytest.fixture(scope="module")
def decoder(target: Any) -> SpeculativeDecoder:
    return SpeculativeDecoder(target, llama(seed=2, layers=1), word_tokenizer())


def round_of(rows: int = 4, positions: int = 3, slots: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (B, N, V), padded texts (B, slots) and positions (B, N) of rows of different lengths."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(rows, positions, VOCABULARY, generator=generator, dtype=torch.float64)
    tokens = torch.randint(VOCABULARY, (rows, slots), generator=generator)
    return logits, tokens, 1 + torch.arange(rows)[:, None] * 2 + torch.arange(positions)


SETTINGS = [
    {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "repetition_penalty": penalty}
    for temperature, top_k, top_p, min_p, penalty in product(
        [0.6, 1.0], [None, 7], [None, 0.8], [None, 0.1], [1.0, 1.3, 0.8]
    )
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_combination_equals_transformers_in_its_order(target: Any, settings: dict[str, Any]) -> None:
    """`generate` builds its processors from the same settings; each position is processed with its own prefix."""
    config = GenerationConfig(do_sample=True, **{**settings, "top_k": settings["top_k"] or 0})
    processors = target._get_logits_processor(config, input_ids_seq_length=1)
    logits, tokens, positions = round_of()
    before = logits.clone()
    actual = Sampling(**settings).warp(logits, tokens, positions)
    for row, n in product(range(4), range(3)):
        expected = processors(tokens[row : row + 1, : positions[row, n]], logits[row, n : n + 1].clone())[0]
        torch.testing.assert_close(actual[row, n], expected, rtol=1e-12, atol=0)
    assert torch.equal(logits, before)


def test_greedy_without_a_penalty_returns_logits_unchanged() -> None:
    logits, tokens, positions = round_of()
    assert Sampling().warp(logits, tokens, positions) is logits


@pytest.mark.thinned(every=8)
@pytest.mark.parametrize("rule", ["target", "sd", "coupled", "ensemble"])
@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_greedy_honours_the_penalty_as_transformers_does(
    decoder: SpeculativeDecoder, penalty: float, rule: str
) -> None:
    prompts = [[5], [9, 2, 9], [11, 3, 4, 30, 8]]
    actual = decoder.generate(
        prompts, NEW, rule=rule, threshold=-1.0, repetition_penalty=penalty, draft_length=4, batch_size=2
    )
    for prompt, result in zip(prompts, actual, strict=True):
        assert result.tokens == generate_with_transformers(decoder.target, prompt, repetition_penalty=penalty)
    assert [r.tokens for r in actual] != [r.tokens for r in decoder.generate(prompts, NEW, rule="target")]


def test_other_processors_receive_the_actual_prefix(target: Any) -> None:
    """As in `generate` with a ban on repeated bigrams, prompt included."""
    sampling = Sampling(processors=(NoRepeatNGramLogitsProcessor(2),))
    pair = SpeculativeDecoder(target, llama(seed=2, layers=1), word_tokenizer(), sampling=sampling)
    prompts = [[5, 6, 5, 6, 5], [9, 2, 9]]
    actual = pair.generate(prompts, NEW, rule="coupled", draft_length=3)
    for prompt, result in zip(prompts, actual, strict=True):
        assert result.tokens == generate_with_transformers(target, prompt, no_repeat_ngram_size=2)


class Recording(LogitsProcessor):
    """Records its arguments, then overwrites them."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], list[float]]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert input_ids.shape[0] == scores.shape[0] == 1
        self.calls.append((input_ids[0].tolist(), scores[0].tolist()))
        return scores.mul_(0)


def test_processors_come_between_penalty_and_warpers() -> None:
    recording = Recording()
    logits, tokens, positions = round_of()
    before = logits.clone()
    settings = {"temperature": 0.5, "repetition_penalty": 1.3}
    warped = Sampling(**settings, top_k=5, processors=(recording,)).warp(logits, tokens, positions)
    assert not warped.any()
    Sampling(processors=(Recording(),)).warp(logits, tokens, positions)
    assert torch.equal(logits, before)
    penalised = Sampling(repetition_penalty=1.3).warp(logits, tokens, positions)
    assert recording.calls == [
        (tokens[row, : positions[row, n]].tolist(), penalised[row, n].tolist())
        for row, n in product(range(4), range(3))
    ]


def generate_with_transformers(model: Any, prompt: list[int], **settings: Any) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False, **settings)
    written: list[int] = out[0, len(prompt) :].tolist()
    return written[: next((i for i, t in enumerate(written) if t in EOS), len(written))]


@pytest.mark.parametrize(
    ("message", "settings"),
    [
        ("temperature is -1", {"temperature": -1.0}),
        ("temperature is nan", {"temperature": math.nan}),
        ("top_k is 0; it must be at least 1", {"temperature": 1.0, "top_k": 0}),
        (r"top_p is 1.5; it must be in \(0, 1\]", {"temperature": 1.0, "top_p": 1.5}),
        (r"min_p is 0; it must be in \(0, 1\]", {"temperature": 1.0, "min_p": 0}),
        (r"min_p is nan; it must be in \(0, 1\]", {"temperature": 1.0, "min_p": math.nan}),
        ("repetition_penalty is 0; it must be a positive number", {"repetition_penalty": 0}),
        ("repetition_penalty is inf; it must be a positive number", {"repetition_penalty": math.inf}),
        ("top_k is 3 at temperature 0", {"top_k": 3}),
        ("min_p is 0.1 at temperature 0", {"min_p": 0.1}),
    ],
)
def test_bad_settings_are_named(message: str, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=message):
        Sampling(**settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])  # bf16 takes another path
@pytest.mark.parametrize("shape", [(1, 1, 7), (3, 2, 5), (2, 0, 4)])
def test_argmax_is_the_first_largest_of_every_row(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    values = torch.randint(-2, 3, (50, *shape), generator=torch.Generator().manual_seed(0))  # many are equal
    expected = [[row.index(max(row)) for row in rows] for rows in values.flatten(0, 1).tolist()]
    assert argmax(values.to(dtype)).flatten(0, 1).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", [{"temperature": 0.8}, {"temperature": 1.0, "top_k": 5}])
def test_noise_computed_beforehand_draws_the_same_tokens(settings: dict[str, Any], dtype: torch.dtype) -> None:
    logits, tokens, positions = round_of()
    keys, sampling = noise.problem_keys(5, [1, 2, 3, 4]), Sampling(**settings)
    warped = sampling.warp(logits.to(dtype), tokens, positions)
    race = sampling.gumbel_noise(keys, positions, VOCABULARY, dtype)
    assert race is not None
    expected = sampling.draw(warped, keys, positions)
    assert torch.equal(sampling.draw(warped, keys, positions, race), expected)
    other = torch.zeros_like(race, dtype=torch.float16)  # of another type than the logits: it is not used
    assert torch.equal(sampling.draw(warped, keys, positions, other), expected)


def test_greedy_decoding_takes_no_noise() -> None:
    logits, _, positions = round_of()
    assert Sampling().gumbel_noise(noise.problem_keys(5, [1, 2, 3, 4]), positions, VOCABULARY, logits.dtype) is None
