"""A tiny target, a draft that agrees with it on about half of all tokens, and prompts for them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import torch

from fsd_decoding.decoder import SpeculativeDecoder
from support.models.tiny_models import VOCABULARY, llama, word_tokenizer


def related(seed: int, spread: float, **changes: Any) -> tuple[Any, Any]:
    """Returns a target and a disturbed copy of it."""
    target, draft = (llama(seed, **changes) for _ in range(2))
    disturb(draft, seed, spread)
    return target, draft


def disturb(model: Any, seed: int, spread: float) -> None:
    """Adds relative Gaussian noise of size `spread` to every weight."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + spread * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))


def saved(folder: Path) -> tuple[Path, Path]:
    """Saves a target and a draft with their tokenizer; returns both folders."""
    for name, model in zip(("target", "draft"), related(seed=1, spread=0.05), strict=True):
        model.save_pretrained(folder / name)
        word_tokenizer().save_pretrained(folder / name)
    return folder / "target", folder / "draft"


def tiny_decoder(seed: int = 0, **settings: Any) -> SpeculativeDecoder:
    return SpeculativeDecoder(*related(seed=1, spread=0.05), word_tokenizer(), seed=seed, **settings)


def ragged_prompts(count: int) -> list[list[int]]:
    """Returns prompts of 1 to 12 tokens."""
    rng = Random(0)
    return [[rng.randrange(2, VOCABULARY) for _ in range(rng.randint(1, 12))] for _ in range(count)]
