"""How models are loaded: revisions, device maps, quantisation, attention and further keywords, apart for the draft."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPTQConfig, LlamaConfig

from fsd_common.errors import UsageError
from fsd_data import pair_paths, recurrent_path
from fsd_decoding import model_options
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.loading import load_model
from fsd_decoding.memory import ModelSize
from fsd_decoding.model_options import SCHEMES, Loading, ModelOptions, scheme_of
from fsd_decoding.models.fingerprint import family_id, model_fingerprint, tokenizer_fingerprint
from fsd_decoding.models.forward import attention_kind
from fsd_decoding.profile.parts import ModelInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import profile
from support.models.tiny_models import llama, word_tokenizer

TARGET, DRAFT = map(str, pair_paths())
INT8 = "torchao-int8wo"


@pytest.fixture
def torchao() -> None:
    pytest.importorskip("accelerate", reason="quantised loading needs accelerate")
    pytest.importorskip("torchao", reason="torchao does the quantising")


def saved(folder: Path) -> str:
    model = llama(seed=1, layers=2).float()
    model.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return str(folder)


# Options of two models


def test_a_draft_is_loaded_as_the_target_where_it_does_not_differ() -> None:
    both = {"revision": "v1", "attn_implementation": "eager", "quantization": INT8, "a": 1, "b": 2}
    loading = Loading.of(both, {"quantization": "none", "b": 3})
    assert loading.target == ModelOptions("v1", None, INT8, "eager", {"a": 1, "b": 2})
    assert loading.draft == ModelOptions(None, None, "none", "eager", {"a": 1, "b": 3})
    assert loading.draft.scheme is None
    assert Loading.of(loading.target, loading.draft) == loading
    assert pickle.loads(pickle.dumps(loading)) == loading
    assert hash(loading) == hash(Loading.of(both, loading.draft))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"attn": "flash_attention_2"}, "must be sdpa or eager, as rows of different lengths"),
        ({"attn": "eager", "attn_implementation": "eager"}, "'attn' and 'attn_implementation', and they are the same"),
        ({"quantization": "int3"}, "quantization is 'int3'; it must be one of bnb-4bit, bnb-8bit, torchao-int8wo"),
        ({"quantization": 8}, "quantization is 8; it must be one of bnb-4bit, bnb-8bit, torchao-int8wo"),
        ({"revision": ""}, "revision is ''; it must be a branch, a tag or a commit"),
        ({"dtype": "float32"}, "model_kwargs sets 'dtype', .*: dtype sets it"),
        ({"token": "secret"}, "log in with `hf auth login`"),
        ({"subfolder": "fp16"}, "give the path of a local folder"),
        (["attn"], "model_kwargs is .*; it must map names"),
    ],
)
def test_what_a_model_is_not_loaded_with_is_refused(given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("(", r"\(").replace(")", r"\)")) as refused:
        ModelOptions.of(given)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model_kwargs": {"revision": "v1"}}, "the target's revision is 'v1', but .* is a local folder"),
        ({"draft_model_kwargs": {"revision": "v1"}}, "the draft's revision is 'v1', but .* is a local folder"),
        ({"model_kwargs": {"device_map": "auto"}, "device": "cpu"}, "device is 'cpu' and device_map is 'auto'"),
        ({"draft_model_kwargs": {"device_map": "auto"}, "device": "cpu"}, "leave one of the two out"),
        ({"model_kwargs": {"device_map": "nowhere"}}, "device_map is 'nowhere'; it must be auto, balanced, "),
    ],
)
def test_contradictions_are_refused_before_anything_is_loaded(
    given: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsd_decoding.decoder.load_model", lambda *rest: pytest.fail("weights are loaded"))
    with pytest.raises(UsageError, match=said):
        SpeculativeDecoder.from_pretrained(TARGET, DRAFT, **given)


def test_options_of_loaded_models_are_refused() -> None:
    loaded, tokenizer = llama(seed=1), word_tokenizer()
    with pytest.raises(UsageError, match=r"^model_kwargs is given, but the target is a loaded LlamaForCausalLM"):
        SpeculativeDecoder.from_pretrained(loaded, DRAFT, model_kwargs={"attn": "eager"}, tokenizer=tokenizer)
    with pytest.raises(UsageError, match=r"^draft_model_kwargs is given, but the draft is a loaded LlamaForCausalLM"):
        SpeculativeDecoder.from_pretrained(TARGET, loaded, draft_model_kwargs={"attn": "eager"}, tokenizer=tokenizer)


def test_a_missing_library_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_options, "_is_installed", lambda package: package not in ("torchao", "accelerate"))
    with pytest.raises(UsageError, match=r"^device_map needs accelerate, which is not .*: pip install accelerate$"):
        SpeculativeDecoder.from_pretrained(TARGET, DRAFT, model_kwargs={"device_map": "auto"})
    monkeypatch.setattr(model_options, "_is_installed", lambda package: package != "torchao")
    with pytest.raises(UsageError, match=r"^quantization 'torchao-int8wo' needs torchao, .*: pip install torchao$"):
        SpeculativeDecoder.from_pretrained(TARGET, DRAFT, model_kwargs={"quantization": INT8})


@pytest.mark.parametrize("name", ["bnb-4bit", "torchao-int4wo"])
def test_what_a_cpu_cannot_decode_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_options, "_is_installed", lambda package: True)
    for place in ({"device": "cpu"}, {"model_kwargs": {"device_map": "cpu"}}):
        given: dict[str, Any] = {"model_kwargs": {}} | place
        given["model_kwargs"] |= {"quantization": name}
        with pytest.raises(UsageError, match=f"quantization is '{name}' on a CPU, but"):
            SpeculativeDecoder.from_pretrained(TARGET, DRAFT, **given)


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (
            {"x": "cpu"},
            r"^device_map names 'x', which is no module of LlamaForCausalLM; its modules are model,",
        ),
        ({"model.norm": "cpu"}, r"^device_map has no device for 'model\.embed_tokens\.weight'"),
    ],
)
def test_a_map_of_other_modules_is_refused(places: dict[str, str], said: str) -> None:
    pytest.importorskip("accelerate", reason="device_map needs accelerate")
    with pytest.raises(UsageError, match=said):
        SpeculativeDecoder.from_pretrained(TARGET, DRAFT, model_kwargs={"device_map": places})


# What the options do


def test_attention_and_further_keywords_reach_the_models() -> None:
    decoder = SpeculativeDecoder.from_pretrained(
        TARGET, DRAFT, device="cpu", model_kwargs={"attn": "eager", "rms_norm_eps": 0.5},
        draft_model_kwargs={"attn": "sdpa"},
    )  # fmt: skip
    assert [attention_kind(model) for model in (decoder.target, decoder.draft)] == ["eager", "sdpa"]
    assert decoder.target.config.rms_norm_eps == decoder.draft.config.rms_norm_eps == 0.5
    assert ModelInfo.of(decoder.target).attention == "eager"
    with pytest.raises(UsageError, match=r"cannot be loaded: .* unexpected keyword argument 'nonsense'"):
        SpeculativeDecoder.from_pretrained(TARGET, DRAFT, model_kwargs={"nonsense": 1})


def test_keywords_that_change_the_configuration_are_planned_with(tmp_path: Path) -> None:
    source = saved(tmp_path)
    options = ModelOptions.of({"max_position_embeddings": 9, "num_hidden_layers": 1})
    planned = ModelSize.of(source, None, options)
    assert replace(planned, weights=0) == ModelSize.of(load_model(source, "cpu", None, options), None)
    assert planned.context == 9
    assert planned.weights < ModelSize.of(source, None).weights


def test_both_kinds_of_attention_decode_the_same_texts() -> None:
    texts = [
        SpeculativeDecoder.from_pretrained(TARGET, DRAFT, dtype="float64", device="cpu", model_kwargs={"attn": kind})
        .generate(["Ana has 3 hens."], 12, threshold=0.1)[0].tokens
        for kind in ("sdpa", "eager")
    ]  # fmt: skip
    assert texts[0] == texts[1]


def test_a_mapped_model_stays_where_the_map_says(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="device_map needs accelerate")
    source = saved(tmp_path / "model")
    places = dict.fromkeys(["model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head", "model.layers.0"], "cpu")
    options = {"device_map": places | {"model.layers.1": "disk"}, "offload_folder": str(tmp_path / "disk")}
    decoder = SpeculativeDecoder.from_pretrained(
        source, source, model_kwargs=options, draft_model_kwargs={"device_map": "cpu"}
    )
    assert decoder.target.model.layers[1].self_attn.q_proj.weight.is_meta
    assert not decoder.draft.model.layers[1].self_attn.q_proj.weight.is_meta
    assert model_fingerprint(decoder.target) == model_fingerprint(decoder.draft)
    whole = SpeculativeDecoder.from_pretrained(source, source, device="cpu")
    assert [r.tokens for r in decoder.generate([[3, 4]], 8)] == [r.tokens for r in whole.generate([[3, 4]], 8)]


def test_a_quantised_checkpoint_is_named_by_its_own_method() -> None:
    config = LlamaConfig()
    assert scheme_of(config) is None
    config.quantization_config = GPTQConfig(bits=4, dataset=["a"]).to_dict()
    assert scheme_of(config) == "gptq-4bit"
    config.quantization_config = {"quant_method": "compressed-tensors", "config_groups": {}}
    assert scheme_of(config) == "compressed-tensors"


def test_a_quantised_checkpoint_is_not_quantised_again(tmp_path: Path) -> None:
    source = saved(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    content = json.loads(config.read_text(encoding="utf-8")) | {
        "quantization_config": {"quant_method": "awq", "bits": 4}
    }
    config.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UsageError, match=r"is quantised already \(awq-4bit\), so quantization 'torchao-int8wo' cannot"):
        load_model(source, "cpu", None, ModelOptions(quantization=INT8))


# Quantised for real


@pytest.mark.usefixtures("torchao")
@pytest.mark.parametrize("name", [INT8, "torchao-float8wo"])
def test_a_model_quantised_by_name_is_another_and_decodes(name: str, tmp_path: Path) -> None:
    source = saved(tmp_path / "model")
    decoder = SpeculativeDecoder.from_pretrained(
        source, source, device="cpu", model_kwargs={"quantization": name}, draft_model_kwargs={"quantization": "none"}
    )
    assert [ModelInfo.of(model).quantization for model in (decoder.target, decoder.draft)] == [name, None]
    for fingerprint in (model_fingerprint, family_id):
        before = fingerprint(decoder.target)
        assert before != fingerprint(decoder.draft)
        assert before == fingerprint(load_model(source, "cpu", None, ModelOptions(quantization=name)))
        decoder.generate([[3, 4, 5]], 8)
        assert fingerprint(decoder.target) == before
    alone, lossless = (decoder.generate([[3, 4, 5]], 8, rule=rule)[0].tokens for rule in ("target", "coupled"))
    assert alone == lossless


@pytest.mark.usefixtures("torchao")
def test_how_quantised_weights_are_computed_with_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    """The weights are the same eight bits; in one of the models activations are, too."""
    import torchao.quantization as torchao
    from transformers import TorchAoConfig

    source = saved(tmp_path / "model")
    configs = [torchao.Int8WeightOnlyConfig(), torchao.Int8DynamicActivationInt8WeightConfig()]
    models = [
        load_model(source, "cpu", None, ModelOptions.of({"quantization_config": TorchAoConfig(c)})) for c in configs
    ]
    weights = [model.model.layers[0].self_attn.q_proj.weight.qdata for model in models]
    assert torch.equal(*weights)
    assert model_fingerprint(models[0]) != model_fingerprint(models[1])
    assert [scheme_of(model.config) for model in models] == [INT8, "torchao"]


@pytest.mark.usefixtures("torchao")
def test_a_profile_of_a_quantised_target_is_followed_with_its_quantisation(tmp_path: Path) -> None:
    source = saved(tmp_path / "model")
    options = {"quantization": INT8, "attn": "eager"}
    made = SpeculativeDecoder.from_pretrained(
        source, source, device="cpu", model_kwargs=options, draft_model_kwargs={"quantization": "none"}
    )
    path = tmp_path / "profile.json"
    followed(made).save(path)
    decoder = SpeculativeDecoder.from_pretrained(source, source, profile=path, device="cpu")
    assert ModelInfo.of(decoder.target) == ModelInfo.of(made.target)
    assert ModelInfo.of(decoder.draft) == ModelInfo.of(made.draft)
    with pytest.raises(UsageError, match=r"target is .* with quantization torchao-int8wo, but this target has none"):
        SpeculativeDecoder.from_pretrained(source, source, path, device="cpu", model_kwargs={"quantization": "none"})
    with pytest.warns(UserWarning, match="calibrated with eager attention in the target, this one has sdpa"):
        SpeculativeDecoder.from_pretrained(source, source, path, device="cpu", model_kwargs={"attn": "sdpa"})


def followed(decoder: SpeculativeDecoder) -> ThresholdProfile:
    """A profile of these models."""
    return profile({
        "target": ModelInfo.of(decoder.target).model_dump(), "draft": ModelInfo.of(decoder.draft).model_dump(),
        "tokenizer": tokenizer_fingerprint(decoder.tokenizer), "device": "cpu",
    }).sealed()  # fmt: skip


def test_every_scheme_names_what_it_makes() -> None:
    for name, scheme in SCHEMES.items():
        if model_options._is_installed(scheme.package):
            config = LlamaConfig()
            config.quantization_config = scheme.make()
            assert scheme_of(config) == name


def test_a_kind_of_attention_is_of_models_that_have_attention() -> None:
    """That of the target, or of the draft that a profile was found with, would be refused by transformers."""
    decoder = SpeculativeDecoder.from_pretrained(TARGET, recurrent_path(), device="cpu", model_kwargs={"attn": "sdpa"})
    assert attention_kind(decoder.target) == "sdpa"
    assert decoder.draft.config.model_type == "mamba2"
