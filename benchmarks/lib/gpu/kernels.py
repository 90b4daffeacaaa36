"""Errors, choices and milliseconds of fused kernels, compared with the operations that define them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.divergence import DIVERGENCES, DistributionPair, divergences_of_pair, entropy, log_softmax
from fsd_decoding.kernels import compare, scan
from fsd_decoding.sampling import Sampling

NAMES = list(DIVERGENCES)
_TEMPERATURE, _SEED = 0.8, 5


def measure_kernels(
    vocabularies: Sequence[int], dtypes: Sequence[torch.dtype], places: int, repeats: int, device: str
) -> Iterator[dict[str, Any]]:
    """Yields for every vocabulary size and dtype the largest errors against fp64 on the CPU, and milliseconds."""
    for vocabulary in vocabularies:
        for dtype in dtypes:
            target, draft = _logits(places, vocabulary, dtype, device)
            yield {
                "vocabulary": vocabulary, "dtype": str(dtype), "positions": places,
                **_errors(target, draft), "choices": _choices(target),
                "milliseconds": milliseconds(partial(_fused, target, draft), repeats, device),
                "reference_milliseconds": milliseconds(partial(_reference, target, draft), repeats, device),
            }  # fmt: skip


def milliseconds(call: Callable[[], object], repeats: int, device: str) -> float:
    """Returns the milliseconds of a call, averaged over `repeats` after two that warm up."""
    for _ in range(2):
        call()
    _wait(device)
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    _wait(device)
    return 1000 * (time.perf_counter() - began) / repeats


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


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


def _noise(logits: Tensor) -> tuple[Tensor, Tensor]:
    keys = noise.problem_keys(_SEED, [1]).to(logits.device)
    return keys, torch.arange(logits.shape[1], device=logits.device)[None]


def _errors(target: Tensor, draft: Tensor) -> dict[str, Any]:
    computed = compare(NAMES, target, draft, (scan(target), scan(draft)))
    exact = divergences_of_pair(
        NAMES, DistributionPair(*(log_softmax(logits.cpu().double()) for logits in (target, draft)))
    )
    return {
        "errors": {name: _error(computed[name], exact[name]) for name in NAMES},
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
