"""The lean forward pass: texts equal those of transformers' modules, and models that it cannot run are told apart.

`test_model_families.py` compares its logits with uncached forward passes of every family.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import transformers as hf
from torch import nn
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaMLP

from fsd_collectors.collection.measures import HiddenStates
from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from fsd_decoding.loading import load_model
from fsd_decoding.models import lean as lean_module
from fsd_decoding.models.forward import ModuleForward
from fsd_decoding.models.lean import LeanModel, choose, copied_bytes
from fsd_decoding.models.runner import ModelRunner
from fsd_decoding.models.weights_digest import state_of
from support.models.tiny_models import FAMILIES, SMALL, VOCABULARY, WINDOW, llama, random_model, word_tokenizer
from support.models.tiny_pair import ragged_prompts, related

PAIRS: dict[str, tuple[Any, Any]] = {
    "llama, draft of another family": (FAMILIES["llama"], FAMILIES["qwen2"]),
    "mistral, windows": (FAMILIES["mistral"], FAMILIES["mistral"]),
    "qwen2, biases, tied embeddings": (hf.Qwen2Config(**SMALL, tie_word_embeddings=True), FAMILIES["llama"]),
    "qwen3, norms of queries and keys, windows in its second layer": (
        hf.Qwen3Config(**SMALL, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
        FAMILIES["qwen3"],
    ),
}
GRAPHS = [*((case, "capture") for case in PAIRS), (list(PAIRS)[-1], True)]  # compiled: the one with most operations
WAYS: list[Any] = [(case, False) for case in PAIRS]
WAYS += [pytest.param(*way, marks=pytest.mark.slow) for way in GRAPHS]
PROMPTS = ragged_prompts(6)
SETTINGS: list[dict[str, Any]] = [
    {"rule": "target"}, {"rule": "sd", "temperature": 0.8}, {"rule": "fsd-coupled", "threshold": 0.2}
]  # fmt: skip


def texts(decoder: SpeculativeDecoder, **settings: Any) -> list[Result]:
    """Six prompts in four rows, so that rows are refilled."""
    return decoder.generate(PROMPTS, 24, draft_length=3, batch_size=4, **settings)


def tokens(decoder: SpeculativeDecoder, **settings: Any) -> list[tuple[list[int], int]]:
    return [(result.tokens, result.rounds) for result in texts(decoder, **settings)]


def lean_of(model: Any) -> LeanModel:
    lean = choose(model)
    assert isinstance(lean, LeanModel)
    return lean


def pair_of(case: str, dtype: torch.dtype = torch.float64) -> tuple[Any, Any]:
    target, draft = PAIRS[case]
    return random_model(target, seed=0).to(dtype), random_model(draft, seed=1).to(dtype)


@pytest.mark.thinned(every=9)
@pytest.mark.parametrize(("case", "compile"), WAYS)
def test_texts_equal_those_of_transformers_modules(case: str, compile: bool | Literal["capture"]) -> None:
    pair = pair_of(case)
    lean = SpeculativeDecoder(*pair, word_tokenizer(), compile=compile)
    assert lean.run_by == {"target": "lean", "draft": "lean"}
    modules = SpeculativeDecoder(*pair, word_tokenizer(), lean=False)
    for settings in SETTINGS[-1:] if compile else SETTINGS:  # graphs take long to make
        assert tokens(lean, **settings) == tokens(modules, **settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_equal_to_rounding(dtype: torch.dtype) -> None:
    """bf16 has 8 bits, and two layers of sums of tens of terms are rounded at every step."""
    for case in PAIRS:
        target, _ = pair_of(case, dtype)
        fed, at = torch.tensor(PROMPTS[3])[None, :6], torch.arange(len(PROMPTS[3]))[None, :6]
        ways = [ModelRunner(target, 1, 16, VOCABULARY, lean) for lean in (True, False)]
        with torch.inference_mode():
            ours, theirs = (way.logits(fed, at, 16, keep=fed.shape[1]) for way in ways)
        tolerance = {torch.float32: 2e-5, torch.bfloat16: 0.1}[dtype]
        assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()
        assert not torch.equal(ours, theirs)  # the ways are not one


def test_lean_false_refuses_it() -> None:
    decoder = SpeculativeDecoder(*related(seed=1, spread=0.05), word_tokenizer(), lean=False)
    assert set(decoder.run_by.values()) == {"transformers: lean is False"}
    with pytest.raises(UsageError, match="lean is 'no'; it must be True or False"):
        SpeculativeDecoder(decoder.target, decoder.draft, decoder.tokenizer, lean="no")  # type: ignore[arg-type]


class OwnLlama(hf.LlamaForCausalLM):
    """A class of a user's own, whose forward pass may be anything."""


