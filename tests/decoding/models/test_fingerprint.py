"""Fingerprints of models and digests of weights: what keeps them, what changes them, and the checks of a profile."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from fsd_common.errors import UsageError
from fsd_data.tokenizer import build_tokenizer
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.models import weights_digest
from fsd_decoding.models.fingerprint import (
    family_id,
    model_fingerprint,
    tokenizer_difference,
    tokenizer_fingerprint,
)
from fsd_decoding.models.weights_digest import tensor_digest
from fsd_decoding.profile.parts import ModelInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.scores import SCORES_VERSION
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
            "scores_version": SCORES_VERSION,
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
    changed = fitting.model_copy(update={"scores_version": SCORES_VERSION + 1})
    with pytest.raises(UsageError, match=r"version \d+ of the scores"):
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
    assert (decoder.rule, decoder.score, decoder.threshold) == ("fsd-coupled", "js", 0.0625)
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


SMALL = st.integers(1, 40)
BITS = st.integers(-(2**15), 2**15 - 1)
WHOLE_BLOCKS = weights_digest._BLOCK * 2  # elements of bfloat16 in a block


def bfloat16(values: list[int]) -> Tensor:
    """Elements of these bits."""
    return torch.tensor(values, dtype=torch.int16).view(torch.bfloat16)


def ramp(count: int) -> Tensor:
    return torch.arange(count).to(torch.int16).view(torch.bfloat16)


def model(**settings: Any) -> Any:
    torch.manual_seed(3)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**{"vocab_size": 257, **shape, **settings})).eval()


@given(st.lists(BITS, min_size=1, max_size=40), st.data())
def test_one_element_anywhere_changes_the_digest(values: list[int], data: st.DataObject) -> None:
    at, other = data.draw(st.integers(0, len(values) - 1)), data.draw(BITS)
    changed = [*values[:at], other, *values[at + 1 :]]
    assert (tensor_digest(bfloat16(changed)) == tensor_digest(bfloat16(values))) == (changed == values)


@given(st.lists(BITS, min_size=1, max_size=12), st.permutations(range(12)))
def test_the_order_of_elements_counts(values: list[int], order: list[int]) -> None:
    moved = [values[i] for i in order if i < len(values)]
    assert (tensor_digest(bfloat16(moved)) == tensor_digest(bfloat16(values))) == (moved == values)


@pytest.mark.parametrize("count", [1, 2, 3, WHOLE_BLOCKS - 1, WHOLE_BLOCKS, WHOLE_BLOCKS + 1, 5 * WHOLE_BLOCKS + 3])
def test_one_bit_at_either_end_and_between_changes_the_digest(count: int) -> None:
    known = {tensor_digest(ramp(count))}
    places = sorted({0, count // 2, count - 1})
    for at in places:
        for bit in range(16):
            changed = ramp(count)
            changed.view(torch.int16)[at] ^= -(2**15) if bit == 15 else 1 << bit
            known.add(tensor_digest(changed))
    assert len(known) == 1 + 16 * len(places)


def test_signs_of_two_elements_do_not_cancel() -> None:
    """A sum of 64-bit words would not see them: 2^63 times an odd number is 2^63, and two of these are 0."""
    values = torch.arange(1, 65, dtype=torch.bfloat16)
    digests = {tensor_digest(values)}
    for first in range(64):
        for second in range(first):
            changed = values.clone()
            changed[[first, second]] *= -1
            digests.add(tensor_digest(changed))
    assert len(digests) == 1 + 64 * 63 // 2


def test_swapped_rows_and_blocks_change_the_digest() -> None:
    rows = torch.randn(6, WHOLE_BLOCKS, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    assert (
        len({tensor_digest(rows[order]) for order in ([0, 1, 2, 3, 4, 5], [1, 0, 2, 3, 4, 5], [0, 1, 2, 3, 5, 4])}) == 3
    )


@given(SMALL, SMALL, st.integers(0, 2**32))
def test_dtype_layout_and_pieces_do_not_matter(rows: int, columns: int, seed: int) -> None:
    exact = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    known = tensor_digest(exact)
    rounded = exact.to(torch.bfloat16)
    offset = torch.cat([rounded.new_zeros(1), rounded.flatten()])[1:].view(
        rows, columns
    )  # not at a multiple of 4 bytes
    for same in (rounded, exact.double(), rounded.float(), exact.t().contiguous().t(), offset):
        assert tensor_digest(same) == known


def test_the_pieces_that_it_is_computed_in_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    values = ramp(7 * WHOLE_BLOCKS + 5)
    known = tensor_digest(values)
    for blocks in (1, 3, 32):
        monkeypatch.setattr(weights_digest, "_BLOCKS_AT_ONCE", blocks)
        assert tensor_digest(values) == known


def test_the_digest_is_the_same_in_every_version() -> None:
    """Fingerprints in files are compared with it: where it changes, DIGEST_VERSION must."""
    assert weights_digest.DIGEST_VERSION == 1
    assert tensor_digest(ramp(2 * WHOLE_BLOCKS + 3)).hex()[:16] == "24713859431c462a"
    assert tensor_digest(torch.arange(7, dtype=torch.int8)).hex()[:16] == "435beb1e25817a80"


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_quantised_weights_count_with_their_own_bytes(dtype: torch.dtype) -> None:
    values = torch.zeros(9, dtype=torch.uint8 if dtype == torch.float8_e4m3fn else dtype)
    changed = values.clone()
    changed[4] = 1
    if dtype == torch.float8_e4m3fn:
        values, changed = values.view(dtype), changed.view(dtype)
    assert tensor_digest(values) != tensor_digest(changed)


@pytest.mark.slow
@given(st.data())
def test_one_element_of_any_tensor_changes_the_fingerprint(data: st.DataObject) -> None:
    changed = model()
    _, tensor = data.draw(st.sampled_from(sorted(changed.state_dict().items())))
    flat = tensor.view(-1)
    at = data.draw(st.integers(0, len(flat) - 1))
    before = model_fingerprint(changed)
    flat[at] = flat[at] * 1.02 + 0.01  # more than bfloat16's rounding
    assert model_fingerprint(changed) != before


def edited_row(changed: Any) -> None:
    changed.model.embed_tokens.weight.data[101] *= 1.5


def swapped_rows(changed: Any) -> None:
    rows = changed.model.embed_tokens.weight.data
    rows[[101, 102]] = rows[[102, 101]]


@pytest.mark.parametrize("edit", [edited_row, swapped_rows])
def test_what_a_sample_did_not_see_changes_the_fingerprint(edit: Callable[[Any], None]) -> None:
    changed = model()
    edit(changed)
    assert family_id(changed) == family_id(model())
    assert model_fingerprint(changed) != model_fingerprint(model())


def test_tied_shared_and_sharded_weights_have_one_fingerprint(tmp_path: Path) -> None:
    tied = model(tie_word_embeddings=True)
    known = model_fingerprint(tied)
    tied.save_pretrained(tmp_path / "whole")
    tied.save_pretrained(tmp_path / "shards", max_shard_size="8KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    for folder in ("whole", "shards"):
        assert model_fingerprint(AutoModelForCausalLM.from_pretrained(tmp_path / folder)) == known
    untied = model(tie_word_embeddings=True)
    untied.lm_head.weight = torch.nn.Parameter(untied.lm_head.weight.detach().clone())
    assert model_fingerprint(untied) == known


def test_offloaded_weights_are_read(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="device_map needs accelerate")
    whole = model()
    whole.save_pretrained(tmp_path / "model")
    layers = {f"model.layers.{i}": "disk" if i else "cpu" for i in range(2)}
    places = layers | dict.fromkeys(["model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"], "cpu")
    pieces = AutoModelForCausalLM.from_pretrained(tmp_path / "model", device_map=places, offload_folder=tmp_path)
    assert any(parameter.is_meta for parameter in pieces.parameters())
    assert model_fingerprint(pieces) == model_fingerprint(whole)
    assert family_id(pieces) == family_id(whole)


def test_a_model_without_values_is_refused() -> None:
    with torch.device("meta"):
        empty = model()
    with pytest.raises(UsageError, match=r"'lm_head\.weight' is on the meta device"):
        model_fingerprint(empty)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_does_not_matter() -> None:
    values = torch.randn(3 * WHOLE_BLOCKS + 5, generator=torch.Generator().manual_seed(2))
    assert tensor_digest(values.cuda()) == tensor_digest(values)
