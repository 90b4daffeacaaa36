"""One pair of models in several threads: no thread sees that another is decoding.

Knows decoders and the attention they borrow a model for. Knows nothing of rules.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import LlamaConfig

from fsd_decoding.models.attention import NAME, grouped
from support.tiny_models import SMALL, llama, random_model
from support.tiny_pair import ragged_prompts, tiny_decoder

THREADS, NEW = 4, 12


@pytest.fixture
def _hasty_switches() -> Iterator[None]:
    """Threads change places within a forward, not only between them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_hasty_switches")
def test_threads_that_share_models_decode_as_one_does() -> None:
    decoder, prompts = tiny_decoder(), ragged_prompts(3)
    alone = [r.tokens for r in decoder.generate(prompts, NEW)]

    def decode(_: int) -> list[list[int]]:
        return [r.tokens for r in decoder.generate(prompts, NEW)]

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(decode, range(3 * THREADS))) == [alone] * (3 * THREADS)
    assert [model.config._attn_implementation for model in (decoder.target, decoder.draft)] == ["sdpa", "sdpa"]


@pytest.mark.parametrize("key_heads", [2, 4])
def test_a_model_called_during_a_round_answers_as_ever(key_heads: int) -> None:
    """As another thread would: a plain forward, and a cached generation, while our attention is set."""
    model = random_model(LlamaConfig(**SMALL | {"num_key_value_heads": key_heads}), seed=3)
    ids = torch.tensor([[5, 6, 9, 11, 3, 8]])

    def answers() -> tuple[torch.Tensor, torch.Tensor]:
        return model(ids).logits, model.generate(ids, max_new_tokens=8, do_sample=False)

    logits, text = answers()
    with torch.no_grad(), grouped(model.config):
        assert model.config._attn_implementation == NAME
        found, written = answers()
    torch.testing.assert_close(found, logits, rtol=0, atol=1e-9)
    assert torch.equal(written, text)


def test_rounds_that_overlap_leave_the_models_own_attention() -> None:
    """The first to begin ends first, in the midst of the other."""
    config = llama(seed=1).config
    first, second = grouped(config), grouped(config)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert config._attn_implementation == "sdpa"
