"""The runner and its cache, compared with uncached forward passes of each model family at every ragged step.

Tiny random models in float64, so that a tolerance of 1e-10 tells a wrong mask or position from rounding. Families that
cannot be rolled back must be refused.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import transformers as hf
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from fsd_common.errors import UsageError
from fsd_decoding.models.forward import CACHE_ARGUMENTS, cache_argument
from fsd_decoding.models.lean import ARCHITECTURES, LeanModel, choose
from fsd_decoding.models.runner import ModelRunner
from support.models.exact_softmax import use_exact_softmax
from support.models.ragged import ROWS, SLOTS, Ragged
from support.models.tiny_models import FAMILIES, MIXED, SMALL, VOCABULARY, WINDOW, llama, random_model

DEEPSEEK: dict[str, Any] = {"kv_lora_rank": 8, "q_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
                            "v_head_dim": 6, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
                            "topk_group": 1, "first_k_dense_replace": 2, "moe_intermediate_size": 24}  # fmt: skip
NO_HEAD_SIZE = {name: value for name, value in SMALL.items() if name != "head_dim"}
GPT_NEO: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
                           "attention_types": [[["global", "local"], 1]], "window_size": WINDOW}  # fmt: skip
BART: dict[str, Any] = {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
                        "pad_token_id": 0, "encoder_attention_heads": 4, "decoder_attention_heads": 4}  # fmt: skip
GRANITE: dict[str, Any] = {"shared_intermediate_size": 48, "mamba_n_heads": 4, "mamba_d_state": 8}
FULL: dict[str, Any] = {"layer_types": ["full_attention"] * 2}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [3.0, 4.0, 6.0, 9.0]}
BIASES = {"attention_bias": True, "mlp_bias": True}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}  # fmt: skip
MORE = {
    "llama, biases and tied embeddings": hf.LlamaConfig(**SMALL | BIASES, tie_word_embeddings=True),
    "llama, scaled rope of version 3": hf.LlamaConfig(**SMALL, rope_parameters=LLAMA3),
    "mistral, without windows": hf.MistralConfig(**SMALL, sliding_window=None),
    "qwen3, yarn, windows in its second layer": hf.Qwen3Config(
        **SMALL, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1, rope_parameters=YARN
    ),
    "llama, whose window is only in its file": hf.LlamaConfig(**SMALL | {"sliding_window": WINDOW}),
    "qwen2, windows in its second layer": hf.Qwen2Config(
        **SMALL, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "deepseek-v3, keys wider than values": hf.DeepseekV3Config(
        **SMALL | DEEPSEEK | {"num_key_value_heads": 4, "head_dim": 4}
    ),
    "gpt-oss, with sinks": hf.GptOssConfig(
        **SMALL, sliding_window=WINDOW, layer_types=MIXED, num_local_experts=4, num_experts_per_tok=2
    ),
    "opt, absolute positions with an offset": hf.OPTConfig(**SMALL, ffn_dim=48, word_embed_proj_dim=32),
    "falcon, rotary": hf.FalconConfig(**NO_HEAD_SIZE),
    "llama, dynamic rope": hf.LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    ),
    "phi3, longrope before it lengthens": hf.Phi3Config(
        **SMALL, original_max_position_embeddings=SLOTS, rope_parameters=LONG
    ),
    "granitemoehybrid without recurrent layers": hf.GraniteMoeHybridConfig(
        **SMALL, **GRANITE, **FULL, num_local_experts=4
    ),
    "granitemoehybrid, dense, rotary, without recurrent layers": hf.GraniteMoeHybridConfig(
        **SMALL, **GRANITE, **FULL, num_local_experts=0, position_embedding_type="rope"
    ),
    "bamba without recurrent layers": hf.BambaConfig(
        **SMALL, mamba_n_heads=4, mamba_d_head=16, attn_layer_indices=[0, 1]
    ),
    "qwen3-next without recurrent layers": hf.Qwen3NextConfig(
        **SMALL, **FULL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24
    ),
    "doge, with a mask of its own per head": hf.DogeConfig(**SMALL, keep_window_size=SLOTS),
}
CASES = FAMILIES | MORE


@pytest.fixture(autouse=True)
def float64_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    use_exact_softmax(monkeypatch)


def attentions(config: Any) -> list[str]:
    family: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return ["eager", "sdpa"] if family._supports_sdpa else ["eager"]


def ways(config: Any) -> list[str]:
    """The ways to run a model: each kind of attention of transformers' modules, and the lean forward pass."""
    family: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    lean = family.__name__ in ARCHITECTURES and config.rope_parameters["rope_type"] != "dynamic"
    return [*attentions(config), *(["lean"] if lean else [])]


@pytest.mark.thinned(every=33)
@pytest.mark.parametrize(("case", "way"), [(case, way) for case, c in CASES.items() for way in ways(c)])
@torch.inference_mode()
def test_ragged_rounds_equal_the_uncached_forward(case: str, way: str) -> None:
    lean = way == "lean"
    model = random_model(CASES[case], seed=3, attention="sdpa" if lean else way)
    for name, weight in model.named_parameters():
        if name.endswith(".A"):  # of Doge's mask, which is the same for all tokens where A is 0, as it begins
            weight.uniform_(-1, 1)
    assert isinstance(choose(model), LeanModel) or not lean, choose(model)
    Ragged(model, lean=lean).rounds(50)


