"""Models with recurrent layers: the runner and its states, compared with uncached forward passes at every ragged step.

Tiny random models in float64, so that a tolerance of 1e-9 tells a wrong state from rounding.
"""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, RecurrentGemmaConfig, RwkvConfig, Zamba2Config

from fsd_common.errors import UsageError
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.memory import ModelSize, Workload, need
from fsd_decoding.models.runner import ModelRunner
from fsd_decoding.models.state_cache import StateCache
from support.models.ragged import DRAFT, ROWS, SLOTS, Ragged
from support.models.recurrent_models import RECURRENT
from support.models.tiny_models import SMALL, VOCABULARY, llama, random_model
from support.models.wide_scans import use_wide_scans


@pytest.fixture(autouse=True)
def float64_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    use_wide_scans(monkeypatch)


@pytest.mark.parametrize("case", RECURRENT)
@torch.inference_mode()
def test_every_logit_of_rows_that_are_rolled_back_is_that_of_an_uncached_pass(case: str) -> None:
    Ragged(random_model(RECURRENT[case], seed=0), within=1e-9).rounds(30)


@pytest.mark.parametrize("case", RECURRENT)
@torch.inference_mode()
def test_a_cache_of_transformers_that_is_cropped_has_the_state_of_what_was_rejected(case: str) -> None:
    """The negative control: what the tests above would say of its rollback, which is right for convolutions alone."""
    model = random_model(RECURRENT[case], seed=0)
    text = torch.arange(2, 22)[None] % VOCABULARY
    fresh = model(text, use_cache=False).logits[0]
    cache = DynamicCache(config=model.config)
    cache.activate_past_recording()
    model(text[:, :10], cache=cache, use_cache=True)
    model(text[:, 12:16], cache=cache, use_cache=True)  # a draft that is rejected
    cache.crop(-4)
    after = model(text[:, 10:11], cache=cache, use_cache=True).logits[0, -1]
    assert ((after - fresh[10]).abs().max() < 1e-9) == case.startswith("lfm2")


@torch.inference_mode()
def test_rows_are_copied_dropped_and_renumbered_with_their_states() -> None:
    model = random_model(RECURRENT["qwen3-next"], seed=0)
    ragged = Ragged(model, within=1e-9)
    ragged.refill({0: 9, 1: 9, 2: 9})
    ragged.runner.copy([0], [2], 8)
    ragged.texts[2] = [*ragged.texts[0]]
    ragged.round(3, 1, keep=4)
    ragged.runner.keep([2, 0])
    ragged.texts = [ragged.texts[2], ragged.texts[0]]
    ragged.round(3, 1, keep=4)


@torch.inference_mode()
def test_the_plan_counts_states_as_the_cache_allocates_them() -> None:
    model = random_model(RECURRENT["falcon-h1"], seed=0)
    runner = ModelRunner(model, ROWS, SLOTS, VOCABULARY, rolled_back=DRAFT + 1)
    runner.prefill(torch.arange(ROWS), torch.ones((ROWS, 9), dtype=torch.int64), 8)
    runner.set_aside(0, 8, 0)
    size, work = ModelSize.of(model, None), Workload(longest=SLOTS, prompt=8, draft_length=DRAFT, greedy=True)
    states = need(size, [ModelSize.of(NGram(), None)], work, ROWS, "cpu")["recurrent states"]
    assert isinstance(runner.cache, StateCache)
    assert runner.cache.state_bytes == states > 0
    assert runner.cache.nbytes - runner.cache.state_bytes == ROWS * SLOTS * size.slot
    assert ModelSize.of(llama(seed=0), None).state == 0


OTHERS = {
    "zamba2": Zamba2Config(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        n_mamba_heads=4, mamba_d_state=8, chunk_size=8, layers_block_type=["mamba", "hybrid"],
    ),
    "rwkv": RwkvConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32),
    "recurrent_gemma": RecurrentGemmaConfig(**SMALL | {"num_hidden_layers": 3}, lru_width=32),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_families_are_refused_by_name(name: str) -> None:
    refused = rf"^{name} keeps a state that cannot be rolled back; of models with one bamba, "
    with pytest.raises(UsageError, match=refused):
        ModelRunner(random_model(OTHERS[name], seed=0), ROWS, SLOTS, VOCABULARY)
