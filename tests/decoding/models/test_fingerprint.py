"""Fingerprints of tiny random models: what keeps them, what changes them, and the checks of a profile."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from fsd_common.errors import UsageError
from fsd_data.tokenizer import build_tokenizer
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.divergence import DIVERGENCE_VERSION
from fsd_decoding.models.fingerprint import (
    model_fingerprint,
    tokenizer_difference,
    tokenizer_fingerprint,
)
from fsd_decoding.profile.parts import ModelInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import UNCERTIFIED, profile

WORDS = ["Ann has 12 red apples and 34 green pears.", "How many apples does Ann have now?"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer(WORDS, vocab_size=300)


def tiny(seed: int = 0, vocab_size: int = 300, **settings: Any) -> Any:
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, **{**shape, **settings})).eval()


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    return tiny(0, num_hidden_layers=2), tiny(1)


@pytest.fixture(scope="module")
def fitting(pair: tuple[Any, Any], tokenizer: Any) -> ThresholdProfile:
    return profile(
        {
            "target": ModelInfo.of(pair[0]).model_dump(),
            "draft": ModelInfo.of(pair[1]).model_dump(),
            "tokenizer": tokenizer_fingerprint(tokenizer),
            "divergence_version": DIVERGENCE_VERSION,
        }
    )


# Fingerprints


def test_a_model_keeps_its_fingerprint_when_saved_and_in_another_dtype(tmp_path: Path) -> None:
    model = tiny(7)
    known = model_fingerprint(model)
    model.save_pretrained(tmp_path)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
        assert model_fingerprint(loaded) == known
    loaded.config.use_cache = not loaded.config.use_cache
    loaded.config.pad_token_id = 5
    assert model_fingerprint(loaded) == known


def test_other_weights_shapes_or_settings_change_the_fingerprint() -> None:
    same = tiny(7)
    retrained = tiny(7)
    with torch.no_grad():
        retrained.model.layers[0].mlp.up_proj.weight.mul_(1.01)
    others = [tiny(8), retrained, tiny(7, rms_norm_eps=1e-4), tiny(7, num_hidden_layers=2),
              tiny(7, rope_parameters={"rope_type": "default", "rope_theta": 5e5})]  # fmt: skip
    actual = {model_fingerprint(model) for model in [same, *others]}
    assert len(actual) == 1 + len(others)
    assert model_fingerprint(tiny(7)) == model_fingerprint(same)


def test_a_tokenizer_keeps_its_fingerprint_when_saved_and_padded(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer_fingerprint(loaded) == tokenizer_fingerprint(tokenizer)
    loaded(["Ann", "Ann has"], padding=True, truncation=True, max_length=3)
    loaded.pad_token = "<eos>"
    assert tokenizer_fingerprint(loaded) == tokenizer_fingerprint(tokenizer)
    loaded.eos_token = "<pad>"
    assert tokenizer_fingerprint(loaded) != tokenizer_fingerprint(tokenizer)


def test_equal_vocabularies_that_split_differently_have_other_fingerprints(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = True
    file.write_text(json.dumps(content))
    other = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer_difference(tokenizer, other) is None
    assert tokenizer_fingerprint(other) != tokenizer_fingerprint(tokenizer)


def test_the_first_token_that_differs_is_named(tokenizer: Any) -> None:
    assert tokenizer_difference(tokenizer, build_tokenizer(WORDS, vocab_size=300)) is None
    other = build_tokenizer(WORDS, vocab_size=300)
    other.add_tokens(["<extra>"])
    extra = len(tokenizer)
    assert tokenizer_difference(tokenizer, other) == f"id {extra} is no token in target and '<extra>' in draft"
    assert tokenizer_difference(other, tokenizer) == f"id {extra} is '<extra>' in target and no token in draft"
    words = build_tokenizer(["zzz zzz yyy yyy"], vocab_size=300)
    ours, theirs = tokenizer.convert_ids_to_tokens, words.convert_ids_to_tokens
    first = next(i for i in range(300) if ours(i) != theirs(i))
    expected = f"id {first} is {ours(first)!r} in a and {theirs(first)!r} in b"
    assert tokenizer_difference(tokenizer, words, ("a", "b")) == expected


# Checks of a profile against models


def test_matching_models_pass_without_a_warning(
    fitting: ThresholdProfile, pair: tuple[Any, Any], tokenizer: Any
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitting.check(*pair, tokenizer)


def test_other_models_are_refused(fitting: ThresholdProfile, pair: tuple[Any, Any], tokenizer: Any) -> None:
    target, draft = pair
    with pytest.raises(UsageError, match=r"the profile's target is .* with fingerprint"):
        fitting.check(tiny(5, num_hidden_layers=2), draft, tokenizer)
    with pytest.raises(UsageError, match=r"the profile's draft is .* with fingerprint"):
        fitting.check(target, tiny(5), tokenizer)
    with pytest.raises(UsageError, match=r"the profile's draft is .* with vocab_size 300, but this draft has 310"):
        fitting.check(target, tiny(1, vocab_size=310), tokenizer)
    with pytest.raises(UsageError, match="another tokenizer"):
        fitting.check(target, draft, build_tokenizer(["other words entirely"], vocab_size=290))
    changed = fitting.model_copy(update={"divergence_version": DIVERGENCE_VERSION + 1})
    with pytest.raises(UsageError, match=r"version \d+ of the divergences"):
        changed.check(target, draft, tokenizer)


def test_another_dtype_or_device_gives_a_warning(
    fitting: ThresholdProfile, pair: tuple[Any, Any], tokenizer: Any
) -> None:
    with pytest.warns(UserWarning, match="calibrated with the target in float32, this one is in bfloat16") as caught:
        fitting.check(tiny(0, num_hidden_layers=2).to(torch.bfloat16), pair[1], tokenizer)
    assert caught[0].filename == __file__
    elsewhere = fitting.model_copy(update={"device": "cuda"})
    with pytest.warns(UserWarning, match="calibrated on cuda, decoding runs on cpu") as caught:
        elsewhere.check(*pair, tokenizer)
    assert caught[0].filename == __file__


def test_a_model_that_differs_in_one_row_is_refused(
    fitting: ThresholdProfile, pair: tuple[Any, Any], tokenizer: Any
) -> None:
    edited = tiny(0, num_hidden_layers=2)
    with torch.no_grad():
        edited.model.embed_tokens.weight[101] *= 1.5
    with pytest.raises(UsageError, match=r"the profile's target is .* with fingerprint"):
        fitting.compare(edited, pair[1], tokenizer)


def test_a_decoder_follows_its_profile(
    fitting: ThresholdProfile, pair: tuple[Any, Any], tokenizer: Any, tmp_path: Path
) -> None:
    fitting.save(tmp_path / "profile.json")
    decoder = SpeculativeDecoder.from_pretrained(*pair, tokenizer=tokenizer, profile=tmp_path / "profile.json")
    assert (decoder.rule, decoder.divergence, decoder.threshold) == ("fsd-coupled", "js", 0.0625)
    assert (decoder.draft_length, decoder.seed) == (5, 0)
    with pytest.raises(UsageError, match=r"the profile's target"):
        SpeculativeDecoder.from_pretrained(pair[1], pair[0], tokenizer=tokenizer, profile=fitting)


def test_a_decoder_without_a_certified_threshold_is_lossless(
    fitting: ThresholdProfile, pair: tuple[Any, Any], tokenizer: Any
) -> None:
    refused = fitting.model_dump() | profile(UNCERTIFIED).model_dump(
        include={"outcome", "threshold", "lossy", "certificate", "estimate"}
    )
    uncertified = ThresholdProfile.model_validate(refused).sealed()
    with pytest.warns(UserWarning, match="lossless"):
        decoder = SpeculativeDecoder.from_pretrained(*pair, tokenizer=tokenizer, profile=uncertified)
    prompts = ["Ann has", "How many pears"]
    lossless = decoder.generate(prompts, max_new_tokens=24)
    alone = decoder.generate(prompts, max_new_tokens=24, rule="target")
    assert [result.tokens for result in lossless] == [result.tokens for result in alone]
