"""One pair of models shared by several threads: no thread is affected by another one's decoding."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import LlamaConfig

from fsd_decoding.models.forward import NAME, use_grouped_attention
from support.models.tiny_models import SMALL, llama, random_model
from support.models.tiny_pair import ragged_prompts, tiny_decoder

THREADS, NEW = 4, 12


@pytest.fixture
def _frequent_switches() -> Iterator[None]:
    """Makes threads switch within a forward pass, not only between passes."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_frequent_switches")
def test_threads_that_share_models_decode_like_one() -> None:
    decoder, prompts = tiny_decoder(), ragged_prompts(3)
    alone = [r.tokens for r in decoder.generate(prompts, NEW)]

    def decode(_: int) -> list[list[int]]:
        return [r.tokens for r in decoder.generate(prompts, NEW)]

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(decode, range(3 * THREADS))) == [alone] * (3 * THREADS)
    assert [model.config._attn_implementation for model in (decoder.target, decoder.draft)] == ["sdpa", "sdpa"]


@pytest.mark.parametrize("key_heads", [2, 4])
def test_a_model_called_during_a_round_gives_its_usual_results(key_heads: int) -> None:
    """A plain forward pass and a cached generation, while the runner's attention is set, as by another thread."""
    model = random_model(LlamaConfig(**SMALL | {"num_key_value_heads": key_heads}), seed=3)
    ids = torch.tensor([[5, 6, 9, 11, 3, 8]])

    def outputs() -> tuple[torch.Tensor, torch.Tensor]:
        return model(ids).logits, model.generate(ids, max_new_tokens=8, do_sample=False)

    logits, text = outputs()
    with torch.no_grad(), use_grouped_attention(model.config):
        assert model.config._attn_implementation == NAME
        actual, written = outputs()
    torch.testing.assert_close(actual, logits, rtol=0, atol=1e-9)
    assert torch.equal(written, text)


def test_overlapping_rounds_restore_the_models_own_attention() -> None:
    """The context that is entered first is left first."""
    config = llama(seed=1).config
    first, second = use_grouped_attention(config), use_grouped_attention(config)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert config._attn_implementation == "sdpa"