@pytest.mark.skipif("sdpa" in attentions(FAMILIES["gemma2"]), reason="transformers before 5.21 forgot the cap there")
def test_softcapped_scores_do_not_use_sdpa() -> None:
    """Gemma-2 caps attention scores, which torch's sdpa cannot, so transformers never uses it there."""
    assert random_model(FAMILIES["gemma2"], seed=3).config._attn_implementation == "eager"


@torch.inference_mode()
def test_prompts_longer_than_a_prefill_chunk() -> None:
    config = hf.Gemma3TextConfig(**SMALL | {"max_position_embeddings": 700}, sliding_window=WINDOW, layer_types=MIXED)
    batch = Ragged(random_model(config, seed=3), slots=700)
    batch.refill({0: 600, 2: 3})
    batch.refill({1: 1})
    fresh = batch.model(torch.tensor([batch.texts[0]]), use_cache=False).logits[0, -1]
    last = torch.tensor([[text[-1]] for text in batch.texts])
    actual = batch.runner.logits(last, torch.tensor([[599], [0], [2]]), 600, keep=1)
    torch.testing.assert_close(actual[0, 0], fresh, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", CACHE_ARGUMENTS)
@torch.inference_mode()
def test_a_cache_is_passed_under_the_name_that_the_forward_pass_has(name: str) -> None:
    """Models of transformers before 5.24, and remote code written for it, take it as `past_key_values`."""

    class Renamed(hf.LlamaForCausalLM):
        def forward(
            self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None,
            past_key_values: Any = None, cache: Any = None, logits_to_keep: int = 0, **others: Any,
        ) -> Any:  # fmt: skip
            named = {"cache": cache, "past_key_values": past_key_values}
            passed = {cache_argument(llama(seed=1)): named[name]}
            return super().forward(
                input_ids, attention_mask, position_ids, logits_to_keep=logits_to_keep, **passed, **others
            )

    function: Any = Renamed.forward
    signature = inspect.signature(function)
    kept = [p for p in signature.parameters.values() if p.name not in CACHE_ARGUMENTS or p.name == name]
    function.__signature__ = signature.replace(parameters=kept)
    model: Any = Renamed(llama(seed=1).config).double()
    batch = Ragged(model.eval())
    batch.refill({0: 1, 1: 7, 2: 19})
    for _ in range(3):
        batch.round(3, 2, keep=4)


REFUSED: dict[str, tuple[Any, str]] = {
    "rwkv": (hf.RwkvConfig(**SMALL), "keeps a state"),
    "recurrent_gemma": (hf.RecurrentGemmaConfig(**SMALL), "keeps a state"),
    "minimax": (hf.MiniMaxConfig(**SMALL, num_local_experts=4), "keeps a state"),
    "llama4_text": (
        hf.Llama4TextConfig(**SMALL, num_local_experts=2, layer_types=["chunked_attention"] * 2),
        "layers of kind chunked_attention",
    ),
    "bart": (hf.BartConfig(**BART), "takes no position_ids"),
    "bloom": (hf.BloomConfig(**SMALL), "takes no position_ids"),
    "mpt": (hf.MptConfig(vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=4), "takes no position_ids"),
    "falcon": (hf.FalconConfig(**NO_HEAD_SIZE, alibi=True), "ALiBi"),
    "openai-gpt": (hf.OpenAIGPTConfig(**SMALL), "takes no past_key_values"),
    "gpt_neo": (hf.GPTNeoConfig(**GPT_NEO), "masks by a table of its own"),
    "bert": (hf.BertConfig(**SMALL), "attends to later tokens"),
    "megatron-bert": (hf.MegatronBertConfig(**SMALL), "is an encoder as loaded"),
    "roberta": (hf.RobertaConfig(**SMALL, is_decoder=True), "numbers positions from its padding"),
    "gpt2": (hf.GPT2Config(**SMALL, add_cross_attention=True), "attends to an encoder"),
    "phi3": (hf.Phi3Config(**SMALL, original_max_position_embeddings=SLOTS - 1, rope_parameters=LONG), "longrope"),
}


DOGE = {
    "of experts": (
        hf.DogeConfig(**SMALL, is_moe=True, num_experts=16, num_experts_per_tok=2),
        "chooses experts by all",
    ),
    "in texts longer than its window": (hf.DogeConfig(**SMALL, keep_window_size=SLOTS - 1), "where equal tokens tie"),
}


@pytest.mark.parametrize("case", DOGE)
def test_doge_is_refused(case: str) -> None:
    """Where its own forward passes with and without a cache disagree."""
    config, reason = DOGE[case]
    with pytest.raises(UsageError, match=f"^doge .*{reason}"):
        ModelRunner(random_model(config, seed=3), ROWS, SLOTS, VOCABULARY)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_that_cannot_be_rolled_back_is_refused_by_its_type(kind: str) -> None:
    config, reason = REFUSED[kind]
    with pytest.raises(UsageError, match=f"^{kind} .*{reason}"):
        ModelRunner(random_model(config, seed=3), ROWS, SLOTS, VOCABULARY)


def test_an_encoder_decoder_is_refused_by_its_type() -> None:
    model = hf.AutoModelForSeq2SeqLM.from_config(hf.BartConfig(**BART))
    with pytest.raises(UsageError, match=r"^bart attends to an encoder"):
        ModelRunner(model, ROWS, SLOTS, VOCABULARY)


def test_a_compiled_model_is_checked_like_the_original() -> None:
    ModelRunner(torch.compile(llama(seed=1)), ROWS, SLOTS, VOCABULARY)
