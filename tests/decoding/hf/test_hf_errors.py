"""`fsd_generate`: calls that it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    DynamicCache,
    StoppingCriteria,
    StoppingCriteriaList,
)

from fsd_common.errors import NumericalError, UsageError
from fsd_decoding.models.forward import cache_argument
from support.models.hf_pair import (
    DRAFT,
    LOSSLESS,
    TARGET,
    fsd,
    one,
)
from support.models.tiny_models import VOCABULARY, llama

CACHE = cache_argument(TARGET)


def filled_cache() -> DynamicCache:
    cache = DynamicCache(config=TARGET.config)
    TARGET(torch.tensor([[5, 9]]), **{CACHE: cache})
    return cache


HOLE = torch.tensor([[1, 1, 0, 1]])
BAD_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("draft_model is missing", {"draft_model": None}),
    (
        "assistant_model does not reach fsd_generate; pass the model as draft_model=",
        {"draft_model": None, "assistant_model": DRAFT},
    ),
    ("draft_model is 'gpt2'; it must be a loaded causal LM", {"draft_model": "gpt2"}),
    ("beam search", {"num_beams": 3}),
    ("contrastive search", {"penalty_alpha": 0.6, "top_k": 4}),
    ("assisted generation", {"prompt_lookup_num_tokens": 3}),
    *(
        (f"{name} is set", {name: True, "return_dict_in_generate": True})
        for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
    ),
    ("synced_gpus is set", {"synced_gpus": True}),
    (f"{CACHE} is given", {CACHE: DynamicCache(config=TARGET.config)}),
    (f"{CACHE} is given", {CACHE: filled_cache()}),
    ("attention_mask hides tokens", {"attention_mask": HOLE}),
    ("attention_mask hides tokens", {"attention_mask": torch.tensor([[1, 1, 1, 0]])}),
    ("prompt 0 is empty", {"attention_mask": torch.zeros(1, 4, dtype=torch.long)}),
    ("position_ids do not count each prompt from 0", {"position_ids": torch.tensor([[3, 4, 5, 6]])}),
    ("UnbatchedClassifierFreeGuidanceLogitsProcessor", {"guidance_scale": 1.5}),
    ("EncoderRepetitionPenaltyLogitsProcessor", {"encoder_repetition_penalty": 1.5}),
    ("unknown rule 'x'", {"fsd_rule": "x"}),
    ("unknown divergence", {"fsd_divergence": "x"}),
    ("threshold is NaN", {"fsd_threshold": float("nan")}),
    ("draft_length is 0", {"fsd_draft_length": 0}),
    ("profile 'nowhere' cannot be read", {"fsd_profile": "nowhere", "fsd_threshold": None}),
]


@pytest.mark.parametrize(("message", "call"), BAD_CALLS, ids=[f"{i} {m}" for i, (m, _) in enumerate(BAD_CALLS)])
def test_unsupported_calls_are_refused(message: str, call: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=message):
        fsd(one(), **call)


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated")
def test_a_cache_is_refused_under_its_former_name_too() -> None:
    """From transformers 5.24 on, `generate` takes it as `cache`."""
    with pytest.raises(UsageError, match=f"{CACHE} is given"):
        fsd(one(), past_key_values=DynamicCache(config=TARGET.config))


def test_inputs_without_ids_are_refused() -> None:
    with pytest.raises(UsageError, match="inputs_embeds is given"):
        fsd({"inputs_embeds": TARGET.get_input_embeddings()(torch.tensor([[5, 9]]))})


def test_rows_that_may_differ_need_a_pad_token() -> None:
    class Padless(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            return input_ids[:, -1] > 20

    model = llama(seed=1, eos_token_id=None, pad_token_id=None)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    options: dict[str, Any] = {"max_new_tokens": 4, "draft_model": DRAFT} | LOSSLESS
    ids = torch.tensor([[5, 9], [7, 2]])
    assert model.generate(ids, **options).shape == (2, 6)
    assert model.generate(ids, **options, stopping_criteria=StoppingCriteriaList([Padless()])).shape[0] == 2
    with pytest.raises(UsageError, match="2 sequences may differ in length and there is no pad token"):
        model.generate(ids, **options, max_time=1e6)  # rows run out of time at different lengths


def test_encoder_decoders_are_refused() -> None:
    config = BartConfig(vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=16,
                        decoder_ffn_dim=16, encoder_attention_heads=2, decoder_attention_heads=2)  # fmt: skip
    model: Any = BartForConditionalGeneration(config)
    with pytest.raises(UsageError, match="BartForConditionalGeneration is an encoder-decoder"):
        model.generate(torch.tensor([[5, 9]]), max_new_tokens=2, draft_model=DRAFT, **LOSSLESS)


def test_broken_logits_are_an_error() -> None:
    broken = llama(seed=1)
    with torch.no_grad():
        broken.model.embed_tokens.weight[9] = float("nan")
    with pytest.raises(NumericalError, match="prompt 0 got logits that are NaN"):
        broken.generate(torch.tensor([[5, 9]]), max_new_tokens=3, draft_model=DRAFT, **LOSSLESS)