def of_own_class(model: Any) -> Any:
    model.__class__ = OwnLlama
    return model


def with_layer_norm(model: Any) -> Any:
    attention = model.model.layers[0].self_attn
    attention.q_norm = nn.LayerNorm(attention.head_dim)
    return model


def with_hook(model: Any) -> Any:
    model.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


def with_forward(model: Any) -> Any:
    mlp = model.model.layers[0].mlp
    mlp.forward = lambda states: 2 * LlamaMLP.forward(mlp, states)
    return model


def compiled_in_place(model: Any) -> Any:
    layer: Any = model.model.layers[0]
    layer.compile()
    return model


class Wrapped(nn.Module):
    """Stands for a module that was put in another's place, such as an adapter."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        doubled: torch.Tensor = 2 * self.inner(states)
        return doubled


def with_wrapped_mlp(model: Any) -> Any:
    model.model.layers[1].mlp = Wrapped(model.model.layers[1].mlp)
    return model


def with_other_windows(model: Any) -> Any:
    model.config.layer_types = model.config.layer_types[::-1]
    return model


def with_fewer_layers_named(model: Any) -> Any:
    model.config.num_hidden_layers = 1
    return model


UNFIT: dict[str, tuple[Callable[[], Any], str]] = {
    "another family": (lambda: random_model(FAMILIES["gpt2"], 1), "GPT2LMHeadModel is not one of LlamaForCausalLM, "),
    "a class of the user's own": (
        lambda: of_own_class(llama(1)), "OwnLlama is not one of LlamaForCausalLM, ",
    ),
    "eager attention": (
        lambda: random_model(FAMILIES["llama"], 1, attention="eager"), "it was loaded with eager attention"
    ),
    "rope that depends on the length": (
        lambda: random_model(
            hf.LlamaConfig(**SMALL, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}), 1
        ),
        "its encoding of positions is 'dynamic'",
    ),
    "a hook": (lambda: with_hook(llama(1)), "a hook or another forward pass was set on one of its modules"),
    "a forward pass set": (lambda: with_forward(llama(1)), "a hook or another forward pass was set"),
    "a compiled layer": (lambda: compiled_in_place(llama(1)), "a hook or another forward pass was set"),
    "a module in another's place": (
        lambda: with_wrapped_mlp(llama(1)), "its module layers.1.mlp is a Wrapped of another kind"
    ),
    "a norm in another's place": (
        lambda: with_layer_norm(random_model(FAMILIES["qwen3"], seed=1)), "its module layers.0.self_attn.q_norm is a"
    ),
    "windows of other layers": (
        lambda: with_other_windows(random_model(PAIRS[list(PAIRS)[-1]][0], seed=1)),
        "its layers are not those that its configuration names",
    ),
    "layers that are left out": (
        lambda: with_fewer_layers_named(llama(1)), "its layers are not those that its configuration names"
    ),
    "no weights": (lambda: llama(1).to("meta"), "it has no weights"),
}  # fmt: skip


@pytest.mark.thinned(every=7)
@pytest.mark.parametrize("case", UNFIT)
def test_transformers_modules_run_what_it_cannot(case: str) -> None:
    make, reason = UNFIT[case]
    assert str(choose(make())).startswith(reason)


def test_a_model_whose_logits_would_differ_is_run_by_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that was changed under its function's name, which only its logits show."""
    original: Any = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, *rest: original(1.01 * q, *rest))
    decoder = SpeculativeDecoder(llama(1), llama(1), word_tokenizer())
    assert decoder.run_by["target"].startswith("transformers: its logits would differ from transformers' by 0.0")
    assert tokens(decoder) == tokens(SpeculativeDecoder(decoder.target, decoder.draft, word_tokenizer(), lean=False))


