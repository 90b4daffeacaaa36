"""The digest of weights: every element counts, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from fsd_common.errors import UsageError
from fsd_decoding.models import weights_digest
from fsd_decoding.models.fingerprint import family_id, model_fingerprint
from fsd_decoding.models.weights_digest import tensor_digest

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
