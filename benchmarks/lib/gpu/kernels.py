"""Fused kernels against the operations that define them, on logits like models': errors, choices and seconds.

Knows kernels and their references. Knows nothing of models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.divergence import DIVERGENCES, DistributionPair, divergences_of_pair, entropy, log_softmax
from fsd_decoding.kernels.divergences import compare
from fsd_decoding.kernels.scan import Race, scan
from fsd_decoding.sampling import Sampling

NAMES = list(DIVERGENCES)
_TEMPERATURE, _SEED = 0.8, 5


def checked(
    vocabularies: Sequence[int], dtypes: Sequence[torch.dtype], places: int, repeats: int, device: str
) -> Iterator[dict[str, Any]]:
    """Of every width and type: the largest error against fp64 on the CPU, and milliseconds of both ways."""
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
    """Of one call among several, all of which have ended; the first ones do not count."""
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
    """One row of a target and a draft that is like it; two tokens are impossible."""
    random = torch.Generator().manual_seed(_SEED)
    target = 4 * torch.randn(1, places, vocabulary, generator=random)
    draft = target + torch.randn(target.shape, generator=random)
    target[..., 3] = draft[..., -1] = -torch.inf
    return target.to(device, dtype), draft.to(device, dtype)


def _fused(target: Tensor, draft: Tensor) -> Any:
    keys, positions = _noise(target)
    race = Race.of(_TEMPERATURE, keys, positions, noise.Stream.TOKEN)
    return compare(["js"], target, draft, (scan(target, race), scan(draft)))


def _reference(target: Tensor, draft: Tensor) -> Any:
    keys, positions = _noise(target)
    drawn = Sampling(_TEMPERATURE).draw(target.float() / _TEMPERATURE, keys, positions)
    pair = DistributionPair(log_softmax(target), log_softmax(draft))
    return divergences_of_pair(["js"], pair), entropy(target), entropy(draft), drawn


def _noise(logits: Tensor) -> tuple[Tensor, Tensor]:
    keys = noise.problem_keys(_SEED, [1]).to(logits.device)
    return keys, torch.arange(logits.shape[1], device=logits.device)[None]


def _errors(target: Tensor, draft: Tensor) -> dict[str, Any]:
    found = compare(NAMES, target, draft, (scan(target), scan(draft)))
    exact = divergences_of_pair(NAMES, DistributionPair(*(log_softmax(one.cpu().double()) for one in (target, draft))))
    return {
        "errors": {name: _off(found[name], exact[name]) for name in NAMES},
        "entropy_error": _off(scan(target).entropy, entropy(target.cpu().double())),
        "likeliest": bool((scan(target).top.cpu() == target.cpu().argmax(-1)).all()),
    }


def _off(found: Tensor, exact: Tensor) -> float:
    """The largest error, as a share of what is above 1."""
    off = (found.cpu().double() - exact).abs() / exact.abs().clamp_min(1.0)
    return float(off.masked_fill(found.cpu().isinf() & exact.isinf(), 0.0).max())


def _choices(target: Tensor) -> float:
    """Share of positions where the race picks what the CPU draws, in fp64 from the same logits."""
    keys, positions = _noise(target)
    found = scan(target, Race.of(_TEMPERATURE, keys, positions, noise.Stream.TOKEN)).choice.cpu()
    drawn = Sampling(_TEMPERATURE).draw(target.cpu().double() / _TEMPERATURE, keys.cpu(), positions.cpu())
    return float((found == drawn).float().mean())