@pytest.mark.slow
@pytest.mark.parametrize("compile", [False, "capture"])
def test_weights_that_change_in_place_are_used(compile: bool | Literal["capture"]) -> None:
    target, draft = pair_of("qwen2, biases, tied embeddings")
    lean = SpeculativeDecoder(target, draft, word_tokenizer(), compile=compile)
    before = tokens(lean, **SETTINGS[-1])
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in target.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype), alpha=0.1)
    after = tokens(lean, **SETTINGS[-1])
    assert after != before
    assert after == tokens(SpeculativeDecoder(target, draft, word_tokenizer(), lean=False), **SETTINGS[-1])


@pytest.mark.slow
def test_weights_that_change_past_torchs_counts_are_used() -> None:
    target, draft = pair_of("qwen2, biases, tied embeddings")
    lean = SpeculativeDecoder(target, draft, word_tokenizer())
    before = tokens(lean)
    for weight in target.parameters():
        weight.data.mul_(-0.5)
    assert tokens(lean) == tokens(SpeculativeDecoder(target, draft, word_tokenizer(), lean=False)) != before


def copies(lean: LeanModel) -> list[torch.Tensor]:
    copied = [(linears._product.weight, linears._bias) for linears in lean._copied]
    return [tensor for pair in copied for tensor in pair if tensor is not None]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_single_weights_that_change_past_torchs_counts_are_used(dtype: torch.dtype) -> None:
    """Rows that change places, too, and one element of a bias."""
    target, _ = pair_of("qwen2, biases, tied embeddings", dtype)
    lean = lean_of(target)
    layer = target.model.layers[1]
    head, down, bias = target.lm_head.weight.data, layer.mlp.down_proj.weight.data, layer.self_attn.v_proj.bias.data
    for changed, elements, value in ((head, [0, 1], head[[1, 0]]), (down[0], 7, 0.0), (bias, 3, 1.0)):
        changed[elements] = value
        assert choose(target) is lean
        fresh = lean_of(copy.deepcopy(target))
        for own, other in zip(copies(lean), copies(fresh), strict=True):
            assert torch.equal(own, other)


@pytest.mark.slow
def test_a_forward_pass_that_a_class_was_given_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its effect begins beyond the texts that logits are compared on, and it is set after a first decoding."""
    decoder = SpeculativeDecoder(llama(1), llama(1), word_tokenizer())
    before = tokens(decoder)
    original: Any = LlamaMLP.forward
    monkeypatch.setattr(
        LlamaMLP, "forward", lambda self, states: original(self, states) * (1.0 if states.shape[1] > 1 else -1.0)
    )
    assert decoder.run_by["target"] == "transformers: the forward pass of LlamaMLP was replaced"
    after = tokens(decoder)
    assert after == tokens(SpeculativeDecoder(decoder.target, decoder.draft, word_tokenizer(), lean=False)) != before


def test_hidden_states_that_were_asked_for_once_do_not_matter() -> None:
    """transformers leaves the hooks that collect them on the model."""
    model = llama(1)
    model(torch.tensor([[1, 2, 3]]), output_hidden_states=True)
    assert any(module._forward_hooks for module in model.modules())
    assert isinstance(choose(model), LeanModel)


def prune_to_one_head(layer: Any) -> None:
    """Its modules find the number of heads by their weights' shapes."""
    attention = layer.self_attn
    attention.num_key_value_groups = 1
    for module in (attention.q_proj, attention.k_proj, attention.v_proj):
        module.weight = nn.Parameter(module.weight[: attention.head_dim].detach())
    attention.o_proj.weight = nn.Parameter(attention.o_proj.weight[:, : attention.head_dim].detach())


@pytest.mark.slow
def test_modules_run_a_model_that_the_lean_forward_pass_fails_on() -> None:
    target, draft = llama(1), llama(2)
    prune_to_one_head(target.model.layers[1])
    decoder = SpeculativeDecoder(target, draft, word_tokenizer())
    assert decoder.run_by["target"].startswith("transformers: its layers do not fit the lean forward pass (")
    assert tokens(decoder) == tokens(SpeculativeDecoder(target, draft, word_tokenizer(), lean=False))


