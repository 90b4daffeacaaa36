"""Errors, choices and milliseconds of fused kernels, beside the operations that define them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.divergence import DIVERGENCES, DistributionPair, divergences_of_pair, entropy, log_softmax
from fsd_decoding.kernels import compare, scan
from fsd_decoding.sampling import Sampling
from lib.gpu.clock import milliseconds
from lib.gpu.plan import Plan

_NAMES = list(DIVERGENCES)
_DTYPES = (torch.bfloat16, torch.float32)
_TEMPERATURE, _SEED = 0.8, 5


def kernels(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yields, by vocabulary size and dtype, the largest errors against fp64 on the CPU, and milliseconds.

    They are of what a round judges, fused and by PyTorch's operations, and of one greedy draft step's draw, beside the
    `argmax` that it comes to.
    """
    for vocabulary, dtype in product(plan.vocabularies, _DTYPES):
        target, draft = _logits(plan.draft_length, vocabulary, dtype, plan.device)
        ways = {
            "fused": partial(_fused, target, draft), "reference": partial(_reference, target, draft),
            "draw": partial(_drawn, target[:, :1]), "argmax": partial(target[:, :1].argmax, -1),
        }  # fmt: skip
        yield {
            "vocabulary": vocabulary, "dtype": str(dtype), "positions": plan.draft_length,
            **_errors(target, draft), "choices": _choices(target),
            "milliseconds": {name: milliseconds(way, plan.repeats, plan.device) for name, way in ways.items()},
        }  # fmt: skip


def _logits(places: int, vocabulary: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Returns one row of target logits and of similar draft logits, each with a token of probability 0."""
    random = torch.Generator().manual_seed(_SEED)
    target = 4 * torch.randn(1, places, vocabulary, generator=random)
    draft = target + torch.randn(target.shape, generator=random)
    target[..., 3] = draft[..., -1] = -torch.inf
    return target.to(device, dtype), draft.to(device, dtype)


def _fused(target: Tensor, draft: Tensor) -> Any:
    keys, positions = _noise(target)
    words = noise.words(keys, positions, noise.Stream.TOKEN)
    return compare(["js"], target, draft, (scan(target, _TEMPERATURE, words), scan(draft)))


def _reference(target: Tensor, draft: Tensor) -> Any:
    keys, positions = _noise(target)
    drawn = Sampling(_TEMPERATURE).draw(target.float() / _TEMPERATURE, keys, positions)
    pair = DistributionPair(log_softmax(target), log_softmax(draft))
    return divergences_of_pair(["js"], pair), entropy(target), entropy(draft), drawn


def _drawn(logits: Tensor) -> Tensor:
    keys, positions = _noise(logits)
    return Sampling().choose(logits, positions, keys, positions)


def _noise(logits: Tensor) -> tuple[Tensor, Tensor]:
    keys = noise.problem_keys(_SEED, [1]).to(logits.device)
    return keys, torch.arange(logits.shape[1], device=logits.device)[None]


def _errors(target: Tensor, draft: Tensor) -> dict[str, Any]:
    computed = compare(_NAMES, target, draft, (scan(target), scan(draft)))
    exact = divergences_of_pair(
        _NAMES, DistributionPair(*(log_softmax(logits.cpu().double()) for logits in (target, draft)))
    )
    return {
        "errors": {name: _error(computed[name], exact[name]) for name in _NAMES},
        "entropy_error": _error(scan(target).entropy, entropy(target.cpu().double())),
        "likeliest": bool((scan(target).top.cpu() == target.cpu().argmax(-1)).all()),
    }


def _error(computed: Tensor, exact: Tensor) -> float:
    """Returns the largest error: absolute for values below 1, relative for those above."""
    errors = (computed.cpu().double() - exact).abs() / exact.abs().clamp_min(1.0)
    return float(errors.masked_fill(computed.cpu().isinf() & exact.isinf(), 0.0).max())


def _choices(target: Tensor) -> float:
    """Returns the share of positions where the kernel samples the token that the CPU samples in fp64."""
    keys, positions = _noise(target)
    choices = scan(target, _TEMPERATURE, noise.words(keys, positions, noise.Stream.TOKEN)).choice.cpu()
    drawn = Sampling(_TEMPERATURE).draw(target.cpu().double() / _TEMPERATURE, keys.cpu(), positions.cpu())
    return float((choices == drawn).float().mean())
