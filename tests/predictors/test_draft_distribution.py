"""Statistics of q and token kinds, compared with their definitions and with traces."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from fsd_collectors.collection.measures import Measures, Positions
from fsd_decoding.sampling import Sampling
from fsd_predictors.features import KINDS, MEASURED, TokenKinds, measure
from support.models.tiny_models import EOS, VOCABULARY, word_tokenizer
from support.traces.reference_columns import shape_of


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(2, 60), st.floats(0.1, 30.0))
def test_statistics_of_q_equal_their_definitions(seed: int, rows: int, vocabulary: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    logits = (scale * rng.normal(size=(rows, vocabulary))).astype(np.float32)
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    logits[:, rng.integers(vocabulary)] = 1.0  # something is possible
    drawn = rng.integers(vocabulary, size=rows)
    found = measure(torch.from_numpy(logits), torch.from_numpy(drawn)).numpy()
    expected = shape_of(logits.astype(np.float64), drawn)
    assert found.dtype == np.float32
    assert (found >= 0.0).all()
    for i, name in enumerate(MEASURED):
        absolute = 1e-4 if name == "varentropy" else 1e-6  # a difference of numbers that may both be in the hundreds
        assert found[:, i] == pytest.approx(expected[name], rel=1e-5, abs=absolute), name


def some_logits(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.logspace(-1, 1.2, 200)[:, None] * torch.randn(200, VOCABULARY, generator=generator)).to(dtype)
    logits[::7, 3:9] = -torch.inf
    return logits, torch.randint(VOCABULARY, (200,), generator=generator)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_statistics_of_q_equal_those_in_traces(dtype: torch.dtype) -> None:
    logits, drawn = some_logits(dtype)
    zeros = torch.zeros(200, 2, dtype=torch.int64)
    measures = Measures([], "raw", Sampling())
    traced = measures(Positions(logits, logits, drawn, drawn, zeros[:, 0], zeros)).numpy()
    found = measure(logits, drawn).numpy()
    for i, name in enumerate(MEASURED):
        column = traced[measures.columns.index(f"draft_{name}")]
        assert found[:, i] == pytest.approx(column, rel=1e-5, abs=1e-5), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_measured_in_fp32(dtype: torch.dtype) -> None:
    logits, drawn = some_logits(dtype)
    assert torch.equal(measure(logits, drawn), measure(logits.float(), drawn))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_logits_are_visible(bad: float) -> None:
    logits = torch.randn(3, 8)
    logits[1, 5] = bad
    assert measure(logits, torch.tensor([0, 1, 2])).isnan().any(1).tolist() == [False, True, False]


# What a token is.


def test_token_kinds_follow_from_the_text() -> None:
    written = {
        0: ["ing", "A", "<eos>", "é"],
        1: ["7", "Ġ12", "▁3"],
        2: ["Ġthe", "▁The"],
        3: ["!", ".", "Ġ(", "$$"],
        4: ["Ċ", ".Ċ", "ĊĊ", "<0x0A>"],
        5: ["Ġ", "▁▁", "ĉ"],
    }
    words = [word for group in written.values() for word in group]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="A")))
    kinds = TokenKinds.of(tokenizer, [vocabulary["<eos>"]])
    assert len(written) == len(KINDS)
    for number, group in written.items():
        assert [kinds.kind[vocabulary[word]] for word in group] == [number] * len(group), KINDS[number]
    assert np.flatnonzero(kinds.ends).tolist() == [vocabulary["<eos>"]]


def test_ids_beyond_the_tokenizer_have_a_kind() -> None:
    kinds = TokenKinds.of(word_tokenizer(), EOS)
    assert len(kinds.kind) == len(kinds.ends) >= VOCABULARY + 20
    assert np.flatnonzero(kinds.ends).tolist() == list(EOS)
    far = TokenKinds.of(word_tokenizer(), [500])
    assert far.ends[500] == 1.0 and len(far.kind) == len(far.ends)  # noqa: PT018