def test_the_default_dtype_does_not_matter() -> None:
    model = llama(1).float()
    torch.set_default_dtype(torch.float64)
    try:
        assert isinstance(choose(model), LeanModel)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.slow
def test_weights_that_are_replaced_are_used() -> None:
    target, draft = related(seed=1, spread=0.05)
    lean = SpeculativeDecoder(target, draft, word_tokenizer())
    before = tokens(lean)
    target.load_state_dict(llama(5).state_dict(), assign=True)
    assert tokens(lean) == tokens(SpeculativeDecoder(target, draft, word_tokenizer(), lean=False)) != before


def wrap_linear(layer: Any) -> None:
    layer.mlp.down_proj = nn.Sequential(layer.mlp.down_proj, nn.Hardtanh(-0.01, 0.01))


def replace_activation(layer: Any) -> None:
    layer.mlp.act_fn = nn.ReLU()


def change_norm(layer: Any) -> None:
    layer.input_layernorm.variance_epsilon = 1.0


def change_scale(layer: Any) -> None:
    layer.self_attn.scaling = 1.0


def change_class(layer: Any) -> None:
    layer.mlp.down_proj.__class__ = Doubling


CHANGES = [wrap_linear, replace_activation, change_norm, change_scale, change_class]


@pytest.mark.slow
@pytest.mark.parametrize("compile", [False, "capture"])
@pytest.mark.parametrize("change", CHANGES)
def test_modules_that_change_after_decoding_are_used(
    change: Callable[[Any], None], compile: bool | Literal["capture"]
) -> None:
    target, draft = related(seed=1, spread=0.05)
    lean = SpeculativeDecoder(target, draft, word_tokenizer(), compile=compile)
    before = tokens(lean)
    for layer in target.model.layers:
        change(layer)
    assert tokens(lean) == tokens(SpeculativeDecoder(target, draft, word_tokenizer(), lean=False)) != before


def test_a_hook_on_all_modules_is_called() -> None:
    model = llama(seed=1)
    assert isinstance(choose(model), LeanModel)
    with nn.modules.module.register_module_forward_hook(lambda module, inputs, output: output):
        assert choose(model) == "a hook was set on all modules"
    assert isinstance(choose(model), LeanModel)


class Doubling(nn.Linear):
    """Stands for any linear layer that is not PyTorch's own, such as a quantised one."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(states)


@pytest.mark.slow
def test_other_linear_layers_are_called() -> None:
    model = llama(seed=1)
    for layer in model.model.layers:
        layer.mlp.down_proj.__class__ = Doubling
    decoders = [SpeculativeDecoder(model, llama(seed=2), word_tokenizer(), lean=way) for way in (True, False)]
    assert (
        tokens(decoders[0]) == tokens(decoders[1]) != tokens(SpeculativeDecoder(llama(1), llama(2), word_tokenizer()))
    )


def test_wrapped_linear_layers_are_called() -> None:
    model = llama(seed=1)
    model.lm_head = Wrapped(model.lm_head)
    for layer in model.model.layers:
        layer.mlp.down_proj = Wrapped(layer.mlp.down_proj)
    assert isinstance(choose(model), LeanModel)


def storages(model: Any) -> set[int]:
    return {weight.untyped_storage().data_ptr() for weight in model.parameters()}


def allocated(model: Any) -> int:
    """Bytes of all memory that the weights keep."""
    kept = {weight.untyped_storage().data_ptr(): weight.untyped_storage() for weight in model.parameters()}
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("case", PAIRS)
def test_weights_of_large_models_become_parts_of_joined_ones(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which copies nothing, changes no text, and leaves a model that can be saved, written to and copied."""
    pair = pair_of(case)
    copied = tokens(SpeculativeDecoder(*pair, word_tokenizer()), **SETTINGS[-1])
    monkeypatch.setattr(lean_module, "COPIED_BYTES", 1000)
    large = copy.deepcopy(pair)
    decoder = SpeculativeDecoder(*large, word_tokenizer())
    assert tokens(decoder, **SETTINGS[-1]) == copied
    assert [allocated(model) for model in large] == [allocated(model) for model in copy.deepcopy(pair)]
    assert copied_bytes(large[0]) == 0
    before = storages(large[0])
    assert len(before) < len(storages(copy.deepcopy(large[0])))
    lean = lean_of(large[0])
    for weight in large[0].parameters():
        weight.data.mul_(-0.5)
    assert lean_of(large[0]) is lean
    assert storages(large[0]) == before
    changed = tokens(decoder, **SETTINGS[-1])
    assert changed == tokens(SpeculativeDecoder(*large, word_tokenizer(), lean=False), **SETTINGS[-1]) != copied


