"""Decoding with models of every dtype, split over devices, offloaded or quantised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, TorchAoConfig

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.tree_shape import TreeShape
from support.models.tiny_heads import HEADS
from support.models.tiny_models import llama, word_tokenizer
from support.models.tiny_pair import ragged_prompts, related

NEW = 16
PROMPTS = ragged_prompts(12)


def texts(target: Any, draft: Any, **call: Any) -> list[list[int]]:
    return [r.tokens for r in SpeculativeDecoder(target, draft, word_tokenizer()).generate(PROMPTS, NEW, **call)]


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_dtype_decodes(dtype: torch.dtype) -> None:
    """Lossless texts are equal where rounding leaves no near-ties; half precision may change some choices."""
    target, draft = (model.to(dtype) for model in related(seed=1, spread=0.05))
    alone, coupled = texts(target, draft, rule="target"), texts(target, draft, threshold=-1.0)
    same = sum(a == b for a, b in zip(alone, coupled, strict=True))
    assert same == len(PROMPTS) if dtype.itemsize >= 4 else same >= len(PROMPTS) // 2


def test_draft_and_target_may_differ_in_dtype() -> None:
    target, draft = related(seed=1, spread=0.05)
    alone = texts(target, draft, rule="target")
    for dtype in (torch.float32, torch.bfloat16):
        assert texts(target, draft.to(dtype), threshold=-1.0) == alone


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A target of four layers on disk, in fp32."""
    llama(seed=1, layers=4).float().save_pretrained(tmp_path / "target")
    return tmp_path / "target"


def test_a_split_target_decodes_like_the_whole(checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="device_map needs accelerate")
    draft = llama(seed=2, layers=1).float()
    layers = {f"model.layers.{i}": "disk" if i > 1 else "cpu" for i in range(4)}
    places = layers | dict.fromkeys(["model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"], "cpu")
    whole = AutoModelForCausalLM.from_pretrained(checkpoint)
    for device_map in ("auto", places):
        pieces = AutoModelForCausalLM.from_pretrained(checkpoint, device_map=device_map, offload_folder=tmp_path)
        assert texts(pieces, draft, threshold=0.2) == texts(whole, draft, threshold=0.2)


PIECES = ["model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head", *(f"model.layers.{i}" for i in range(8))]


def drafted(target: Any, kind: str) -> list[tuple[list[int], int]]:
    """Texts and rounds with a head, which has the same weights for each target."""
    torch.manual_seed(0)
    decoder = SpeculativeDecoder(target, HEADS[kind](target), word_tokenizer(), tree=TreeShape(2, 6))
    return [(r.tokens, r.rounds) for r in decoder.generate(PROMPTS, NEW, threshold=0.2)]


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("kind", HEADS)
def test_a_head_drafts_from_a_split_target_as_from_the_whole(kind: str, tmp_path: Path) -> None:
    """Whose output layer, which the head of EAGLE-1 shares, is read from disk for each call."""
    pytest.importorskip("accelerate", reason="device_map needs accelerate")
    whole = llama(seed=1, layers=8)
    whole.save_pretrained(tmp_path / "target")
    places = dict.fromkeys(PIECES, "cpu") | dict.fromkeys(["model.layers.1", "model.layers.7", "lm_head"], "disk")
    pieces = AutoModelForCausalLM.from_pretrained(
        tmp_path / "target", device_map=places, offload_folder=tmp_path / "disk"
    )
    assert drafted(pieces, kind) == drafted(whole, kind)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device beside the CPU")
@pytest.mark.parametrize("kind", HEADS)
def test_a_head_drafts_from_a_target_on_two_devices_as_on_one(kind: str) -> None:
    """The head is where the embeddings are; the states that it reads, and the output layer, are on the other one."""
    accelerate = pytest.importorskip("accelerate", reason="models on several devices need accelerate")
    places = dict.fromkeys(PIECES, "cuda:0") | dict.fromkeys(["model.embed_tokens", "model.layers.0"], "cpu")
    pieces = accelerate.dispatch_model(llama(seed=1, layers=8), places, main_device="cpu")
    assert drafted(pieces, kind) == drafted(llama(seed=1, layers=8), kind)


def test_a_quantised_target_decodes_losslessly(checkpoint: Path) -> None:
    """It gives the quantised target's own text, which differs from the original's."""
    pytest.importorskip("accelerate", reason="quantised loading needs accelerate")
    quantization = pytest.importorskip("torchao.quantization", reason="torchao does the quantising")
    target = AutoModelForCausalLM.from_pretrained(
        checkpoint, quantization_config=TorchAoConfig(quantization.Int8WeightOnlyConfig()), device_map="cpu"
    )
    assert type(target.model.layers[0].self_attn.q_proj.weight).__name__ == "Int8Tensor"
    draft = llama(seed=2, layers=1).float()
    assert texts(target, draft, threshold=-1.0) == texts(target, draft, rule="target")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device beside the CPU")
@pytest.mark.parametrize("places", [("cpu", "cuda"), ("cuda", "cpu")])
def test_draft_and_target_may_be_on_different_devices(places: tuple[str, str]) -> None:
    target, draft = related(seed=1, spread=0.05)
    expected = texts(target, draft, threshold=0.2)
    assert texts(target.to(places[0]), draft.to(places[1]), threshold=0.2) == expected