def test_joined_weights_are_freed_with_the_models_own() -> None:
    model = llama(1).to(torch.bfloat16)
    before = weakref.ref(lean_of(model).layers[0].attention)
    assert isinstance(choose(model), LeanModel)
    model.to(torch.float32)
    gc.collect()
    assert before() is None


def test_a_model_with_joined_weights_is_saved_as_it_was(tmp_path: Path) -> None:
    model = llama(1).to(torch.bfloat16)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert isinstance(choose(model), LeanModel)
    model.save_pretrained(tmp_path)
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert loaded.keys() == before.keys()
    assert all(torch.equal(loaded[name], weight) for name, weight in before.items())


def test_weights_of_a_loaded_model_stay_where_they_are(tmp_path: Path) -> None:
    """So that the digest of its files goes on to hold for it."""
    llama(1).to(torch.bfloat16).save_pretrained(tmp_path)
    model = load_model(tmp_path, "cpu", None)
    before = state_of(model)
    assert isinstance(choose(model), LeanModel)
    assert state_of(model) == before


def noisy(model: Any, layers: int = 24) -> Any:
    """A deep model in bf16 in which rounding errors add up."""
    return random_model(hf.Qwen2Config(**SMALL | {"num_hidden_layers": layers, "initializer_range": 0.6}), 0).to(model)


def test_rounding_in_16_bits_is_judged_against_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forward passes differ from each other by more than fp32 lets pass, and from fp32 by as much."""
    monkeypatch.setattr(lean_module, "_WIDENED", 3 * SMALL["hidden_size"])  # so that weights are converted in pieces
    model = noisy(torch.bfloat16)
    tokens = torch.randint(VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        own = lean_module._logits(model, lean_module.LeanForward(LeanModel(model), 12), tokens)
        theirs = lean_module._logits(model, ModuleForward(model), tokens)
        with lean_module.InFp32():
            wide = lean_module._logits(model, ModuleForward(model), tokens)
        exact = lean_module._logits(model.double(), ModuleForward(model), tokens)  # fp32's own error is as large
    assert lean_module._error(wide, exact) < 1e-5
    assert lean_module._error(own, theirs) > lean_module._TOLERANCE[torch.bfloat16]
    assert isinstance(choose(noisy(torch.bfloat16)), LeanModel)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_error_in_16_bits_is_found(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    original: Any = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, *rest: original(1.2 * q, *rest))
    assert "its logits would differ from fp32's by" in str(choose(llama(1).to(dtype)))


def test_copies_are_counted_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama(1)
    lean = lean_of(model)
    copied = sum(tensor.nbytes for tensor in copies(lean))
    assert copied_bytes(model) == copied_bytes(llama(1).to("meta")) == copied > 0
    assert copied_bytes(llama(1, tie_word_embeddings=True)) == copied
    assert copied_bytes(random_model(FAMILIES["gpt2"], 1)) == 0
    monkeypatch.setattr(lean_module, "COPIED_BYTES", sum(weight.nbytes for weight in model.parameters()) - 1)
    assert copied_bytes(model) == 0


def test_hidden_states_are_those_of_transformers_modules() -> None:
    target, _ = related(seed=1, spread=0.05)
    fed, at = torch.tensor([PROMPTS[0][:4]]), torch.arange(len(PROMPTS[0][:4]))[None]
    kept = []
    for lean in (True, False):
        runner = ModelRunner(target, 1, 16, VOCABULARY, lean)
        with torch.inference_mode(), HiddenStates(target, "whole", 0) as states:
            runner.logits(fed, at, 16, keep=2)
        kept.append(states.latest())
    assert torch.equal(kept[0], kept[1])
    assert kept[0].shape == (1, 2, 32)
